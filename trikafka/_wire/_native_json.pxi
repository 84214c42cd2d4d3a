# Included by _native.pyx: columns from lines of JSON.
#
# Only simple lines become columns: one flat object, each name once and without escapes, no blanks
# but spaces and tabs. The slow reader (trikafka.cli.record_lines.from_json) accepts every line that
# is accepted here, with the same record. One wrong or unusual line makes the whole block refused.
# The slow reader then reads the block, and finds the line and the reason.

cdef enum:
    JSON_KEY, JSON_VALUE, JSON_HEADER_NAME, JSON_HEADER_VALUE, JSON_COLUMNS
    JSON_NUMBER_DIGITS = 18  # these always fit into 64 bits


# The members of a line. Each has one bit of a mask, so that a second one of a name is seen.
cdef enum:
    AS_KEY = 1
    AS_VALUE = 2
    AS_HEADERS = 4
    AS_TIMESTAMP = 8
    AS_PARTITION = 16
    AS_TOPIC = 32
    AS_OFFSET = 64
    AS_KIND = 128


cdef struct JsonColumns:
    # What is written: four binary columns, by JSON_KEY to JSON_HEADER_VALUE, and two of numbers.
    char *data[4]
    int32_t *offsets[4]
    uint8_t *bits[4]
    int32_t ends[4]
    int32_t *headers  # the first header of each row
    int32_t headers_count
    int64_t *timestamps
    int32_t *partitions
    int members  # of any line
    const char *topic  # of the first line
    Py_ssize_t topic_size  # -1: the first line names none
    bint one_topic  # all lines have to name that one, or all none


cdef inline const char *skip_blanks(const char *at, const char *end) noexcept nogil:
    while at < end and (at[0] == c" " or at[0] == c"\t"):
        at += 1
    return at


cdef inline const char *skip_sign(const char *at, const char *end, char sign) noexcept nogil:
    """Return the place behind a sign and the blanks around it. Return NULL if it is not there."""
    at = skip_blanks(at, end)
    if at >= end or at[0] != sign:
        return NULL
    return skip_blanks(at + 1, end)


cdef inline const char *plain_end(const char *at, const char *end) noexcept nogil:
    """Return the first quote, backslash or control character, or ``end`` if there is none."""
    cdef uint64_t eight, quote, slash
    cdef uint64_t ones = 0x0101010101010101
    while end - at >= 8:
        memcpy(&eight, at, 8)
        quote = eight ^ (ones * 0x22)
        slash = eight ^ (ones * 0x5C)
        # The high bit of a byte is set if the byte is below 0x20, or, after the exclusive or, zero.
        # A carry may set it for bytes above such a one, too; the loop below finds the first.
        if (
            ((eight - ones * 0x20) & ~eight)
            | ((quote - ones) & ~quote)
            | ((slash - ones) & ~slash)
        ) & (ones * 0x80):
            break
        at += 8
    while at < end and <uint8_t>at[0] >= 0x20 and at[0] != c'"' and at[0] != c"\\":
        at += 1
    return at


cdef int hex_of(const char *at) noexcept nogil:
    """Return the number of four hexadecimal digits. Return -1 if they are not valid."""
    cdef int index, found = 0
    cdef char digit
    for index in range(4):
        digit = at[index]
        if c"0" <= digit <= c"9":
            found = found << 4 | (digit - c"0")
        elif c"a" <= digit <= c"f":
            found = found << 4 | (digit - c"a" + 10)
        elif c"A" <= digit <= c"F":
            found = found << 4 | (digit - c"A" + 10)
        else:
            return -1
    return found


