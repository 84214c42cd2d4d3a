# Included by _native.pyx: the delivery of a share consumer's records one by one, and the
# acknowledgement of each.
#
# A record takes two steps here: `DeliveryIterator` takes it from the buffer, by the rules of
# `_native_iterating.pxi`, and `HeldRecords` decides it. As coroutines and calls of Python, these
# steps took 3.5 microseconds of 4.7 in all; decoding and the network took the rest. The rules of
# the states are those of `_state/share/acquired.py`, whose class is a subclass of `AcquiredStates`:
# all that is not about a single record is decided there.

from cpython.pythread cimport PyThread_get_thread_ident

cdef bytes ACCEPT = b"\1"

# States of a record; tests hold them together with RecordState.
cdef enum:
    BUFFERED = 0
    DELIVERED = 1
    OPENED = 2
    DECIDED = 3


cdef class HoldingCounts:
    """See ``_fallback_sharing``."""

    cdef public Py_ssize_t buffered
    cdef public Py_ssize_t held
    cdef public Py_ssize_t enough
    cdef public object made_room
    cdef long thread

    def __init__(self):
        self.thread = PyThread_get_thread_ident()
        self.buffered = self.held = 0
        self.enough = -1
        self.made_room = None


cdef class OpenEntry:
    """See ``_fallback_sharing``."""

    cdef public Py_ssize_t stop

    def upto(self, Py_ssize_t stop):
        self.stop = stop


cdef class AcquiredStates:
    """See ``_fallback_sharing``."""

    cdef public list _chunk
    cdef public Py_ssize_t _chunk_start
    cdef public object _decided
    cdef public HoldingCounts _holdings
    cdef public object _queue
    cdef public bytearray _types
    cdef public Py_ssize_t held
    cdef public double keep_until
    cdef public OpenEntry queued
    cdef public bytearray states

    cdef inline int state(self, Py_ssize_t index) except -2:
        """Return a record's state; -1 if there is no such record."""
        if self.states is None or self._types is None or self._holdings is None:
            return -1
        if not 0 <= index < min(len(self.states), len(self._types)):
            return -1
        return <uint8_t>PyByteArray_AS_STRING(self.states)[index]

    cdef object take_buffered(self, Py_ssize_t index):
        cdef Py_ssize_t at = index - self._chunk_start
        if self._chunk is not None and 0 <= at < len(self._chunk):
            record = self._chunk[at]
        else:
            record = self.record(index)
        self.states[index] = DELIVERED
        self._holdings.buffered -= 1
        return record

    def take(self, Py_ssize_t index):
        return self.take_buffered(index) if self.state(index) == BUFFERED else None

    cpdef decide_one(self, Py_ssize_t index, int kind):
        cdef HoldingCounts holdings = self._holdings
        cdef OpenEntry queued
        cdef int state = self.state(index)
        if state < 0:
            raise IndexError(f"there is no record {index}")
        if state > OPENED:
            return
        self._types[index] = kind
        self.states[index] = DECIDED
        if state == BUFFERED:
            holdings.buffered -= 1
        holdings.held -= 1
        self.held -= 1
        if not self.held:
            self._decided()
        queued = self.queued
        if queued is not None and queued.stop == index:
            queued.stop = index + 1
            if holdings.made_room is not None and (
                holdings.held <= holdings.enough or not holdings.buffered
            ):
                holdings.made_room()
        else:
            self._queue(self, index, index + 1)

    cdef bint decides_alone(self, Py_ssize_t index):
        """Return whether the decision of a held record calls no function of Python."""
        cdef HoldingCounts holdings = self._holdings
        if self.held <= 1 or self.queued is None or self.queued.stop != index:
            return False
        return holdings.made_room is None or (
            holdings.held - 1 > holdings.enough and holdings.buffered > 0
        )


