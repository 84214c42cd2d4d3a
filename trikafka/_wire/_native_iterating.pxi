# Included by _native.pyx: the delivery of records one by one to a task of Trio's, without a Python
# frame for each.
#
# Turn-taking: ``async for`` over a consumer must let other tasks run, and must notice a
# cancellation. A checkpoint for each record does both, and cost 0.8 microseconds, several times the
# record itself. So a record is delivered without a checkpoint while nothing can have happened that
# it would notice:
#
# 1. the cursor is live: no seek, pause or revocation, no news of the whole consumer;
# 2. the task is not cancelled, and Ctrl-C is not pending;
# 3. the turn is not over: the last checkpoint was less than a millisecond ago.
#
# In every other case ``__anext__`` returns the coroutine of the complete way, which has a
# checkpoint and begins the next turn. A record takes 0.2 microseconds here. The conditions are
# tested when the awaitable runs, not when it is made: anything may have happened in between.

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(PyObject *of, PyObject *value, PyObject **result) except PYGEN_ERROR

cdef extern from *:
    """
    /* Let a class send as a coroutine does, so that its result needs no StopIteration. Cython has
       no name for that slot. */
    typedef PySendResult (*SendSlot)(PyObject *, PyObject *, PyObject **);
    static void set_send(PyObject *type, SendSlot send) {
        ((PyTypeObject *)type)->tp_as_async->am_send = send;
    }
    /* Nanoseconds since the epoch; -1: the clock cannot be read. */
    static int64_t now_ns(void) {
        struct timespec now;
        if (!timespec_get(&now, TIME_UTC)) return -1;
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    ctypedef PySendResult (*SendSlot)(PyObject *, PyObject *, PyObject **) except PYGEN_ERROR
    void set_send(PyObject *type, SendSlot send)
    int64_t now_ns() noexcept nogil


cdef str REUSED = "cannot reuse already awaited coroutine"
cdef str AWAITED = "coroutine is being awaited already"


@cython.final
cdef class Cursor:
    """See ``_fallback_iterating``."""

    cdef object batch
    cdef object records  # an iterator
    cdef _Rows rows  # the same, where it makes the records of columns
    cdef Py_ssize_t index
    cdef Py_ssize_t count
    cdef int64_t done  # -1: not known
    cdef readonly int64_t position
    cdef readonly bint live

    def __cinit__(self, batch, int64_t position, processed):
        self.batch, self.index, self.count = batch, 0, len(batch)
        self.records = iter(batch)
        self.rows = <_Rows>self.records if type(self.records) is _Rows else None
        self.position, self.done = position, -1 if processed is None else processed
        self.live = True

    @property
    def processed(self):
        return None if self.done < 0 else self.done

    @property
    def rest(self):
        return None if self.index == self.count else self.batch[self.index:]

    def take(self):
        return self.next_record()

    def end(self):
        self.live = False

    def processed_upto(self, int64_t offset):
        self.done = offset

    cdef object next_record(self):
        cdef object record
        cdef int64_t position
        self.done = self.position
        if self.rows is not None and self.rows.row < self.rows.stop:
            position = (<const int64_t *>self.rows.offsets.data)[self.rows.row] + 1
            record = self.rows.make()
        else:
            record = next(self.records)
            position = record[2] + 1
        self.index += 1
        if self.index == self.count:
            position = self.batch.next_offset
            self.live = False
        self.position = position
        return record


cdef class _Source:
    """What a `_Next` takes its result from.

    A source with several kinds of results has `step`s. Arguments of a call are `given`.
    """

    cdef bint has_next(self, int step, tuple given) except -1:
        """Return whether the result may be made without a checkpoint."""
        return False

    cdef object next_item(self, int step, tuple given):
        """Make the result: ``has_next`` has just been true."""

    cdef object complete_way(self, int step, tuple given):
        """Return the coroutine that makes the result in every other case."""


@cython.final
cdef class Turn:
    """See ``_fallback_iterating``."""

    cdef object current_task
    cdef object now
    cdef double seconds
    cdef int64_t ns
    cdef int64_t begun_ns
    cdef double begun  # by ``now``

    def __init__(self, double seconds, current_task, now=None):
        self.seconds, self.current_task, self.now = seconds, current_task, now
        self.ns = <int64_t>(seconds * 1e9)
        self.begun, self.begun_ns = -1e300, 0

    cpdef void begin(self) except *:
        if self.now is None:
            self.begun_ns = now_ns()
        else:
            self.begun = self.now()

    @property
    def is_over(self):
        return self.ended()

    def passes(self):
        return self.goes_on()

    cdef bint ended(self) except -1:
        if self.now is None:
            return not 0 <= now_ns() - self.begun_ns < self.ns
        return not <double>self.now() - self.begun < self.seconds

    cdef bint goes_on(self) except -1:
        """Return whether the turn is not over, and the task neither cancelled nor interrupted."""
        if self.current_task is None or self.ended():
            return False
        task = self.current_task()
        return not task._cancel_status.effectively_cancelled and not task._runner.ki_pending


cdef class _Turns(_Source):
    """The part of an iterator that knows its turn: whether an item may be delivered at once."""

    cdef object wait
    cdef Turn turn

    def __cinit__(self, wait, Turn turn not None, *others):
        self.wait, self.turn = wait, turn

    cdef object complete_way(self, int step, tuple given):
        return self.wait()


cdef object awaitable_of(_Source source, int step=0, tuple given=None):
    cdef _Next made = _Next.__new__(_Next)
    made.source, made.step, made.given = source, step, given
    return made


@cython.final
cdef class RecordIterator(_Turns):
    """See ``_fallback_iterating``."""

    cdef Cursor cursor

    def __aiter__(self):
        return self

    def __anext__(self):
        if self.cursor is None or not self.cursor.live:
            return self.wait()
        return awaitable_of(self)

    def follow(self, Cursor cursor):
        self.cursor = None if self.turn.current_task is None else cursor

    def turn_begun(self):
        self.turn.begin()

    # The cursor is looked at last: `goes_on` calls Python, where a signal's handler may end it.
    cdef bint has_next(self, int step, tuple given) except -1:
        if self.cursor is None or not self.turn.goes_on():
            return False
        return self.cursor is not None and self.cursor.live

    cdef object next_item(self, int step, tuple given):
        cdef Cursor cursor = self.cursor  # held: making the record may call the user's code
        return cursor.next_record()


@cython.final
@cython.freelist(8)
cdef class _Next:
    """The awaitable of one result: without a checkpoint if possible, else by the complete way."""

    cdef _Source source  # None: the awaitable was begun
    cdef int step
    cdef tuple given
    cdef object way

    # Python warns of a coroutine that is never awaited. Of a call with arguments that was not, it
    # warns here by the coroutine of the complete way.
    def __dealloc__(self):
        if self.given is not None and self.source is not None:
            self.source.complete_way(self.step, self.given)

    # As of a coroutine: while a task waits in it, another one must not resume it. The results of
    # iterators are made by `anext`, which calls this method again each time that it resumes one.
    def __await__(self):
        if self.source is None and self.given is not None:
            raise RuntimeError(REUSED if getattr(self.way, "cr_await", None) is None else AWAITED)
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        cdef PyObject *sent = NULL
        cdef PySendResult how = send_next(<PyObject *>self, <PyObject *>value, &sent)
        result = <object>sent
        Py_DECREF(result)  # the reference was ours; the name holds another
        if how == PYGEN_RETURN:
            raise StopIteration(result)
        return result

    def throw(self, *error):
        if self.source is not None:
            # ends before it begins, as any coroutine does
            self.way, self.source = self.source.complete_way(self.step, self.given), None
        if self.way is None:
            raise RuntimeError(REUSED)
        return self.way.throw(*error)

    def close(self):
        self.source = None
        if self.way is not None:
            self.way.close()

    # The attributes of a coroutine that Trio reads to show where a task is.

    @property
    def cr_frame(self):
        return None

    @property
    def cr_await(self):
        return self.way


cdef PySendResult send_next(PyObject *of, PyObject *value, PyObject **result) except PYGEN_ERROR:
    cdef _Next self = <_Next>of
    cdef _Source source = self.source
    if source is not None:
        self.source = None
        if source.has_next(self.step, self.given):
            item = source.next_item(self.step, self.given)
            Py_INCREF(item)  # for the caller
            result[0] = <PyObject *>item
            return PYGEN_RETURN
        self.way = source.complete_way(self.step, self.given)
    elif self.way is None:
        raise RuntimeError(REUSED)
    return PyIter_Send(<PyObject *>self.way, value, result)


set_send(<PyObject *>_Next, send_next)