cdef char *write_utf8(char *at, int point) noexcept nogil:
    if point < 0x80:
        at[0] = <char>point
        return at + 1
    if point < 0x800:
        at[0] = <char>(0xC0 | point >> 6)
        at[1] = <char>(0x80 | point & 0x3F)
        return at + 2
    if point < 0x10000:
        at[0] = <char>(0xE0 | point >> 12)
        at[1] = <char>(0x80 | point >> 6 & 0x3F)
        at[2] = <char>(0x80 | point & 0x3F)
        return at + 3
    at[0] = <char>(0xF0 | point >> 18)
    at[1] = <char>(0x80 | point >> 12 & 0x3F)
    at[2] = <char>(0x80 | point >> 6 & 0x3F)
    at[3] = <char>(0x80 | point & 0x3F)
    return at + 4


cdef const char *read_escape(const char *at, const char *end, char **into) noexcept nogil:
    """Read what stands behind a backslash, and return its end.

    Return NULL if the escape is not valid.
    """
    cdef int point, second
    if at == end:
        return NULL
    if at[0] != c"u":
        if at[0] == c'"' or at[0] == c"\\" or at[0] == c"/":
            into[0][0] = at[0]
        elif at[0] == c"n":
            into[0][0] = c"\n"
        elif at[0] == c"t":
            into[0][0] = c"\t"
        elif at[0] == c"r":
            into[0][0] = c"\r"
        elif at[0] == c"b":
            into[0][0] = c"\b"
        elif at[0] == c"f":
            into[0][0] = c"\f"
        else:
            return NULL
        into[0] += 1
        return at + 1
    if end - at < 5:
        return NULL
    point = hex_of(at + 1)
    at += 5
    if point < 0 or 0xDC00 <= point < 0xE000:
        return NULL
    if 0xD800 <= point < 0xDC00:  # the first half of a pair
        if end - at < 6 or at[0] != c"\\" or at[1] != c"u":
            return NULL
        second = hex_of(at + 2)
        if not 0xDC00 <= second < 0xE000:
            return NULL
        point = 0x10000 + ((point - 0xD800) << 10 | (second - 0xDC00))
        at += 6
    into[0] = write_utf8(into[0], point)
    return at


cdef const char *read_text(const char *at, const char *end, char **into) noexcept nogil:
    """Read a text behind its first quote, and return the place behind the last.

    Return NULL if the text is not valid. The text never becomes longer than its JSON.
    """
    cdef const char *begun
    while True:
        begun = at
        at = plain_end(at, end)
        memcpy(into[0], begun, at - begun)
        into[0] += at - begun
        if at == end or <uint8_t>at[0] < 0x20:
            return NULL
        if at[0] == c'"':
            return at + 1
        at = read_escape(at + 1, end, into)
        if at == NULL:
            return NULL


cdef inline int base64_of(char sign) noexcept nogil:
    if c"A" <= sign <= c"Z":
        return sign - c"A"
    if c"a" <= sign <= c"z":
        return sign - c"a" + 26
    if c"0" <= sign <= c"9":
        return sign - c"0" + 52
    return 62 if sign == c"+" else 63 if sign == c"/" else -1


cdef const char *read_base64(const char *at, const char *end, char **into) noexcept nogil:
    """Read ``"base64": "..."}`` behind its brace, and return the end.

    Return NULL if the text is not valid.
    """
    cdef const char *last
    cdef char *out = into[0]
    cdef int index, sign, pads
    cdef uint32_t four
    at = skip_blanks(at, end)
    if end - at < 8 or memcmp(at, b'"base64"', 8) != 0:
        return NULL
    at = skip_sign(at + 8, end, c":")
    if at == NULL or at == end or at[0] != c'"':
        return NULL
    at += 1
    last = plain_end(at, end)
    if last == end or last[0] != c'"' or (last - at) % 4 != 0:
        return NULL
    while at < last:
        four = 0
        pads = 0
        for index in range(4):
            sign = base64_of(at[index])
            if sign < 0:
                # Padding ends the text, and is two signs at most.
                if at[index] != c"=" or index < 2 or last - at != 4:
                    return NULL
                pads += 1
                sign = 0
            elif pads:
                return NULL
            four = four << 6 | <uint32_t>sign
        out[0] = <char>(four >> 16)
        if pads < 2:
            out[1] = <char>(four >> 8 & 255)
        if pads < 1:
            out[2] = <char>(four & 255)
        out += 3 - pads
        at += 4
    into[0] = out
    at = skip_blanks(last + 1, end)
    return at + 1 if at < end and at[0] == c"}" else NULL


