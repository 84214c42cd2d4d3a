# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The record path, compiled: the same interface, bytes, values and errors as ``_fallback.py``.

Input is hostile. The rule of this file: a pointer moves only after a comparison with the end of its record, and buffers
are sized from the bytes that are really there, never from a number in them. One pass decodes; it runs without the GIL.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from trikafka._wire import _format
from trikafka._wire import compression as codecs
from trikafka.types import Record, TimestampType

cdef extern from *:
    """
    /* An instance of a subclass of tuple with room for n items; the items must be set at once. */
    static PyObject *tuple_of(PyObject *type, Py_ssize_t n) {
        PyObject *made = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, n);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }
    """
    object tuple_of(object type, Py_ssize_t n)

cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size)
    char *bytes_of "PyBytes_AS_STRING"(PyObject *data) nogil
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject *data) nogil
    int _PyBytes_Resize(PyObject **data, Py_ssize_t size) except -1
    void Py_XDECREF(PyObject *data)

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
    NO_MEMORY

cdef enum:
    MIN_RECORD = 7
    RECORD_OVERHEAD = 36
    HEADER_OVERHEAD = 10
    HEADER_SIZE = 61
    MAX_INT32 = 2147483647

cdef int64_t MAX_TIMESTAMP = (<int64_t>1) << 62

cdef tuple _TIMESTAMP_TYPES = (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)


# ---------------------------------------------------------------------------------------------------------- buffers

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


# --------------------------------------------------------------------------------------------------------- decoding

cdef struct Section:
    const uint8_t *start
    const uint8_t *end
    int64_t records
    int64_t base_offset
    int64_t last_offset_delta
    int64_t base_timestamp
    int64_t append_timestamp
    int64_t min_offset
    int8_t timestamp_type