cdef class BufferFront:
    """See ``_fallback_sharing``."""

    cdef public object _waiting  # a deque
    cdef public Py_ssize_t _index

    cdef AcquiredStates front(self):
        """Return the records whose next one can be delivered; ``None`` if that is not known."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        if not isinstance(first, AcquiredStates):
            return None
        if (<AcquiredStates>first).state(self._index) != BUFFERED:
            return None
        return <AcquiredStates>first

    def pop_front(self):
        cdef Py_ssize_t index = self._index
        cdef AcquiredStates first = self.front()
        if first is None:
            return None
        record = first.take_buffered(index)
        self._index = index + 1
        return first, index, record


@cython.final
cdef class BlockScopes:
    """See ``_fallback_sharing``."""

    cdef object enter_new
    cdef object current_task
    cdef object runner
    cdef long thread
    cdef list spare  # at most as many as there were ever blocks open at the same time
    cdef readonly object left
    cdef object task  # the running one, from a block's `has_next` to its `next_item`

    def __init__(self, enter_new, left, current_task):
        self.enter_new, self.left, self.current_task = enter_new, left, current_task
        self.thread = PyThread_get_thread_ident()
        self.runner = None if current_task is None else current_task()._runner
        self.spare = []

    def enter(self):
        return self.enter_of(self.own_task())

    cdef object enter_of(self, task):
        """Return a scope that ``task``, which is running, has entered."""
        if task is not None and not task._cancel_status.effectively_cancelled:
            while self.spare:
                scope = self.spare.pop()
                # A signal's handler may have cancelled it before its block was left.
                if not scope._cancel_status.effectively_cancelled:
                    return self.enter_again(task, scope)
        return self.enter_new()

    def leave(self, scope):
        task = self.own_task()
        if task is None or not self.can_leave(task, scope):
            return False
        self.leave_to_spare(task, scope)
        return True

    cdef object own_task(self):
        """Return the running task; ``None`` where there is none of the consumer's Trio run."""
        if self.current_task is None or self.thread != PyThread_get_thread_ident():
            return None
        try:
            task = self.current_task()
        except RuntimeError:
            return None
        return task if task._runner is self.runner else None

    # The next three functions do what Trio's `CancelScope` does as it is entered and left, for a
    # scope without a deadline or a shield in a task that is not cancelled. The tree of Trio's has a
    # status for each scope; a task is in the set of the innermost one. No code in Python runs
    # between the first line and the last, so no signal's handler sees a part of it.

    cdef object enter_again(self, task, scope):
        outer, status = task._cancel_status, scope._cancel_status
        (<set?>outer._tasks).remove(task)
        status._parent = outer
        (<set?>outer._children).add(status)
        (<set?>status._tasks).add(task)
        task._cancel_status = status
        return scope

    cdef bint can_leave(self, task, scope) except -1:
        """Return whether the scope is the task's innermost, holds nothing else, and is intact."""
        status = task._cancel_status
        return (
            scope._cancel_status is status
            and not status.effectively_cancelled
            and status._parent is not None
            and not status._children
            and len(<set?>status._tasks) == 1
            # A cancellation from outside, ended by a shield, leaves its reason (from Trio 0.31 on).
            and getattr(scope, "_cancel_reason", None) is None
        )

    cdef int leave_to_spare(self, task, scope) except -1:
        status = task._cancel_status
        outer = status._parent
        (<set?>status._tasks).remove(task)
        (<set?>outer._children).remove(status)
        status._parent = None
        (<set?>outer._tasks).add(task)
        task._cancel_status = outer
        self.spare.append(scope)
        return 0


# Steps of a block.
cdef enum:
    ENTER = 1
    EXIT = 2