cdef const char *read_binary(
    const char *at, const char *end, JsonColumns *into, int column, Py_ssize_t row
) noexcept nogil:
    """Read a key, a value or a part of a header into its column, and return its end.

    Return NULL if the text is not valid.
    """
    cdef char *out = into.data[column] + into.ends[column]
    if at == end:
        return NULL
    if at[0] == c"n":
        return at + 4 if end - at >= 4 and memcmp(at, b"null", 4) == 0 else NULL
    if at[0] == c'"':
        at = read_text(at + 1, end, &out)
    elif at[0] == c"{":
        at = read_base64(at + 1, end, &out)
    else:
        return NULL
    into.ends[column] = <int32_t>(out - into.data[column])
    into.bits[column][row >> 3] |= <uint8_t>(1 << (row & 7))
    return at


cdef const char *read_headers(const char *at, const char *end, JsonColumns *into) noexcept nogil:
    """Read a list of pairs, or null, and return its end. Return NULL if the text is not valid."""
    cdef int32_t count
    if at < end and at[0] == c"n":
        return at + 4 if end - at >= 4 and memcmp(at, b"null", 4) == 0 else NULL
    at = skip_sign(at, end, c"[")
    if at == NULL or at == end:
        return NULL
    if at[0] == c"]":
        return at + 1
    while True:
        count = into.headers_count
        at = skip_sign(at, end, c"[")
        if at == NULL or at == end or at[0] != c'"':
            return NULL
        at = read_binary(at, end, into, JSON_HEADER_NAME, count)
        if at == NULL:
            return NULL
        at = skip_sign(at, end, c",")
        if at == NULL:
            return NULL
        at = read_binary(at, end, into, JSON_HEADER_VALUE, count)
        if at == NULL:
            return NULL
        at = skip_sign(at, end, c"]")
        if at == NULL or at == end:
            return NULL
        count += 1
        into.headers_count = count
        into.offsets[JSON_HEADER_NAME][count] = into.ends[JSON_HEADER_NAME]
        into.offsets[JSON_HEADER_VALUE][count] = into.ends[JSON_HEADER_VALUE]
        if at[0] == c"]":
            return at + 1
        if at[0] != c",":
            return NULL
        at += 1


cdef const char *read_whole(const char *at, const char *end, int64_t *number) noexcept nogil:
    """Read a whole number from 0, and return its end; null is -1.

    Return NULL if the text is not valid.
    """
    cdef const char *begun = at
    cdef int64_t found = 0
    if at < end and at[0] == c"n":
        number[0] = -1
        return at + 4 if end - at >= 4 and memcmp(at, b"null", 4) == 0 else NULL
    while at < end and c"0" <= at[0] <= c"9":
        if at - begun == JSON_NUMBER_DIGITS:
            return NULL
        found = found * 10 + (at[0] - c"0")
        at += 1
    # JSON has no leading zeros. A fraction or an exponent is left for the caller, which refuses it:
    # after a value it accepts a comma or the closing brace only.
    if at == begun or (begun[0] == c"0" and at - begun > 1):
        return NULL
    number[0] = found
    return at


