# Included by _native.pyx: reading columns, and Record objects made from them.

cdef struct Column:
    # A binary column in plain C; see _BinaryView, which holds its buffers open.
    const int32_t *offsets
    const char *data
    Py_ssize_t size
    const uint8_t *validity  # NULL: none is null
    Py_ssize_t count


cdef inline Py_ssize_t field_of(
    const Column *column, Py_ssize_t index, const char **data
) noexcept nogil:
    """Find the bytes at ``index``; return how many; -1: null, -2: the column is not consistent."""
    cdef int32_t start, end
    data[0] = NULL
    if not 0 <= index < column.count:
        return -2
    if column.validity != NULL and not column.validity[index >> 3] >> (index & 7) & 1:
        return -1
    start, end = column.offsets[index], column.offsets[index + 1]
    if not 0 <= start <= end <= column.size:
        return -2
    data[0] = column.data + start
    return end - start


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
            # The column is longer than its validity: rows beyond it are refused on access.
            self.count = self.validity.size * 8

    cdef Column column(self) noexcept:
        """Return the column as a C struct, valid as long as this view lives."""
        cdef Column made
        made.offsets, made.count = <const int32_t *>self.offsets.data, self.count
        made.data, made.size = <const char *>self.data.data, self.data.size
        made.validity = NULL if self.validity is None else self.validity.data
        return made

    cdef Py_ssize_t average(self, Py_ssize_t count) noexcept:
        """Return about how many bytes each of the first ``count`` rows has, at most those there."""
        cdef const int32_t *offsets = <const int32_t *>self.offsets.data
        if not 0 < count <= self.count:
            return 0
        return min(max(<Py_ssize_t>offsets[count] - offsets[0], 0), self.data.size) // count

    cdef const char *find(self, Py_ssize_t index, Py_ssize_t *length) except? NULL:
        """Return the bytes at ``index``; NULL with length -1 for a null."""
        cdef Column column = self.column()
        cdef const char *data
        length[0] = field_of(&column, index, &data)
        if length[0] < -1:
            raise ValueError("the columns are not consistent")
        return data

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


cdef _BinaryView keys_of(columns):
    """Return the column of keys."""
    return _BinaryView(columns.key_offsets, columns.key_data, columns.key_validity)


cdef _BinaryView values_of(columns):
    """Return the column of values."""
    return _BinaryView(columns.value_offsets, columns.value_data, columns.value_validity)


cdef _HeadersView headers_view(columns):
    """Return the columns of headers; ``None`` if no record has headers."""
    return None if columns.header_offsets is None else _HeadersView(columns)


@cython.final
cdef class _Rows:
    """``Record`` objects of rows, made one by one on demand."""

    cdef _View offsets
    cdef _View timestamps
    cdef _View kinds
    cdef _BinaryView keys
    cdef _BinaryView values
    cdef _HeadersView headers
    cdef object topic
    cdef object partition
    cdef object timestamp  # the last row's, as a Python object: the next is often the same
    cdef int64_t last
    cdef Py_ssize_t row
    cdef Py_ssize_t stop

    def __cinit__(self, columns, topic, partition, Py_ssize_t start, Py_ssize_t stop):
        cdef Py_ssize_t limit
        self.offsets = _View(columns.offsets)
        self.timestamps = _View(columns.timestamps)
        self.kinds = _View(columns.timestamp_types)
        self.keys = keys_of(columns)
        self.values = values_of(columns)
        self.headers = headers_view(columns)
        limit = min(self.offsets.size // 8, self.timestamps.size // 8, self.kinds.size)
        if not 0 <= start <= stop <= limit:
            raise ValueError(f"rows {start} to {stop} of {columns.count}")
        self.topic, self.partition, self.timestamp, self.last = topic, partition, None, -1
        self.row, self.stop = start, stop

    def __iter__(self):
        return self

    def __length_hint__(self):
        return self.stop - self.row

    def __next__(self):
        if self.row >= self.stop:
            raise StopIteration
        return self.make()

    cdef object make(self):
        """Return the next record, not tracked by the garbage collector: it has no cycles."""
        cdef Py_ssize_t row = self.row
        cdef int64_t timestamp = (<const int64_t *>self.timestamps.data)[row]
        cdef PyObject *kind
        self.row = row + 1
        if timestamp != self.last:
            self.timestamp, self.last = None if timestamp == -1 else timestamp, timestamp
        key, value = self.keys.value(row), self.values.value(row)
        headers = () if self.headers is None else self.headers.of(row)
        offset = (<const int64_t *>self.offsets.data)[row]
        record = tuple_of(_RECORD, 8)
        # All eight at once, before any other code can see the tuple. Each item gets its own
        # reference.
        set_item(record, 0, self.topic)
        set_item(record, 1, self.partition)
        set_item(record, 2, offset)
        set_item(record, 3, self.timestamp)
        kind = _CREATE_TIME if not self.kinds.data[row] else _LOG_APPEND_TIME
        set_item(record, 4, <object>kind)
        set_item(record, 5, key)
        set_item(record, 6, value)
        set_item(record, 7, headers)
        PyObject_GC_UnTrack(<void *>record)
        return record


def make_records(columns, topic, partition, Py_ssize_t start, Py_ssize_t stop):
    """Return ``Record`` objects of the rows from ``start`` to ``stop``."""
    cdef _Rows rows = _Rows(columns, topic, partition, start, stop)
    return [rows.make() for _ in range(stop - start)]


def iterate(columns, topic, partition):
    """See ``_fallback.iterate``."""
    return _Rows(columns, topic, partition, 0, columns.count)


cdef inline void set_item(object record, Py_ssize_t index, object item) noexcept:
    Py_INCREF(item)  # PyTuple_SET_ITEM takes over the reference
    PyTuple_SET_ITEM(record, index, item)
