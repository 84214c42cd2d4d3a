# cython: language_level=3, boundscheck=False, wraparound=False
# cython: freethreading_compatible=True
"""CRC-32C, compiled: the functions of ``crc32c.h`` for Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32c.h":
    void crc32c_prepare()
    int crc32c_processor_can()
    uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *at, size_t size) nogil
    uint32_t crc32c_by_processor(uint32_t crc, const uint8_t *at, size_t size) nogil

cdef enum:
    LONG = 65536  # bytes from which on the GIL is released

crc32c_prepare()
cdef bint _by_processor = crc32c_processor_can()


cdef inline uint32_t extend(uint32_t crc, const uint8_t *at, Py_ssize_t size) noexcept nogil:
    return crc32c_by_processor(crc, at, size) if _by_processor else crc32c_by_tables(crc, at, size)


def crc32c(data, uint32_t crc=0):
    """See ``_fallback.crc32c``."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len >= LONG:
            with nogil:
                crc = extend(crc, <const uint8_t *>buffer.buf, buffer.len)
        else:
            crc = extend(crc, <const uint8_t *>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return crc


def by_tables(data, uint32_t crc=0):
    """Return the same without the processor's CRC instruction; for tests."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        return crc32c_by_tables(crc, <const uint8_t *>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