cdef const char *read_bare(
    const char *at, const char *end, const char **text, Py_ssize_t *size
) noexcept nogil:
    """Find a text of ASCII without escapes, and return its end; the size of null is -1.

    Return NULL if the text is not valid.
    """
    cdef const char *each
    text[0] = NULL
    size[0] = -1
    if at < end and at[0] == c"n":
        return at + 4 if end - at >= 4 and memcmp(at, b"null", 4) == 0 else NULL
    if at == end or at[0] != c'"':
        return NULL
    at += 1
    text[0] = at
    at = plain_end(at, end)
    if at == end or at[0] != c'"':
        return NULL
    size[0] = at - text[0]
    each = text[0]
    while each < at:
        if <uint8_t>each[0] >= 0x80:
            return NULL
        each += 1
    return at + 1


cdef int member_of(const char *name, Py_ssize_t size) noexcept nogil:
    """Return which member of a line has this name, or 0 if none has."""
    if size == 5:
        if memcmp(name, b"value", 5) == 0:
            return AS_VALUE
        return AS_TOPIC if memcmp(name, b"topic", 5) == 0 else 0
    if size == 3:
        return AS_KEY if memcmp(name, b"key", 3) == 0 else 0
    if size == 9:
        if memcmp(name, b"timestamp", 9) == 0:
            return AS_TIMESTAMP
        return AS_PARTITION if memcmp(name, b"partition", 9) == 0 else 0
    if size == 7:
        return AS_HEADERS if memcmp(name, b"headers", 7) == 0 else 0
    if size == 6:
        return AS_OFFSET if memcmp(name, b"offset", 6) == 0 else 0
    return AS_KIND if size == 14 and memcmp(name, b"timestamp_type", 14) == 0 else 0


cdef const char *read_member(
    const char *at,
    const char *end,
    JsonColumns *into,
    Py_ssize_t row,
    int member,
    const char **topic,
    Py_ssize_t *topic_size,
) noexcept nogil:
    """Read the value of a member into its column, and return its end.

    Return NULL if the text is not simple.
    """
    cdef int64_t number = 0
    cdef const char *text
    cdef Py_ssize_t size
    if member == AS_VALUE:
        return read_binary(at, end, into, JSON_VALUE, row)
    if member == AS_KEY:
        return read_binary(at, end, into, JSON_KEY, row)
    if member == AS_HEADERS:
        return read_headers(at, end, into)
    if member == AS_TIMESTAMP:
        return read_whole(at, end, &into.timestamps[row])
    if member == AS_PARTITION:
        at = read_whole(at, end, &number)
        into.partitions[row] = <int32_t>number
        return at if number <= 0x7FFFFFFF else NULL
    if member == AS_TOPIC:
        return read_bare(at, end, topic, topic_size)
    if member == AS_OFFSET:
        return read_whole(at, end, &number)
    if member == AS_KIND:
        return read_bare(at, end, &text, &size)
    return NULL


cdef const char *read_json_line(
    const char *at, const char *end, JsonColumns *into, Py_ssize_t row
) noexcept nogil:
    """Read the object of a line, and return the place behind the line's end.

    Return NULL if the line is not simple.
    """
    cdef const char *name
    cdef const char *topic = NULL
    cdef Py_ssize_t topic_size = -1
    cdef int member, members = 0
    into.timestamps[row] = -1
    into.partitions[row] = -1
    at = skip_sign(at, end, c"{")
    if at == NULL or at == end:
        return NULL
    if at[0] != c"}":
        while True:
            if at == end or at[0] != c'"':
                return NULL
            name = at + 1
            at = plain_end(name, end)
            if at == end or at[0] != c'"':
                return NULL
            member = member_of(name, at - name)
            if not member or members & member:
                return NULL
            members |= member
            at = skip_sign(at + 1, end, c":")
            if at == NULL:
                return NULL
            at = read_member(at, end, into, row, member, &topic, &topic_size)
            if at == NULL:
                return NULL
            at = skip_blanks(at, end)
            if at == end:
                return NULL
            if at[0] == c"}":
                break
            if at[0] != c",":
                return NULL
            at = skip_blanks(at + 1, end)
    at = skip_blanks(at + 1, end)
    if at < end and at[0] == c"\r":
        at += 1
    if at < end and at[0] != c"\n":
        return NULL
    into.members |= members
    if row == 0:
        into.topic = topic
        into.topic_size = topic_size
    elif into.one_topic and (
        topic_size != into.topic_size
        or (topic_size > 0 and memcmp(topic, into.topic, topic_size) != 0)
    ):
        return NULL
    return at + 1


