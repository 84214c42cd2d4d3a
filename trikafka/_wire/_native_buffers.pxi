# Included by _native.pyx: buffers that are read from, and buffers that grow.

cdef class _View:
    """A contiguous buffer held open."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t *>self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef struct Grown:
    # A buffer that grows without the GIL.
    char *data
    Py_ssize_t size
    Py_ssize_t room


cdef int reserve(Grown *grown, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t room
    cdef char *data
    if grown.room - grown.size >= more:
        return OK
    room = grown.room * 2
    if room < grown.size + more:
        room = grown.size + more
    if room < 256:
        room = 256
    data = <char *>realloc(grown.data, room)
    if data == NULL:
        return NO_MEMORY
    grown.data = data
    grown.room = room
    return OK


cdef inline void put(Grown *grown, const void *data, Py_ssize_t size) noexcept nogil:
    if size:
        memcpy(grown.data + grown.size, data, size)
    grown.size += size


cdef inline void put_int32(Grown *grown, int32_t number) noexcept nogil:
    memcpy(grown.data + grown.size, &number, 4)
    grown.size += 4


cdef PyObject *allocate(Py_ssize_t size) except NULL:
    cdef PyObject *made = new_bytes(NULL, size)
    if made == NULL:
        raise MemoryError
    return made


cdef object take(PyObject **slot, Py_ssize_t size):
    """The bytes object in ``slot``, cut to ``size``; the slot is empty afterwards."""
    if bytes_size(slot[0]) != size:
        _PyBytes_Resize(slot, size)
    result = <object>slot[0]
    Py_DECREF(result)
    slot[0] = NULL
    return result


cdef object take_grown(Grown *grown):
    return PyBytes_FromStringAndSize(grown.data, grown.size)
