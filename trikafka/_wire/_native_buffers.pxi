# Included by _native.pyx: buffers that are read from.

cdef class _View:
    """A contiguous buffer, held open while the view lives."""

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