cdef tuple json_column(JsonColumns *into, int column, list made, Py_ssize_t rows):
    """Return a binary column as Python objects, without the memory that was not needed."""
    block, numbers, bits = made[column]
    return (
        memoryview(numbers)[: 4 * rows + 4].cast("i"),
        (<bytes>block)[: into.ends[column]],
        (<bytes>bits)[: (rows + 7) // 8],
    )


def split_json_lines(data, bint one_topic):
    """See ``_fallback_json.split_json_lines``."""
    cdef _View view = _View(data)
    cdef const char *base = <const char *>view.data
    cdef const char *at = base
    cdef const char *end = base + view.size
    cdef Py_ssize_t size = view.size, row, count, entries
    cdef int column
    cdef bint text
    cdef JsonColumns into
    cdef list made = []
    cdef bytes block, numbers, bits, timestamps, partitions, headers
    if not 0 < size <= 0x7FFFFFFF:
        return None
    with nogil:
        count = count_lines(base, size)
        text = is_utf8(view.data, size)
    if not text:
        return None
    for column in range(JSON_COLUMNS):
        # A column is as long as the input at most. Memory that is never touched costs nothing.
        entries = count if column < JSON_HEADER_NAME else size // 7 + 1
        block = PyBytes_FromStringAndSize(NULL, size)
        numbers = PyBytes_FromStringAndSize(NULL, 4 * entries + 4)
        bits = bytes((entries + 7) // 8)
        into.data[column] = PyBytes_AS_STRING(block)
        into.offsets[column] = <int32_t *>PyBytes_AS_STRING(numbers)
        into.bits[column] = <uint8_t *>PyBytes_AS_STRING(bits)
        into.ends[column] = 0
        into.offsets[column][0] = 0
        made.append((block, numbers, bits))
    timestamps = PyBytes_FromStringAndSize(NULL, 8 * count)
    partitions = PyBytes_FromStringAndSize(NULL, 4 * count)
    headers = PyBytes_FromStringAndSize(NULL, 4 * count + 4)
    into.timestamps = <int64_t *>PyBytes_AS_STRING(timestamps)
    into.partitions = <int32_t *>PyBytes_AS_STRING(partitions)
    into.headers = <int32_t *>PyBytes_AS_STRING(headers)
    into.headers[0] = 0
    into.headers_count = 0
    into.members = 0
    into.topic = NULL
    into.topic_size = -1
    into.one_topic = one_topic
    with nogil:
        for row in range(count):
            at = read_json_line(at, end, &into, row)
            if at == NULL:
                break
            into.offsets[JSON_KEY][row + 1] = into.ends[JSON_KEY]
            into.offsets[JSON_VALUE][row + 1] = into.ends[JSON_VALUE]
            into.headers[row + 1] = into.headers_count
    if at == NULL:
        return None
    return (
        count,
        None if into.topic_size < 0 else (<bytes>into.topic[: into.topic_size]).decode(),
        json_column(&into, JSON_KEY, made, count) if into.members & AS_KEY else None,
        json_column(&into, JSON_VALUE, made, count) if into.members & AS_VALUE else None,
        memoryview(timestamps).cast("q") if into.members & AS_TIMESTAMP else None,
        memoryview(partitions).cast("i") if into.members & AS_PARTITION else None,
        None if not into.headers_count else (
            memoryview(headers).cast("i"),
            json_column(&into, JSON_HEADER_NAME, made, into.headers_count),
            json_column(&into, JSON_HEADER_VALUE, made, into.headers_count),
        ),
    )
