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
    # A signal's handler can only run inside the functions of Python that are called here. Trio
    # holds an interrupt back in those of the scope. So no interrupt comes between a change of the
    # state and one of the scope, and what might raise or change something comes before both.

    def __aenter__(self):
        return awaitable_of(self, ENTER)

    def __aexit__(self, kind, error, trace):
        return awaitable_of(self, EXIT) if kind is None else self._exit(kind, error, trace)

    cdef object complete_way(self, int step):
        return self._enter() if step == ENTER else self._exit(None, None, None)

    cdef bint has_next(self, int step) except -1:
        cdef AcquiredStates acquired = self.acquired
        if acquired is None or self._stop - self._start != 1:
            return False
        if step == EXIT:
            return (
                self._scope is not None
                and acquired.state(self._start) == OPENED
                and acquired.decides_alone(self._start)
            )
        parts = self._parts
        parts.home.check()  # first: in another thread there is no task
        current_task = parts.core.current_task
        if current_task is None:
            return False
        task = current_task()
        if task._cancel_status.effectively_cancelled or task._runner.ki_pending:
            return False
        return (
            self._scope is None
            and self._cancel_elsewhere is None
            and acquired.state(self._start) == DELIVERED
        )

    cdef object next_item(self, int step):
        cdef AcquiredStates acquired = self.acquired
        cdef Py_ssize_t index = self._start
        core = self._parts.core
        blocks = (<object>acquired._holdings).blocks
        if step == ENTER:
            acquired.states[index] = OPENED
            try:
                self._scope = core.enter_scope()
            except BaseException:
                acquired.states[index] = DELIVERED
                raise
            blocks[self] = core.now()
            return self
        try:
            core.exit_scope(self._scope)
        except BaseException:
            self._leave(clean=True)
            raise
        # The handler of a signal may have decided the record, or lost its lock, in the line before.
        if not self.has_next(EXIT):
            if not self._leave(clean=True):
                raise self._lost_error()
            return False
        # Without its entry the block has outlasted its limit, and its record is not OPENED.
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
        self, wait, double turn, current_task, now, BufferFront buffer not None, parts, kind,
        deliver,
    ):
        if not (isinstance(kind, type) and issubclass(kind, HeldRecords)):
            raise TypeError("deliveries are a subclass of HeldRecords")
        self.buffer, self.parts, self.kind, self.deliver = buffer, parts, kind, deliver
        self.keep_until = float("inf")

    def __aiter__(self):
        return self

    def __anext__(self):
        if self.current_task is None or self.buffer.front() is None:
            return self.wait()
        return awaitable_of(self)

    def at_hand(self):
        return self.next_item(0) if self.has_next(0) else None

    def turn_begun(self, double keep_until=float("inf")):
        self.keep_until = keep_until
        self.begin_turn()

    # The record is looked at last: `goes_on` calls Python, where a signal's handler may take it.
    cdef bint has_next(self, int step) except -1:
        return self.current_task is not None and self.goes_on() and self.buffer.front() is not None

    cdef object next_item(self, int step):
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