cdef inline int read_varint(const uint8_t **at, const uint8_t *end, int64_t *number) noexcept nogil:
    """A zigzag number of 32 bits."""
    cdef const uint8_t *pos = at[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while pos < end:
        byte = pos[0]
        pos += 1
        if byte < 0x80:
            if shift == 28 and byte > 0x0F:
                return BAD_VARINT
            value |= (<uint64_t>byte) << shift
            at[0] = pos
            number[0] = <int64_t>(value >> 1) ^ -(<int64_t>(value & 1))
            return OK
        if shift == 28:
            return BAD_VARINT
        value |= (<uint64_t>(byte & 0x7F)) << shift
        shift += 7
    return CUT


cdef inline int read_varlong(const uint8_t **at, const uint8_t *end, int64_t *number) noexcept nogil:
    """A zigzag number of 64 bits."""
    cdef const uint8_t *pos = at[0]
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while pos < end:
        byte = pos[0]
        pos += 1
        if byte < 0x80:
            if shift == 63 and byte > 0x01:
                return BAD_VARINT
            value |= (<uint64_t>byte) << shift
            at[0] = pos
            number[0] = <int64_t>(value >> 1) ^ -(<int64_t>(value & 1))
            return OK
        if shift == 63:
            return BAD_VARINT
        value |= (<uint64_t>(byte & 0x7F)) << shift
        shift += 7
    return CUT


cdef inline int read_length(const uint8_t **at, const uint8_t *end, int64_t *length) noexcept nogil:
    """The length of a field whose bytes follow; -1: null."""
    cdef int problem = read_varint(at, end, length)
    if problem:
        return problem
    if length[0] < -1:
        return NEGATIVE_LENGTH
    if length[0] > end - at[0]:
        return CUT
    return OK


cdef struct Row:
    int64_t offset_delta
    int64_t timestamp
    int64_t key_length
    int64_t value_length
    int64_t headers
    const uint8_t *key
    const uint8_t *value
    const uint8_t *first_header


cdef inline int skip_headers(const uint8_t **at, const uint8_t *end, int64_t *count) noexcept nogil:
    """Checks the headers of a record and moves behind them."""
    cdef int64_t length, index
    cdef int problem = read_varint(at, end, count)
    if problem:
        return problem
    if count[0] == 0:
        return OK
    if count[0] < 0 or count[0] > (end - at[0]) // 2:
        return BAD_HEADERS
    for index in range(count[0]):
        problem = read_varint(at, end, &length)
        if problem:
            return problem
        if length < 0:
            return BAD_HEADERS
        if length > end - at[0]:
            return CUT
        at[0] += length
        problem = read_length(at, end, &length)
        if problem:
            return problem
        if length > 0:
            at[0] += length
    return OK


cdef inline int read_record(const Section *section, const uint8_t **at, int64_t last_delta, Row *row) noexcept nogil:
    cdef const uint8_t *stop
    cdef const uint8_t *headers
    cdef int64_t length, time_delta, ignored
    cdef int problem = read_varint(at, section.end, &length)
    if problem:
        return problem
    if length <= 0 or length > section.end - at[0]:
        return CUT
    stop = at[0] + length
    at[0] += 1  # attributes, unused
    problem = read_varlong(at, stop, &time_delta)
    if problem:
        return problem
    problem = read_varint(at, stop, &row.offset_delta)
    if problem:
        return problem
    if row.offset_delta <= last_delta or row.offset_delta > section.last_offset_delta:
        return BAD_OFFSET
    problem = read_length(at, stop, &row.key_length)
    if problem:
        return problem
    row.key = at[0]
    if row.key_length > 0:
        at[0] += row.key_length
    problem = read_length(at, stop, &row.value_length)
    if problem:
        return problem
    row.value = at[0]
    if row.value_length > 0:
        at[0] += row.value_length
    row.first_header = at[0]
    problem = skip_headers(at, stop, &row.headers)
    if problem:
        return problem
    if at[0] != stop:
        return BAD_LENGTH
    if row.headers:
        headers = row.first_header
        read_varint(&headers, stop, &ignored)
        row.first_header = headers
    if section.timestamp_type:
        row.timestamp = section.append_timestamp
    else:
        row.timestamp = <int64_t>(<uint64_t>section.base_timestamp + <uint64_t>time_delta)
        if (time_delta < 0) != (row.timestamp < section.base_timestamp) and time_delta != 0:
            return BAD_TIMESTAMP
    return OK


cdef struct Mark:
    # How far the columns were filled.
    Py_ssize_t count
    Py_ssize_t key_size
    Py_ssize_t value_size
    Py_ssize_t key_nulls
    Py_ssize_t value_nulls
    Py_ssize_t header_count
    Py_ssize_t header_nulls
    Py_ssize_t name_size
    Py_ssize_t content_size


cdef class _Filler:
    """The columns while they are filled. Room is for ``most_records`` and ``most_bytes``, which the input bounds."""

    cdef Mark at
    cdef Py_ssize_t most_records
    cdef PyObject *offsets
    cdef PyObject *timestamps
    cdef PyObject *types
    cdef PyObject *key_offsets
    cdef PyObject *key_data
    cdef PyObject *key_bits
    cdef PyObject *value_offsets
    cdef PyObject *value_data
    cdef PyObject *value_bits
    cdef int32_t *header_offsets
    cdef Grown names
    cdef Grown name_offsets
    cdef Grown contents
    cdef Grown content_offsets
    cdef Grown content_bits

    def __cinit__(self, Py_ssize_t most_records, Py_ssize_t most_bytes):
        self.most_records = most_records
        self.offsets = allocate(8 * most_records)
        self.timestamps = allocate(8 * most_records)
        self.types = allocate(most_records)
        self.key_offsets = allocate(4 * (most_records + 1))
        self.value_offsets = allocate(4 * (most_records + 1))
        self.key_bits = allocate((most_records + 7) // 8)
        self.value_bits = allocate((most_records + 7) // 8)
        self.key_data = allocate(most_bytes)
        self.value_data = allocate(most_bytes)
        memset(bytes_of(self.key_bits), 0, (most_records + 7) // 8)
        memset(bytes_of(self.value_bits), 0, (most_records + 7) // 8)
        (<int32_t *>bytes_of(self.key_offsets))[0] = 0
        (<int32_t *>bytes_of(self.value_offsets))[0] = 0

    def __dealloc__(self):
        Py_XDECREF(self.offsets)
        Py_XDECREF(self.timestamps)
        Py_XDECREF(self.types)
        Py_XDECREF(self.key_offsets)
        Py_XDECREF(self.key_data)
        Py_XDECREF(self.key_bits)
        Py_XDECREF(self.value_offsets)
        Py_XDECREF(self.value_data)
        Py_XDECREF(self.value_bits)
        free(self.header_offsets)
        free(self.names.data)
        free(self.name_offsets.data)
        free(self.contents.data)
        free(self.content_offsets.data)
        free(self.content_bits.data)

    cdef int add_headers(self, const Row *row, const uint8_t *end) noexcept nogil:
        """The headers of a row that ``skip_headers`` has checked; every read is checked again all the same."""
        cdef const uint8_t *pos = row.first_header
        cdef int64_t length, index
        cdef int problem
        if self.header_offsets == NULL:
            self.header_offsets = <int32_t *>calloc(self.most_records + 1, 4)
            if self.header_offsets == NULL or reserve(&self.name_offsets, 4) or reserve(&self.content_offsets, 4):
                return NO_MEMORY
            put_int32(&self.name_offsets, 0)
            put_int32(&self.content_offsets, 0)
        for index in range(row.headers):
            problem = read_length(&pos, end, &length)
            if problem:
                return problem
            if length < 0:
                return BAD_HEADERS
            if reserve(&self.names, length) or reserve(&self.name_offsets, 4):
                return NO_MEMORY
            put(&self.names, pos, length)
            put_int32(&self.name_offsets, <int32_t>self.names.size)
            pos += length
            problem = read_length(&pos, end, &length)
            if problem:
                return problem
            if reserve(&self.contents, length) or reserve(&self.content_offsets, 4) or reserve(&self.content_bits, 1):
                return NO_MEMORY
            if self.at.header_count % 8 == 0:
                self.content_bits.data[self.at.header_count // 8] = 0
                self.content_bits.size = self.at.header_count // 8 + 1
            if length >= 0:
                put(&self.contents, pos, length)
                pos += length
                self.content_bits.data[self.at.header_count // 8] |= <char>(1 << (self.at.header_count % 8))
            else:
                self.at.header_nulls += 1
            put_int32(&self.content_offsets, <int32_t>self.contents.size)
            self.at.header_count += 1
        return OK

    cdef int add_section(self, const Section *section) noexcept nogil:
        cdef int64_t *offsets = <int64_t *>bytes_of(self.offsets)
        cdef int64_t *timestamps = <int64_t *>bytes_of(self.timestamps)
        cdef char *types = bytes_of(self.types)
        cdef int32_t *key_offsets = <int32_t *>bytes_of(self.key_offsets)
        cdef int32_t *value_offsets = <int32_t *>bytes_of(self.value_offsets)
        cdef uint8_t *key_bits = <uint8_t *>bytes_of(self.key_bits)
        cdef uint8_t *value_bits = <uint8_t *>bytes_of(self.value_bits)
        cdef char *key_data = bytes_of(self.key_data)
        cdef char *value_data = bytes_of(self.value_data)
        cdef const uint8_t *pos = section.start
        cdef int64_t last_delta = -1
        cdef int64_t index
        cdef Py_ssize_t row_number = self.at.count
        cdef Py_ssize_t key_size = self.at.key_size
        cdef Py_ssize_t value_size = self.at.value_size
        cdef Row row
        cdef int problem
        for index in range(section.records):
            problem = read_record(section, &pos, last_delta, &row)
            if problem:
                return problem
            last_delta = row.offset_delta
            if section.base_offset + row.offset_delta < section.min_offset:
                continue
            offsets[row_number] = section.base_offset + row.offset_delta
            timestamps[row_number] = row.timestamp
            types[row_number] = section.timestamp_type
            if row.key_length >= 0:
                memcpy(key_data + key_size, row.key, row.key_length)
                key_size += row.key_length
                key_bits[row_number >> 3] |= <uint8_t>(1 << (row_number & 7))
            else:
                self.at.key_nulls += 1
            if row.value_length >= 0:
                memcpy(value_data + value_size, row.value, row.value_length)
                value_size += row.value_length
                value_bits[row_number >> 3] |= <uint8_t>(1 << (row_number & 7))
            else:
                self.at.value_nulls += 1
            if row.headers:
                problem = self.add_headers(&row, pos)
                if problem:
                    return problem
            row_number += 1
            key_offsets[row_number] = <int32_t>key_size
            value_offsets[row_number] = <int32_t>value_size
            if self.header_offsets != NULL:
                self.header_offsets[row_number] = <int32_t>self.at.header_count
        if pos != section.end:
            return LEFTOVER
        self.at.count = row_number
        self.at.key_size = key_size
        self.at.value_size = value_size
        self.at.name_size = self.names.size
        self.at.content_size = self.contents.size
        return OK

    cdef void go_back(self, Mark mark) noexcept nogil:
        """Forgets what a corrupt section has left behind."""
        self.at = mark
        clear_after(<uint8_t *>bytes_of(self.key_bits), mark.count)
        clear_after(<uint8_t *>bytes_of(self.value_bits), mark.count)
        if self.header_offsets != NULL:
            self.names.size = mark.name_size
            self.contents.size = mark.content_size
            self.name_offsets.size = 4 * (mark.header_count + 1)
            self.content_offsets.size = 4 * (mark.header_count + 1)
            self.content_bits.size = (mark.header_count + 7) // 8
            clear_after(<uint8_t *>self.content_bits.data, mark.header_count)

    cdef tuple fields(self):
        cdef Py_ssize_t count = self.at.count
        key_bits = take(&self.key_bits, (count + 7) // 8)
        value_bits = take(&self.value_bits, (count + 7) // 8)
        head = (
            count,
            memoryview(take(&self.offsets, 8 * count)).cast("q"),
            memoryview(take(&self.timestamps, 8 * count)).cast("q"),
            memoryview(take(&self.types, count)).cast("b"),
            memoryview(take(&self.key_offsets, 4 * (count + 1))).cast("i"),
            take(&self.key_data, self.at.key_size),
            key_bits if self.at.key_nulls else None,
            memoryview(take(&self.value_offsets, 4 * (count + 1))).cast("i"),
            take(&self.value_data, self.at.value_size),
            value_bits if self.at.value_nulls else None,
        )
        if not self.at.header_count:
            return head + (None, None, None, None, None, None)
        starts = PyBytes_FromStringAndSize(<char *>self.header_offsets, 4 * (count + 1))
        return head + (
            memoryview(starts).cast("i"),
            memoryview(take_grown(&self.name_offsets)).cast("i"),
            take_grown(&self.names),
            memoryview(take_grown(&self.content_offsets)).cast("i"),
            take_grown(&self.contents),
            take_grown(&self.content_bits) if self.at.header_nulls else None,
        )


cdef void clear_after(uint8_t *bits, Py_ssize_t count) noexcept nogil:
    """Zeroes the bits beyond ``count`` in the last byte that is kept."""
    if bits != NULL and count % 8:
        bits[count // 8] &= <uint8_t>((1 << (count % 8)) - 1)


cdef int fill_all(_Filler filler, const Section *sections, Py_ssize_t count, Py_ssize_t *failed) noexcept nogil:
    cdef Py_ssize_t index
    cdef Mark mark
    cdef int problem
    for index in range(count):
        mark = filler.at
        problem = filler.add_section(&sections[index])
        if problem:
            filler.go_back(mark)
            failed[0] = index
            return problem
    return OK


def fill(sections):
    """Decodes the sections' records into the fields of ``Columns``; see ``_fallback.fill``."""
    cdef Py_ssize_t total = len(sections)
    cdef Py_ssize_t good = 0, size = 0, records = 0, failed = -1
    cdef int problem = OK, later = OK
    cdef _View view = None
    cdef Section *section
    cdef bytes room = PyBytes_FromStringAndSize(NULL, total * sizeof(Section))
    cdef Section *parsed = <Section *>PyBytes_AS_STRING(room)
    cdef Py_ssize_t start, end
    cdef _Filler filler
    held = []
    last = None
    for data, start, end, count, base, last_delta, base_time, kind, append_time, min_offset in sections:
        if view is None or data is not last:
            view = _View(data)
            last = data
            held.append(view)
        if not 0 <= start <= end <= view.size:
            raise ValueError("a section lies outside its data")
        size += end - start
        if size > MAX_INT32:
            later = TOO_LARGE
            break
        section = &parsed[good]
        section.start = view.data + start
        section.end = view.data + end
        section.records = count
        if section.records < 0 or section.records > (end - start) // MIN_RECORD:
            later = BAD_COUNT
            size -= end - start
            break
        section.base_offset = base
        section.last_offset_delta = last_delta
        section.base_timestamp = base_time
        section.timestamp_type = 1 if kind else 0
        section.append_timestamp = append_time
        section.min_offset = min_offset
        records += section.records
        good += 1
    filler = _Filler(records, min(size, <Py_ssize_t>MAX_INT32))
    with nogil:
        problem = fill_all(filler, parsed, good, &failed)
    if problem == NO_MEMORY:
        raise MemoryError
    if not problem and later:
        problem, failed = later, good
    return filler.fields(), failed, problem


# ---------------------------------------------------------------------------------------------------------- records

cdef class _BinaryView:
    """A binary column to read from, with its bounds."""

    cdef _View offsets
    cdef _View data
    cdef _View validity
    cdef Py_ssize_t count

    def __cinit__(self, offsets, data, validity):
        self.offsets = _View(offsets)
        self.data = _View(data)
        self.validity = None if validity is None else _View(validity)
        self.count = self.offsets.size // 4 - 1
        if self.validity is not None and self.count > self.validity.size * 8:
            # A longer column than its validity: what lies beyond is refused when it is asked for.
            self.count = self.validity.size * 8

    cdef const char *find(self, Py_ssize_t index, Py_ssize_t *length) except? NULL:
        """The bytes at ``index``; NULL with length -1 for a null."""
        cdef int32_t start, end
        if not 0 <= index < self.count:
            raise ValueError("the columns are not consistent")
        if self.validity is not None and not self.validity.data[index >> 3] >> (index & 7) & 1:
            length[0] = -1
            return NULL
        start = (<const int32_t *>self.offsets.data)[index]
        end = (<const int32_t *>self.offsets.data)[index + 1]
        if not 0 <= start <= end <= self.data.size:
            raise ValueError("the columns are not consistent")
        length[0] = end - start
        return <const char *>self.data.data + start

    cdef object value(self, Py_ssize_t index):
        cdef Py_ssize_t length
        cdef const char *data = self.find(index, &length)
        return None if length < 0 else PyBytes_FromStringAndSize(data, length)


cdef class _HeadersView:
    """The header columns to read from."""

    cdef _View starts
    cdef _BinaryView names
    cdef _BinaryView contents

    def __cinit__(self, columns):
        self.starts = _View(columns.header_offsets)
        self.names = _BinaryView(columns.header_name_offsets, columns.header_name_data, None)
        self.contents = _BinaryView(
            columns.header_value_offsets, columns.header_value_data, columns.header_value_validity
        )

    cdef int bounds(self, Py_ssize_t row, int32_t *first, int32_t *last) except -1:
        if row < 0 or row + 1 >= self.starts.size // 4:
            raise ValueError("the columns are not consistent")
        first[0] = (<const int32_t *>self.starts.data)[row]
        last[0] = (<const int32_t *>self.starts.data)[row + 1]
        if not 0 <= first[0] <= last[0]:
            raise ValueError("the columns are not consistent")
        return 0

    cdef tuple of(self, Py_ssize_t row):
        cdef int32_t first, last, index
        cdef Py_ssize_t length
        cdef const char *name
        self.bounds(row, &first, &last)
        if first == last:
            return ()
        made = []
        for index in range(first, last):
            name = self.names.find(index, &length)
            made.append((PyUnicode_DecodeUTF8(name, length, NULL), self.contents.value(index)))
        return tuple(made)


def make_records(columns, topic, partition, Py_ssize_t start, Py_ssize_t stop):
    """``Record`` objects of the rows from ``start`` to ``stop``."""
    cdef _View offsets = _View(columns.offsets)
    cdef _View timestamps = _View(columns.timestamps)
    cdef _View kinds = _View(columns.timestamp_types)
    cdef _BinaryView keys = _BinaryView(columns.key_offsets, columns.key_data, columns.key_validity)
    cdef _BinaryView values = _BinaryView(columns.value_offsets, columns.value_data, columns.value_validity)
    cdef _HeadersView headers = None
    cdef Py_ssize_t row
    cdef int64_t timestamp
    if columns.header_offsets is not None:
        headers = _HeadersView(columns)
    if not 0 <= start <= stop <= min(offsets.size // 8, timestamps.size // 8, kinds.size):
        raise ValueError(f"rows {start} to {stop} of {columns.count}")
    made = []
    for row in range(start, stop):
        timestamp = (<const int64_t *>timestamps.data)[row]
        record = tuple_of(Record, 8)
        # All eight at once, before anything else can see the tuple; each item gets a reference of its own.
        fill_record(
            record, topic, partition, (<const int64_t *>offsets.data)[row], None if timestamp == -1 else timestamp,
            _TIMESTAMP_TYPES[1 if kinds.data[row] else 0], keys.value(row), values.value(row),
            () if headers is None else headers.of(row),
        )
        made.append(record)
    return made


cdef int fill_record(record, topic, partition, offset, timestamp, kind, key, value, headers) except -1:
    set_item(record, 0, topic)
    set_item(record, 1, partition)
    set_item(record, 2, offset)
    set_item(record, 3, timestamp)
    set_item(record, 4, kind)
    set_item(record, 5, key)
    set_item(record, 6, value)
    set_item(record, 7, headers)
    return 0


cdef inline void set_item(object record, Py_ssize_t index, object item) noexcept:
    Py_INCREF(item)  # PyTuple_SET_ITEM takes it over
    PyTuple_SET_ITEM(record, index, item)


# --------------------------------------------------------------------------------------------------------- encoding

cdef inline Py_ssize_t varint_size(int64_t number) noexcept nogil:
    cdef uint64_t value = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline char *write_varint(char *at, int64_t number) noexcept nogil:
    cdef uint64_t value = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while value >= 0x80:
        at[0] = <char>(value & 0x7F | 0x80)
        at += 1
        value >>= 7
    at[0] = <char>value
    return at + 1


cdef inline char *write_field(char *at, const char *data, Py_ssize_t length) noexcept nogil:
    """A nullable field; length -1: null."""
    at = write_varint(at, length)
    if length > 0:
        memcpy(at, data, length)
        at += length
    return at


cdef inline object plain(object data):
    """``None``, bytes, or a flat view of another bytes-like object."""
    return data if data is None or PyBytes_CheckExact(data) else memoryview(data).cast("B")


cdef class BatchEncoder:
    """Records going into one batch; see ``_fallback.BatchEncoder``."""

    cdef object body
    cdef Py_ssize_t length
    cdef Py_ssize_t room
    cdef int64_t first_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly Py_ssize_t count
    cdef object codec
    cdef object level
    cdef object payload

    def __init__(self, compression="none", level=None):
        self.codec = codecs.codec_named(compression)
        self.level = level
        self.body = bytearray()
        self.length = self.room = 0
        self.payload = None
        self.first_timestamp = self.max_timestamp = -1
        self.count = 0

    @property
    def size(self):
        """Bytes of the batch, not compressed, as it stands."""
        return HEADER_SIZE + self.length

    def size_after(self, key, value, headers=()):
        """An upper bound of ``size`` after this record."""
        cdef Py_ssize_t size = HEADER_SIZE + self.length + RECORD_OVERHEAD
        size += (0 if key is None else len(key)) + (0 if value is None else len(value))
        if headers:
            for name, content in headers:
                size += HEADER_OVERHEAD + len(name.encode()) + (0 if content is None else len(content))
        return size

    cdef char *begin(self, int64_t timestamp, Py_ssize_t extra) except NULL:
        """Room for a record with ``extra`` bytes of fields; the place to write it to."""
        cdef Py_ssize_t wanted
        if self.payload is not None:
            raise ValueError("the batch is closed")
        if not -1 <= timestamp <= MAX_TIMESTAMP:
            raise ValueError(f"timestamp {timestamp} is out of range")
        wanted = self.length + RECORD_OVERHEAD + extra
        if wanted + HEADER_SIZE > MAX_INT32:
            raise ValueError("the batch exceeds 2 GiB")
        if wanted > self.room:
            wanted = max(wanted, min(2 * self.room, self.room + (1 << 20)), 1024)
            PyByteArray_Resize(self.body, wanted)
            self.room = wanted
        return PyByteArray_AS_STRING(self.body) + self.length

    cdef Py_ssize_t finish(self, int64_t timestamp, char *end) except -1:
        """The record is written up to ``end``."""
        if not self.count:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.length = end - PyByteArray_AS_STRING(self.body)
        self.count += 1
        return self.count - 1

    cdef inline char *write_start(
        self, char *at, int64_t timestamp, const char *key, Py_ssize_t key_size, const char *value,
        Py_ssize_t value_size, Py_ssize_t header_count, Py_ssize_t header_size,
    ) noexcept:
        """All of a record but its headers, of which there are ``header_count`` in ``header_size`` bytes."""
        cdef int64_t delta = timestamp - self.first_timestamp if self.count else 0
        cdef Py_ssize_t size = 1 + varint_size(delta) + varint_size(self.count) + varint_size(key_size)
        size += varint_size(value_size) + varint_size(header_count) + header_size
        size += max(key_size, 0) + max(value_size, 0)
        at = write_varint(at, size)
        at[0] = 0
        at = write_varint(at + 1, delta)
        at = write_varint(at, self.count)
        at = write_field(at, key, key_size)
        at = write_field(at, value, value_size)
        return write_varint(at, header_count)

    def append(self, int64_t timestamp_ms, key, value, headers=()):
        """Adds a record (timestamp -1: none) and returns its index in the batch."""
        cdef char *at
        if headers or not (key is None or PyBytes_CheckExact(key)) or not (value is None or PyBytes_CheckExact(value)):
            return self.append_any(timestamp_ms, plain(key), plain(value), headers or ())
        cdef Py_ssize_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        at = self.begin(timestamp_ms, max(key_size, 0) + max(value_size, 0))
        at = self.write_start(
            at, timestamp_ms, NULL if key is None else PyBytes_AS_STRING(key), key_size,
            NULL if value is None else PyBytes_AS_STRING(value), value_size, 0, 0,
        )
        return self.finish(timestamp_ms, at)

    cdef Py_ssize_t append_any(self, int64_t timestamp, key, value, headers) except -1:
        """As ``append``, for bytes-like objects and headers."""
        cdef _View key_view = None if key is None else _View(key)
        cdef _View value_view = None if value is None else _View(value)
        cdef Py_ssize_t key_size = -1 if key is None else key_view.size
        cdef Py_ssize_t value_size = -1 if value is None else value_view.size
        cdef char *at
        encoded = b"".join([
            _format.encode_field(name.encode()) + _format.encode_field(plain(content)) for name, content in headers
        ])
        cdef Py_ssize_t header_size = len(encoded)
        at = self.begin(timestamp, max(key_size, 0) + max(value_size, 0) + header_size)
        at = self.write_start(
            at, timestamp, <const char *>NULL if key is None else <const char *>key_view.data, key_size,
            <const char *>NULL if value is None else <const char *>value_view.data, value_size, len(headers), header_size,
        )
        memcpy(at, PyBytes_AS_STRING(encoded), header_size)
        return self.finish(timestamp, at + header_size)

    def extend_columns(self, columns, *, rows=None, Py_ssize_t start=0, stop=None, Py_ssize_t max_size=MAX_INT32):
        """Adds rows until ``size`` would exceed ``max_size``; see ``_fallback.BatchEncoder.extend_columns``."""
        cdef _View table = None if rows is None else _View(rows)
        cdef _View timestamps = _View(columns.timestamps)
        cdef _BinaryView keys = _BinaryView(columns.key_offsets, columns.key_data, columns.key_validity)
        cdef _BinaryView values = _BinaryView(columns.value_offsets, columns.value_data, columns.value_validity)
        cdef _HeadersView headers = None if columns.header_offsets is None else _HeadersView(columns)
        cdef Py_ssize_t count = min(<Py_ssize_t>columns.count, timestamps.size // 8)
        cdef Py_ssize_t limit = count if rows is None else table.size // 4
        cdef Py_ssize_t last = limit if stop is None else stop
        cdef Py_ssize_t position, row, extra
        if not 0 <= start <= last <= limit:
            raise ValueError(f"rows {start} to {last} of {limit}")
        for position in range(start, last):
            row = position if rows is None else (<const int32_t *>table.data)[position]
            if not 0 <= row < count:
                raise ValueError(f"row {row} of {count}")
            if not self.add_row(row, (<const int64_t *>timestamps.data)[row], keys, values, headers, max_size):
                return position
        return last

    cdef bint add_row(
        self, Py_ssize_t row, int64_t timestamp, _BinaryView keys, _BinaryView values, _HeadersView headers,
        Py_ssize_t max_size,
    ) except -1:
        """Adds a row of columns; false if it does not fit."""
        cdef Py_ssize_t key_size, value_size, name_size, content_size
        cdef const char *key = keys.find(row, &key_size)
        cdef const char *value = values.find(row, &value_size)
        cdef Py_ssize_t extra = max(key_size, 0) + max(value_size, 0)
        cdef Py_ssize_t header_size = 0, bound = 0
        cdef int32_t first = 0, end = 0, index
        cdef const char *name
        cdef const char *content
        cdef char *at
        if headers is not None:
            headers.bounds(row, &first, &end)
            for index in range(first, end):
                headers.names.find(index, &name_size)
                headers.contents.find(index, &content_size)
                header_size += varint_size(name_size) + name_size + varint_size(content_size) + max(content_size, 0)
                bound += HEADER_OVERHEAD + name_size + max(content_size, 0)
        if self.count and HEADER_SIZE + self.length + RECORD_OVERHEAD + extra + bound > max_size:
            return False
        at = self.begin(timestamp, extra + bound)
        at = self.write_start(at, timestamp, key, key_size, value, value_size, end - first, header_size)
        for index in range(first, end):
            name = headers.names.find(index, &name_size)
            at = write_field(at, name, name_size)
            content = headers.contents.find(index, &content_size)
            at = write_field(at, content, content_size)
        self.finish(timestamp, at)
        return True

    def close(self):
        """Compresses the records and returns them; a second call returns the same. May run in a thread."""
        if self.payload is None:
            PyByteArray_Resize(self.body, self.length)
            self.room = self.length
            self.payload = self.codec.compress(self.body, self.level)
            self.body = bytearray()
        return self.payload

    def build(self, producer_id, producer_epoch, base_sequence, *, transactional=False):
        """The finished batch under these ids. Raises ``ValueError`` if it has no records."""
        return _format.build_batch(
            self.close(),
            codec_id=self.codec.id,
            count=self.count,
            first_timestamp=self.first_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )


# ----------------------------------------------------------------------------------------------------- partitioning

cdef uint32_t murmur2_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t state = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t pos = 0
    while size - pos >= 4:
        k = data[pos] | <uint32_t>data[pos + 1] << 8 | <uint32_t>data[pos + 2] << 16 | <uint32_t>data[pos + 3] << 24
        k *= m
        k ^= k >> 24
        state = state * m ^ k * m
        pos += 4
    if pos < size:
        k = 0
        while size > pos:
            size -= 1
            k = k << 8 | data[size]
        state = (state ^ k) * m
    state = (state ^ state >> 13) * m
    return state ^ state >> 15


def murmur2(data):
    """Kafka's murmur2 as a signed 32-bit integer."""
    cdef _View view = _View(data)
    return <int32_t>murmur2_of(view.data, view.size)


def partition_columns(key_offsets, key_data, key_validity, int32_t n_partitions):
    """The partition of each key of an Arrow binary column; -1 where it is null."""
    if n_partitions < 1:
        raise ValueError("no partitions")
    cdef _BinaryView keys = _BinaryView(key_offsets, key_data, key_validity)
    cdef Py_ssize_t count = keys.offsets.size // 4 - 1
    cdef Py_ssize_t index, size
    cdef const char *key
    made = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef int32_t *result = <int32_t *>PyBytes_AS_STRING(made)
    for index in range(count):
        key = keys.find(index, &size)
        if size < 0:
            result[index] = -1
        else:
            result[index] = <int32_t>((murmur2_of(<const uint8_t *>key, size) & 0x7FFFFFFF) % <uint32_t>n_partitions)
    return memoryview(made).cast("i")


def group_rows(partitions, int32_t n_partitions):
    """Row numbers sorted by partition (stable), and where each partition's begin and end."""
    cdef _View wanted = _View(partitions)
    cdef const int32_t *given = <const int32_t *>wanted.data
    cdef Py_ssize_t count = wanted.size // 4
    cdef Py_ssize_t row
    cdef int32_t partition
    if n_partitions < 0:
        raise ValueError("no partitions")
    bounds = bytearray(4 * (n_partitions + 1))
    nexts = bytearray(4 * (n_partitions + 1))
    cdef int32_t *starts = <int32_t *>PyByteArray_AS_STRING(bounds)
    cdef int32_t *places = <int32_t *>PyByteArray_AS_STRING(nexts)
    for row in range(count):
        if not 0 <= given[row] < n_partitions:
            raise ValueError(f"partition {given[row]} of {n_partitions}")
        starts[given[row] + 1] += 1
    for partition in range(n_partitions):
        starts[partition + 1] += starts[partition]
        places[partition] = starts[partition]
    made = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef int32_t *rows = <int32_t *>PyBytes_AS_STRING(made)
    for row in range(count):
        rows[places[given[row]]] = <int32_t>row
        places[given[row]] += 1
    return memoryview(made).cast("i"), memoryview(bytes(bounds)).cast("i")
