# Included by _native.pyx: reading columns, and Record objects made from them.

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
