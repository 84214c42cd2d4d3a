# Included by _native.pyx: records, one by one or from columns, into a batch.

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
    """Write a nullable field; length -1: null."""
    at = write_varint(at, length)
    if length > 0:
        memcpy(at, data, length)
        at += length
    return at


cdef inline object plain(object data):
    """Return ``None``, bytes, or a flat view of another bytes-like object."""
    return data if data is None or PyBytes_CheckExact(data) else memoryview(data).cast("B")


cdef struct Plain:
    # Rows of columns without headers: row numbers (NULL: the positions), their count, their fields.
    const int32_t *rows
    Py_ssize_t count
    const int64_t *timestamps
    Column keys
    Column values


cdef class BatchEncoder:
    """Records encoded into one batch; see ``_fallback.BatchEncoder``."""

    cdef Memory body  # of ``room`` bytes; the first ``length`` are written
    cdef Py_ssize_t length
    cdef Py_ssize_t room
    cdef int64_t first_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly Py_ssize_t count
    cdef object codec
    cdef object level
    cdef object payload
    cdef readonly object owner

    def __init__(self, compression="none", level=None):
        self.owner = None
        if not isinstance(compression, codecs.Codec):
            compression = codecs.codec_named(compression)
        self.codec = compression
        self.level = level
        self.body = None
        self.length = self.room = 0
        self.payload = None
        self.first_timestamp = self.max_timestamp = -1
        self.count = 0

    def belong_to(self, owner):
        """Set the owner of the encoder."""
        self.owner = owner

    @property
    def size(self):
        """The bytes of the batch so far, not compressed."""
        return HEADER_SIZE + self.length

    cdef char *begin(self, int64_t timestamp, Py_ssize_t extra) except NULL:
        """Make room for a record with ``extra`` bytes of fields; return where to write."""
        cdef Py_ssize_t wanted
        if self.payload is not None:
            raise ValueError("the batch is closed")
        if not -1 <= timestamp <= MAX_TIMESTAMP:
            raise ValueError(f"timestamp {timestamp} is out of range")
        wanted = self.length + RECORD_OVERHEAD + extra
        if wanted + HEADER_SIZE > MAX_INT32:
            raise ValueError("the batch exceeds 2 GiB")
        if wanted > self.room:
            self.reserve(max(wanted, min(2 * self.room, self.room + (1 << 20)), 1024))
        return self.body.data + self.length

    cdef int reserve(self, Py_ssize_t room) except -1:
        """Make room for ``room`` bytes of records. The records so far move."""
        cdef Memory larger = memory_for(room, c"B", 1)
        if self.length:
            memcpy(larger.data, self.body.data, self.length)
        self.body, self.room = larger, larger.room
        return 0

    cdef Py_ssize_t finish(self, int64_t timestamp, char *end) except -1:
        """Complete the record that was written up to ``end``; return its index."""
        if not self.count:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.length = end - self.body.data
        self.count += 1
        return self.count - 1

    cdef inline char *write_start(
        self, char *at, int64_t timestamp, const char *key, Py_ssize_t key_size, const char *value,
        Py_ssize_t value_size, Py_ssize_t header_count, Py_ssize_t header_size,
    ) noexcept:
        """Write a record without its ``header_count`` headers of ``header_size`` bytes."""
        cdef int64_t delta = timestamp - self.first_timestamp if self.count else 0
        cdef Py_ssize_t size = 1 + varint_size(delta) + varint_size(self.count)
        size += varint_size(key_size) + varint_size(value_size)
        size += varint_size(header_count) + header_size
        size += max(key_size, 0) + max(value_size, 0)
        at = write_varint(at, size)
        at[0] = 0
        at = write_varint(at + 1, delta)
        at = write_varint(at, self.count)
        at = write_field(at, key, key_size)
        at = write_field(at, value, value_size)
        return write_varint(at, header_count)

    def append(self, int64_t timestamp_ms, key, value, headers=()):
        """Add a record (timestamp -1: none) and return its index in the batch."""
        if (
            headers
            or not (key is None or PyBytes_CheckExact(key))
            or not (value is None or PyBytes_CheckExact(value))
        ):
            return self.append_any(timestamp_ms, plain(key), plain(value), headers or ())
        return self.append_plain(timestamp_ms, key, value)

    cdef Py_ssize_t append_plain(self, int64_t timestamp_ms, key, value) except -1:
        """Append a record whose key and value are each ``None`` or exactly bytes."""
        cdef char *at
        cdef Py_ssize_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        at = self.begin(timestamp_ms, max(key_size, 0) + max(value_size, 0))
        at = self.write_start(
            at, timestamp_ms, NULL if key is None else PyBytes_AS_STRING(key), key_size,
            NULL if value is None else PyBytes_AS_STRING(value), value_size, 0, 0,
        )
        return self.finish(timestamp_ms, at)

    cdef Py_ssize_t append_any(self, int64_t timestamp, key, value, headers) except -1:
        """Append a record with any bytes-like objects and headers."""
        cdef _View key_view = None if key is None else _View(key)
        cdef _View value_view = None if value is None else _View(value)
        cdef Py_ssize_t key_size = -1 if key is None else key_view.size
        cdef Py_ssize_t value_size = -1 if value is None else value_view.size
        cdef char *at
        encoded = b"".join([
            _format.encode_field(name.encode()) + _format.encode_field(plain(content))
            for name, content in headers
        ])
        cdef Py_ssize_t header_size = len(encoded)
        at = self.begin(timestamp, max(key_size, 0) + max(value_size, 0) + header_size)
        at = self.write_start(
            at, timestamp,
            <const char *>NULL if key is None else <const char *>key_view.data, key_size,
            <const char *>NULL if value is None else <const char *>value_view.data, value_size,
            len(headers), header_size,
        )
        memcpy(at, PyBytes_AS_STRING(encoded), header_size)
        return self.finish(timestamp, at + header_size)

    def extend_columns(
        self, columns, *, rows=None, Py_ssize_t start=0, stop=None, Py_ssize_t max_size=MAX_INT32,
    ):
        """Add rows until ``size`` would exceed ``max_size``.

        See ``_fallback.BatchEncoder.extend_columns``.
        """
        cdef _View table = None if rows is None else _View(rows)
        cdef _View timestamps = _View(columns.timestamps)
        cdef _BinaryView keys = keys_of(columns)
        cdef _BinaryView values = values_of(columns)
        cdef _HeadersView headers = headers_view(columns)
        cdef Py_ssize_t count = min(<Py_ssize_t>columns.count, timestamps.size // 8)
        cdef Py_ssize_t limit = count if rows is None else table.size // 4
        cdef Py_ssize_t last = limit if stop is None else stop
        cdef Py_ssize_t position = start
        cdef Py_ssize_t row
        cdef int64_t timestamp
        cdef Plain plain_rows
        if not 0 <= start <= last <= limit:
            raise ValueError(f"rows {start} to {last} of {limit}")
        plain_rows.rows = NULL if rows is None else <const int32_t *>table.data
        plain_rows.count = count
        plain_rows.timestamps = <const int64_t *>timestamps.data
        plain_rows.keys, plain_rows.values = keys.column(), values.column()
        if headers is None and last > start:
            self.expect(last - start, keys.average(count) + values.average(count), max_size)
        while position < last:
            if headers is None:
                position = self.add_plain(&plain_rows, position, last, max_size)
                if position == last:
                    break
            # A row that has headers, has no room or is invalid.
            row = position if rows is None else (<const int32_t *>table.data)[position]
            if not 0 <= row < count:
                raise ValueError(f"row {row} of {count}")
            timestamp = (<const int64_t *>timestamps.data)[row]
            if not self.add_row(row, timestamp, keys, values, headers, max_size):
                return position
            position += 1
        return last

    cdef int expect(self, Py_ssize_t count, Py_ssize_t average, Py_ssize_t max_size) except -1:
        """Make room for about ``count`` records of ``average`` bytes, as far as they fit."""
        cdef Py_ssize_t most = min(max_size, <Py_ssize_t>MAX_INT32) - HEADER_SIZE
        cdef Py_ssize_t wanted = most
        if self.payload is None and count < (most - self.length) // (RECORD_OVERHEAD + average):
            wanted = self.length + count * (RECORD_OVERHEAD + average)
        if self.payload is None and self.length < wanted and wanted > self.room:
            self.reserve(min(most, max(wanted, 2 * self.room)))
        return 0

    cdef Py_ssize_t add_plain(
        self, const Plain *plain_rows, Py_ssize_t position, Py_ssize_t last, Py_ssize_t max_size,
    ) noexcept:
        """Add valid rows without headers as long as there is room; return the next position."""
        cdef Py_ssize_t limit = min(max_size, <Py_ssize_t>MAX_INT32) - HEADER_SIZE
        cdef Py_ssize_t most = min(self.room, limit) - RECORD_OVERHEAD
        cdef Py_ssize_t row, key_size, value_size, size, number = self.count
        cdef int64_t timestamp, delta, first = self.first_timestamp, highest = self.max_timestamp
        cdef const char *key
        cdef const char *value
        cdef char *begin
        cdef char *at
        if self.payload is not None or self.body is None:
            return position
        begin = self.body.data
        at = begin + self.length
        while position < last:
            row = position if plain_rows.rows == NULL else plain_rows.rows[position]
            if not 0 <= row < plain_rows.count:
                break
            timestamp = plain_rows.timestamps[row]
            key_size = field_of(&plain_rows.keys, row, &key)
            value_size = field_of(&plain_rows.values, row, &value)
            size = max(key_size, 0) + max(value_size, 0)
            if key_size < -1 or value_size < -1 or not -1 <= timestamp <= MAX_TIMESTAMP:
                break
            if at - begin + size > most:
                break
            if not number:
                first = timestamp
            highest = max(highest, timestamp)
            delta = timestamp - first
            size += 2 + varint_size(delta) + varint_size(number)
            size += varint_size(key_size) + varint_size(value_size)
            at = write_varint(at, size)
            at[0] = 0
            at = write_varint(at + 1, delta)
            at = write_varint(at, number)
            at = write_field(at, key, key_size)
            at = write_field(at, value, value_size)
            at[0] = 0
            at += 1
            number += 1
            position += 1
        self.length, self.count = at - begin, number
        self.first_timestamp, self.max_timestamp = first, highest
        return position

    cdef bint add_row(
        self, Py_ssize_t row, int64_t timestamp, _BinaryView keys, _BinaryView values,
        _HeadersView headers, Py_ssize_t max_size,
    ) except -1:
        """Add a row of columns; return false if it does not fit."""
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
                header_size += varint_size(name_size) + name_size
                header_size += varint_size(content_size) + max(content_size, 0)
                bound += HEADER_OVERHEAD + name_size + max(content_size, 0)
        if HEADER_SIZE + self.length + RECORD_OVERHEAD + extra + bound > max_size:
            return False
        at = self.begin(timestamp, extra + bound)
        at = self.write_start(
            at, timestamp, key, key_size, value, value_size, end - first, header_size
        )
        for index in range(first, end):
            name = headers.names.find(index, &name_size)
            at = write_field(at, name, name_size)
            content = headers.contents.find(index, &content_size)
            at = write_field(at, content, content_size)
        self.finish(timestamp, at)
        return True

    def close(self):
        """Compress the records and return them; a second call returns the same.

        May run in a thread.
        """
        if self.payload is None:
            records = b"" if self.body is None else self.body.view(self.length)
            if self.codec is not codecs.NONE:
                records = self.codec.compress(records, self.level)
            self.payload = records
            self.body = None
        return self.payload

    def head(self, producer_id, producer_epoch, base_sequence, *, transactional=False):
        """Return the finished batch's header; see ``_fallback.BatchEncoder.head``."""
        return _format.batch_head(
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

    def build(self, producer_id, producer_epoch, base_sequence, *, transactional=False):
        """Return the finished batch under these ids. Raises ``ValueError`` without records."""
        head = self.head(producer_id, producer_epoch, base_sequence, transactional=transactional)
        return b"".join((head, self.close()))
