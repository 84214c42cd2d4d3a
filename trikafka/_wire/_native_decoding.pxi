# Included by _native.pyx: sections of records into columns, one pass without the GIL.

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


cdef inline int64_t big_endian(const uint8_t *at, int size) noexcept nogil:
    """A signed number of ``size`` bytes."""
    cdef uint64_t number = 0
    cdef int index
    for index in range(size):
        number = number << 8 | at[index]
    return <int64_t>(number << (64 - 8 * size)) >> (64 - 8 * size)


def end_of_batches(records, int64_t start):
    """See ``_fallback.end_of_batches``."""
    cdef _View view = _View(records)
    cdef const uint8_t *head
    cdef Py_ssize_t position = 0
    cdef int64_t base, size, last_delta, end = start
    while view.size - position >= HEADER_SIZE:
        head = view.data + position
        if <int8_t>head[16] < 2:
            return None
        base, size, last_delta = big_endian(head, 8), big_endian(head + 8, 4), big_endian(head + 23, 4)
        if size < HEADER_SIZE - 12 or size > view.size - position - 12 or (last_delta >= 0 and base >= MAX_INT64 - last_delta):
            break
        if (base >= 0 or last_delta >= 0) and base + last_delta >= end:
            end = base + last_delta + 1
        position += 12 + size
    return end