cdef class HeldRecords(_Source):
    """See ``_fallback_sharing``."""

    cdef public object _cancel_elsewhere
    cdef public object _parts
    cdef public object _scope
    cdef public Py_ssize_t _start
    cdef public Py_ssize_t _stop
    cdef public object _verdict
    cdef public AcquiredStates acquired

    def _acknowledge(self, bytes verdict not None):
        cdef int state
        if self._stop - self._start != 1:
            self._acknowledge_several(verdict)
            return
        state = -1 if self.acquired is None else self.acquired.state(self._start)
        if state == OPENED:
            self._verdict = verdict
        elif state == DELIVERED:
            # A decision may wake tasks of Trio's, which another thread cannot do.
            if self.acquired._holdings.thread != PyThread_get_thread_ident():
                self._parts.home.check()
            self._verdict = verdict
            self.acquired.decide_one(self._start, verdict[0])
        else:
            raise self._why_not()

    # The block of one record whose lock is held, and of a task that is neither cancelled nor
    # interrupted: the usual case. The complete way, in Python, has all others.
    #
    # A signal's handler can only run inside the functions of Python that are called here: in
    # `enter_new`, where Trio holds an interrupt back, and in the clock before it. So no interrupt
    # comes between a change of the state and one of the scope.

    def __aenter__(self):
        return awaitable_of(self, ENTER)

    def __aexit__(self, kind, error, trace):
        return awaitable_of(self, EXIT) if kind is None else self._exit(kind, error, trace)

    cdef object complete_way(self, int step, tuple given):
        return self._enter() if step == ENTER else self._exit(None, None, None)

    cdef bint has_next(self, int step, tuple given) except -1:
        cdef AcquiredStates acquired = self.acquired
        cdef BlockScopes scopes
        if acquired is None or self._stop - self._start != 1:
            return False
        scopes = self._parts.core.scopes
        task = scopes.own_task()
        if task is None:
            return False
        if step == ENTER:
            if task._cancel_status.effectively_cancelled or task._runner.ki_pending:
                return False
            if self._scope is not None or self._cancel_elsewhere is not None:
                return False
            if acquired.state(self._start) != DELIVERED:
                return False
        else:
            if self._scope is None or acquired.state(self._start) != OPENED:
                return False
            if not acquired.decides_alone(self._start) or not scopes.can_leave(task, self._scope):
                return False
        scopes.task = task
        return True

    cdef object next_item(self, int step, tuple given):
        cdef AcquiredStates acquired = self.acquired
        cdef Py_ssize_t index = self._start
        core = self._parts.core
        cdef BlockScopes scopes = core.scopes
        blocks = (<object>acquired._holdings).blocks
        task, scopes.task = scopes.task, None
        if step == ENTER:
            opened = core.now()
            if acquired.state(index) != DELIVERED:
                raise self._why_not()
            acquired.states[index] = OPENED
            try:
                self._scope = scopes.enter_of(task)
            except BaseException:
                acquired.states[index] = DELIVERED
                raise
            blocks[self] = opened
            return self
        scopes.leave_to_spare(task, self._scope)
        self._scope = scopes.left
        del blocks[self]
        if self._verdict is None:
            self._verdict = ACCEPT
        acquired.decide_one(index, (<bytes?>self._verdict)[0])
        return False


@cython.final
cdef class DeliveryIterator(_Turns):
    """See ``_fallback_sharing``."""

    cdef BufferFront buffer
    cdef object parts
    cdef object kind
    cdef object deliver
    cdef double keep_until

    def __init__(
        self, wait, turn, BufferFront buffer not None, parts, kind, deliver,
    ):
        if not (isinstance(kind, type) and issubclass(kind, HeldRecords)):
            raise TypeError("deliveries are a subclass of HeldRecords")
        self.buffer, self.parts, self.kind, self.deliver = buffer, parts, kind, deliver
        self.keep_until = float("inf")

    def __aiter__(self):
        return self

    def __anext__(self):
        if self.turn.current_task is None or self.buffer.front() is None:
            return self.wait()
        return awaitable_of(self)

    def at_hand(self):
        return self.next_item(0, None) if self.has_next(0, None) else None

    def turn_begun(self, double keep_until=float("inf")):
        self.keep_until = keep_until
        self.turn.begin()

    # The record is looked at last: `goes_on` calls Python, where a signal's handler may take it.
    cdef bint has_next(self, int step, tuple given) except -1:
        return self.turn.goes_on() and self.buffer.front() is not None

    cdef object next_item(self, int step, tuple given):
        cdef Py_ssize_t index = self.buffer._index
        cdef AcquiredStates acquired = self.buffer.front()
        cdef HeldRecords made
        record = acquired.take_buffered(index)
        self.buffer._index = index + 1
        acquired.keep_until = self.keep_until
        if self.deliver is not None:
            return self.deliver(acquired, index, record)
        made = <HeldRecords>new_of(self.kind, ())
        made._parts, made.acquired, made._start, made._stop = self.parts, acquired, index, index + 1
        (<object>made).record = record
        return made
