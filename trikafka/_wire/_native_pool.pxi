# Included by _native.pyx: memory that is reused, for columns and for frames.
#
# Fresh memory costs the kernel more than the bytes that go into it, and the allocator returns large
# blocks to the system at once. So freed blocks wait here for the next request, by size, at most
# MOST_FREE bytes of them. Blocks that nothing has needed for a second are freed. That is checked
# whenever a block is returned, and by trim_memory().
#
# Clients in several threads share the pool. The GIL is its lock: nothing here is called without it.
# A Python without the GIL has a mutex instead. No Python code runs while that is held.

cdef enum:
    SMALLEST = 16384  # a smaller block is the allocator's
    MOST_FREE = 67108864
    CLASSES = 49  # the last is of MOST_FREE
    A_SECOND = 1000


cdef struct Free:
    Free *next


cdef struct SizeClass:
    Free *first
    Py_ssize_t count
    Py_ssize_t least  # the fewest free blocks since the last look


cdef SizeClass _classes[CLASSES]
cdef Py_ssize_t _free_bytes = 0
cdef int64_t _last_look = 0

cdef extern from *:
    """
    /* The sanitizers see a step beyond the end only where each block has its exact size and is
       freed at once. */
    #if defined(__SANITIZE_ADDRESS__)
    #define POOLED 0
    #else
    #define POOLED 1
    #endif
    #ifdef Py_GIL_DISABLED
    static PyMutex pool_mutex;
    #define lock_pool() PyMutex_Lock(&pool_mutex)
    #define unlock_pool() PyMutex_Unlock(&pool_mutex)
    #else
    #define lock_pool() ((void)0)
    #define unlock_pool() ((void)0)
    #endif
    """
    bint POOLED
    void lock_pool() noexcept
    void unlock_pool() noexcept


cdef inline Py_ssize_t room_of(int index) noexcept:
    """Return the size of a class: four between one power of two and the next."""
    return <Py_ssize_t>(4 + (index & 3)) << (12 + (index >> 2))


cdef char *take_block(Py_ssize_t size, Py_ssize_t *room) noexcept:
    """Return a block of ``size`` bytes or a little more; NULL: there is no memory."""
    cdef int index = 0, other
    cdef Free *block
    global _free_bytes
    room[0] = max(size, 1)
    if POOLED and SMALLEST <= size <= MOST_FREE:
        while room_of(index) < size:
            index += 1
        lock_pool()
        # A block of the next two classes serves as well: it wastes at most half of the request's
        # size, which costs less than fresh memory.
        for other in range(index, min(index + 3, CLASSES)):
            block = _classes[other].first
            if block != NULL:
                _classes[other].first = block.next
                _classes[other].count -= 1
                _classes[other].least = min(_classes[other].least, _classes[other].count)
                room[0] = room_of(other)
                _free_bytes -= room[0]
                unlock_pool()
                return <char *>block
        unlock_pool()
        room[0] = room_of(index)
    return <char *>PyMem_RawMalloc(room[0])


cdef void give_block(char *data, Py_ssize_t room) noexcept:
    cdef int index = 0
    cdef Free *block = <Free *>data
    global _free_bytes
    if not POOLED or not SMALLEST <= room <= MOST_FREE:
        PyMem_RawFree(data)
        return
    while room_of(index) < room:
        index += 1
    lock_pool()
    look(now_ms())
    if _free_bytes + room <= MOST_FREE:
        block.next = _classes[index].first
        _classes[index].first = block
        _classes[index].count += 1
        _free_bytes += room
        block = NULL
    unlock_pool()
    PyMem_RawFree(block)


cdef void look(int64_t now) noexcept:
    """Free the blocks that were not needed since the last look, at least a second ago.

    The caller holds the pool's lock.
    """
    cdef int index
    cdef Free *block
    global _free_bytes, _last_look
    if 0 <= now - _last_look < A_SECOND:
        return
    _last_look = now
    for index in range(CLASSES):
        while _classes[index].least > 0:
            block = _classes[index].first
            _classes[index].first = block.next
            _classes[index].count -= 1
            _classes[index].least -= 1
            _free_bytes -= room_of(index)
            PyMem_RawFree(block)
        _classes[index].least = _classes[index].count


@cython.final
@cython.no_gc
@cython.freelist(32)
cdef class Memory:
    """A block, and its visible part as numbers of one format.

    The block returns to the pool when the last view of it is gone.
    """

    cdef char *data
    cdef Py_ssize_t room
    cdef Py_ssize_t size
    cdef Py_ssize_t count
    cdef Py_ssize_t width
    cdef char[2] format
    cdef bint writable

    def __cinit__(self):
        self.data = NULL

    def __dealloc__(self):
        if self.data != NULL:
            give_block(self.data, self.room)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE and not self.writable:
            raise BufferError("columns cannot be written to")
        buffer.buf = self.data
        buffer.len = self.size
        buffer.readonly = not self.writable
        buffer.itemsize = self.width
        buffer.format = self.format if flags & PyBUF_FORMAT else NULL
        buffer.ndim = 1
        buffer.shape = &self.count if flags & PyBUF_ND else NULL
        buffer.strides = &self.width if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL
        buffer.obj = self

    cdef object view(self, Py_ssize_t count):
        """Return a read-only view of the first ``count`` numbers."""
        self.count = count
        self.size = count * self.width
        return PyMemoryView_FromObject(self)


cdef Memory memory_for(Py_ssize_t count, char format, Py_ssize_t width):
    """Return room for ``count`` numbers; the content is undefined."""
    cdef Memory made = Memory.__new__(Memory)
    made.data = take_block(count * width, &made.room)
    if made.data == NULL:
        raise MemoryError
    made.format[0], made.format[1] = format, 0
    made.width = width
    made.count = count
    made.size = count * width
    return made


def writable_memory(Py_ssize_t size):
    """See ``_fallback.writable_memory``."""
    cdef Memory made
    if size < 0:
        raise ValueError(f"{size} bytes")
    made = memory_for(size, c"B", 1)
    made.writable = True
    return PyMemoryView_FromObject(made)


def free_memory():
    """See ``_fallback.free_memory``."""
    return _free_bytes


def trim_memory(bint at_once=False):
    """See ``_fallback.trim_memory``."""
    lock_pool()
    look(_last_look + A_SECOND if at_once else now_ms())
    unlock_pool()
