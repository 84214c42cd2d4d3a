# Included by _native.pyx: the fields of one record, each checked against its end.
#
# Varints are the core of decoding: a record without headers has six. A number is zigzag encoded,
# seven bits a byte, the lowest first. The last byte allowed may only have the bits that are left
# (0x0F of the fifth byte for 32 bits, 0x01 of the tenth for 64): anything else is refused, as the
# pure implementation refuses it, so that both read the same bytes as the same records.

cdef inline int read_varint(const uint8_t **at, const uint8_t *end, int64_t *number) noexcept nogil:
    """Read a zigzag number of 32 bits."""
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


cdef inline int read_varlong(
    const uint8_t **at, const uint8_t *end, int64_t *number
) noexcept nogil:
    """Read a zigzag number of 64 bits."""
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
    """Read the length of a field whose bytes follow; -1: null."""
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
    int64_t name_size
    int64_t content_size
    const uint8_t *key
    const uint8_t *value


cdef inline int skip_headers(const uint8_t **at, const uint8_t *end, Row *row) noexcept nogil:
    """Check the headers of a record and move behind them."""
    cdef int64_t length, index
    cdef int problem = read_varint(at, end, &row.headers)
    if problem:
        return problem
    row.name_size = row.content_size = 0
    if row.headers == 0:
        return OK
    if row.headers < 0 or row.headers > (end - at[0]) // 2:
        return BAD_HEADERS
    for index in range(row.headers):
        problem = read_varint(at, end, &length)
        if problem:
            return problem
        if length < 0:
            return BAD_HEADERS
        if length > end - at[0]:
            return CUT
        at[0] += length
        row.name_size += length
        problem = read_length(at, end, &length)
        if problem:
            return problem
        if length > 0:
            at[0] += length
            row.content_size += length
    return OK


cdef inline int read_record(
    const Section *section, const uint8_t **at, int64_t last_delta, Row *row
) noexcept nogil:
    cdef const uint8_t *stop
    cdef int64_t length, time_delta
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
    problem = skip_headers(at, stop, row)
    if problem:
        return problem
    if at[0] != stop:
        return BAD_LENGTH
    if section.timestamp_type:
        row.timestamp = section.append_timestamp
    else:
        row.timestamp = <int64_t>(<uint64_t>section.base_timestamp + <uint64_t>time_delta)
        if (time_delta < 0) != (row.timestamp < section.base_timestamp) and time_delta != 0:
            return BAD_TIMESTAMP
    return OK
