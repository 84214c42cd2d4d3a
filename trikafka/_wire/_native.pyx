# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
# cython: freethreading_compatible=True
"""The record path, compiled: the same interface, bytes, values and errors as ``_fallback.py``.

Input is hostile. The rules of this file: a pointer moves only after a comparison with the end of
its record, and buffers are sized from the bytes that are really there, never from a number in them.
Decoding runs without the GIL.

Several threads may be in this module at once, also without a GIL: what they share is the pool of
memory, which has a lock. An object made here is for one thread at a time, as its client is.

The files that are included below, in order of use:

- buffers, pool: memory to read from, and memory that is reused;
- walking: over batch headers, with checksums, to sections of records;
- reading, decoding: the fields of a record; sections to columns, in two passes;
- records, iterating: ``Record`` objects from columns, all at once or one by one to a task;
- sharing: the same for a share consumer, with the acknowledgement of each record;
- encoding: records, single or from columns, into a batch;
- partitioning, producing: the hashes of keys; the fast path of a producer's record;
- lines, json: columns from lines of text or of JSON, and back, for the command.

What is compiled is the work for each record, where a Python call would cost more than the work.
``Record`` objects and delivery handles are made without the garbage collector's attention: programs
hold millions of them, they cannot be part of a cycle, and each collection would walk over them all.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from trikafka._wire import _format
from trikafka._wire import compression as codecs
from trikafka.types import Record, TimestampType

cdef extern from *:
    """
    /* Make an instance of a subclass of tuple with room for n items; set the items at once. */
    static PyObject *tuple_of(PyObject *type, Py_ssize_t n) {
        PyObject *made = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, n);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }
    """
    object tuple_of(PyObject *type, Py_ssize_t n)

cdef extern from *:
    """
    #include <time.h>
    static PyObject *new_of(PyObject *type, PyObject *none) {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, none, NULL);
    }
    /* Milliseconds since the epoch; -1: the clock cannot be read. */
    static int64_t now_ms(void) {
        struct timespec now;
        if (!timespec_get(&now, TIME_UTC)) return -1;
        return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }
    """
    object new_of(object type, object none)
    int64_t now_ms() noexcept nogil

cdef extern from "Python.h":
    bint PyObject_IS_GC(object data)
    void PyObject_GC_UnTrack(void *data)

# Numbers of _format.REASONS; tests hold the two lists together.
cdef enum Reason:
    OK = 0
    BAD_VARINT
    CUT
    BAD_LENGTH
    NEGATIVE_LENGTH
    BAD_HEADERS
    BAD_OFFSET
    BAD_TIMESTAMP
    LEFTOVER
    BAD_COUNT
    TOO_LARGE

cdef enum:
    MIN_RECORD = 7
    RECORD_OVERHEAD = 36
    HEADER_OVERHEAD = 10
    HEADER_SIZE = 61
    MAX_INT32 = 2147483647

cdef int64_t MAX_TIMESTAMP = (<int64_t>1) << 62
cdef int64_t MAX_INT64 = 0x7FFFFFFFFFFFFFFF

cdef extern from *:
    """
    /* Make an object immortal that this thread has made, on a Python without a GIL: no thread counts
       references to it from then on. An object of another thread is left as it is. */
    static void uncount(PyObject *thing) {
    #ifdef Py_GIL_DISABLED
        if (_Py_IsOwnedByCurrentThread(thing)) Py_SET_REFCNT(thing, PY_SSIZE_T_MAX);
    #endif
    }
    """
    void uncount(PyObject *thing) noexcept

# What each record refers to, as pointers to objects that live as long as the process. A name of the
# module would count a reference at each reading, and threads without a GIL contend for that count.
# Each record still counts one for itself, unless the object is immortal (``uncount_references``).
cdef PyObject *_RECORD = kept(Record)
cdef PyObject *_CREATE_TIME = kept(TimestampType.CREATE_TIME)
cdef PyObject *_LOG_APPEND_TIME = kept(TimestampType.LOG_APPEND_TIME)


cdef PyObject *kept(object thing) noexcept:
    """Return a pointer to ``thing``, which is never freed."""
    Py_INCREF(thing)
    return <PyObject *>thing


def uncount_references():
    """See ``_fallback.uncount_references``."""
    # Not the class: its count has a part in each thread already.
    uncount(_CREATE_TIME)
    uncount(_LOG_APPEND_TIME)


uncount_references()  # of programs that import this module in the thread of trikafka.types


include "_native_buffers.pxi"
include "_native_pool.pxi"
include "_native_walking.pxi"
include "_native_reading.pxi"
include "_native_decoding.pxi"
include "_native_records.pxi"
include "_native_iterating.pxi"
include "_native_sharing.pxi"
include "_native_encoding.pxi"
include "_native_partitioning.pxi"
include "_native_producing.pxi"
include "_native_lines.pxi"
include "_native_json.pxi"
