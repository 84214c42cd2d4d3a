# Included by _native.pyx: columns from lines of text, and lines of text from columns.

from libc.string cimport memchr, memcmp

cdef struct Token:
    # A part of a line: a sign of ``rendering.SIGNS``, or 0 for bytes as they are.
    int sign
    const char *data
    Py_ssize_t size


cdef struct Rows:
    # Columns in plain C, with the headers if there are any, and what stands for a null.
    const int64_t *offsets
    const int64_t *timestamps
    const uint8_t *kinds
    Column keys
    Column values
    const int32_t *starts  # NULL: no record has headers
    Py_ssize_t starts_count
    Column names
    Column contents
    const char *null
    Py_ssize_t null_size


cdef enum:
    WIDEST_NUMBER = 20
    BASE64_EXTRA = 20  # of an object {"base64":""}, with padding
    WIDEST_ESCAPE = 6


cdef const char *DIGITS = "0123456789abcdef"
cdef const char *BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef inline char *write_bytes(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    if size > 0:
        memcpy(at, data, size)
    return at + size


cdef char *write_number(char *at, int64_t number) noexcept nogil:
    cdef char[WIDEST_NUMBER] digits
    cdef int count = 0
    cdef uint64_t left = <uint64_t>number
    if number < 0:
        at[0] = c"-"
        at += 1
        left = 0 - left
    while True:
        digits[count] = <char>(c"0" + left % 10)
        count += 1
        left //= 10
        if not left:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef bint is_utf8(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Return whether the bytes are UTF-8 as Python decodes it: no surrogates, nothing overlong."""
    cdef Py_ssize_t at = 0, more, index
    cdef uint64_t eight
    cdef uint32_t point
    cdef uint8_t byte
    while at < size:
        if size - at >= 8:
            memcpy(&eight, data + at, 8)
            if not eight & <uint64_t>0x8080808080808080:
                at += 8
                continue
        byte = data[at]
        if byte < 0x80:
            at += 1
            continue
        if 0xC2 <= byte < 0xE0:
            more, point = 1, byte & 0x1F
        elif 0xE0 <= byte < 0xF0:
            more, point = 2, byte & 0x0F
        elif 0xF0 <= byte < 0xF5:
            more, point = 3, byte & 0x07
        else:
            return False
        if size - at <= more:
            return False
        for index in range(at + 1, at + 1 + more):
            if data[index] & 0xC0 != 0x80:
                return False
            point = point << 6 | data[index] & 0x3F
        if more == 2 and (point < 0x800 or 0xD800 <= point < 0xE000):
            return False
        if more == 3 and not 0x10000 <= point <= 0x10FFFF:
            return False
        at += more + 1
    return True


cdef char *write_json_text(char *at, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Write UTF-8 as a string of JSON, at most ``WIDEST_ESCAPE * size + 2`` bytes."""
    cdef Py_ssize_t index, begun = 0
    cdef uint8_t byte
    cdef char brief
    at[0] = c'"'
    at += 1
    for index in range(size):
        byte = data[index]
        if byte >= 0x20 and byte != c'"' and byte != c"\\":
            continue
        at = write_bytes(at, <const char *>data + begun, index - begun)
        begun = index + 1
        brief = 0
        if byte == c'"' or byte == c"\\":
            brief = <char>byte
        elif byte == c"\n":
            brief = c"n"
        elif byte == c"\r":
            brief = c"r"
        elif byte == c"\t":
            brief = c"t"
        elif byte == c"\f":
            brief = c"f"
        elif byte == c"\b":
            brief = c"b"
        at[0] = c"\\"
        if brief:
            at[1] = brief
            at += 2
        else:
            at[1], at[2], at[3] = c"u", c"0", c"0"
            at[4], at[5] = DIGITS[byte >> 4], DIGITS[byte & 15]
            at += 6
    at = write_bytes(at, <const char *>data + begun, size - begun)
    at[0] = c'"'
    return at + 1


cdef char *write_base64(char *at, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t index = 0
    cdef uint32_t three
    while size - index >= 3:
        three = <uint32_t>data[index] << 16 | <uint32_t>data[index + 1] << 8 | data[index + 2]
        at[0], at[1] = BASE64[three >> 18], BASE64[three >> 12 & 63]
        at[2], at[3] = BASE64[three >> 6 & 63], BASE64[three & 63]
        at += 4
        index += 3
    if size - index == 2:
        three = <uint32_t>data[index] << 16 | <uint32_t>data[index + 1] << 8
        at[0], at[1] = BASE64[three >> 18], BASE64[three >> 12 & 63]
        at[2], at[3] = BASE64[three >> 6 & 63], c"="
        at += 4
    elif size - index == 1:
        three = <uint32_t>data[index] << 16
        at[0], at[1], at[2], at[3] = BASE64[three >> 18], BASE64[three >> 12 & 63], c"=", c"="
        at += 4
    return at


cdef char *write_json(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    """Write text, or an object with base64; size -1: null."""
    if size < 0:
        return write_bytes(at, "null", 4)
    if is_utf8(<const uint8_t *>data, size):
        return write_json_text(at, <const uint8_t *>data, size)
    at = write_bytes(at, '{"base64":"', 11)
    at = write_base64(at, <const uint8_t *>data, size)
    return write_bytes(at, '"}', 2)


cdef inline bint headers_of(
    const Rows *rows, Py_ssize_t row, int32_t *first, int32_t *last
) noexcept nogil:
    """Find the headers of a row; return whether the columns are consistent."""
    first[0], last[0] = 0, 0
    if rows.starts == NULL:
        return True
    if row + 1 >= rows.starts_count:
        return False
    first[0], last[0] = rows.starts[row], rows.starts[row + 1]
    return 0 <= first[0] <= last[0]


cdef Py_ssize_t row_bound(
    const Rows *rows, const Token *tokens, Py_ssize_t count, Py_ssize_t row
) noexcept nogil:
    """Return the most bytes that a row may become; -1: the columns are not consistent."""
    cdef Py_ssize_t bound = 0, index, size
    cdef int32_t first, last, header
    cdef const char *data
    cdef const Column *column
    cdef int sign
    for index in range(count):
        sign = tokens[index].sign
        if not sign:
            bound += tokens[index].size
        elif sign == c"k" or sign == c"s" or sign == c"x" or sign == c"y":
            column = &rows.keys if sign == c"k" or sign == c"x" else &rows.values
            size = field_of(column, row, &data)
            if size < -1:
                return -1
            bound += max(size, rows.null_size) if sign == c"k" or sign == c"s" else (
                WIDEST_ESCAPE * max(size, 0) + BASE64_EXTRA
            )
        elif sign == c"h" or sign == c"z":
            if not headers_of(rows, row, &first, &last):
                return -1
            bound += 2
            for header in range(first, last):
                size = field_of(&rows.names, header, &data)
                if size < 0:
                    return -1
                bound += WIDEST_ESCAPE * size + BASE64_EXTRA
                size = field_of(&rows.contents, header, &data)
                if size < -1:
                    return -1
                bound += WIDEST_ESCAPE * max(size, 0) + BASE64_EXTRA
        else:
            bound += WIDEST_NUMBER
    return bound


cdef char *write_row(
    char *at, const Rows *rows, const Token *tokens, Py_ssize_t count, Py_ssize_t row
) noexcept nogil:
    """Write a row whose bound has been checked."""
    cdef Py_ssize_t index, size
    cdef int32_t first, last, header
    cdef uint32_t length
    cdef const char *data
    cdef const Column *column
    cdef int sign
    for index in range(count):
        sign = tokens[index].sign
        if not sign:
            at = write_bytes(at, tokens[index].data, tokens[index].size)
        elif sign == c"o":
            at = write_number(at, rows.offsets[row])
        elif sign == c"T":
            at = write_number(at, rows.timestamps[row])
        elif sign == c"m":
            if rows.timestamps[row] == -1:
                at = write_bytes(at, "null", 4)
            else:
                at = write_number(at, rows.timestamps[row])
        elif sign == c"c":
            at = write_bytes(at, '"append"' if rows.kinds[row] else '"create"', 8)
        elif sign == c"h" or sign == c"z":
            headers_of(rows, row, &first, &last)
            if sign == c"z":
                at = write_bytes(at, "[", 1)
            for header in range(first, last):
                if header > first:
                    at = write_bytes(at, ",", 1)
                size = field_of(&rows.names, header, &data)
                if sign == c"z":
                    at = write_bytes(at, "[", 1)
                    at = write_json_text(at, <const uint8_t *>data, size)
                    at = write_bytes(at, ",", 1)
                    size = field_of(&rows.contents, header, &data)
                    at = write_json(at, data, size)
                    at = write_bytes(at, "]", 1)
                else:
                    at = write_bytes(at, data, size)
                    at = write_bytes(at, "=", 1)
                    size = field_of(&rows.contents, header, &data)
                    at = write_bytes(at, "NULL", 4) if size < 0 else write_bytes(at, data, size)
            if sign == c"z":
                at = write_bytes(at, "]", 1)
        else:
            column = (
                &rows.keys if sign == c"k" or sign == c"K" or sign == c"x" else &rows.values
            )
            size = field_of(column, row, &data)
            if sign == c"K" or sign == c"S":
                at = write_number(at, size)
            elif sign == c"R":
                length = <uint32_t><int32_t>size
                at[0], at[1] = <char>(length >> 24), <char>(length >> 16 & 255)
                at[2], at[3] = <char>(length >> 8 & 255), <char>(length & 255)
                at += 4
            elif sign == c"x" or sign == c"y":
                at = write_json(at, data, size)
            elif size < 0:
                at = write_bytes(at, rows.null, rows.null_size)
            else:
                at = write_bytes(at, data, size)
    return at


def render_rows(
    columns, Py_ssize_t start, Py_ssize_t stop, parts, bytes null, bytearray into, Py_ssize_t most
):
    """See ``_fallback_lines.render_rows``."""
    cdef _View offsets = _View(columns.offsets)
    cdef _View timestamps = _View(columns.timestamps)
    cdef _View kinds = _View(columns.timestamp_types)
    cdef _BinaryView keys = keys_of(columns)
    cdef _BinaryView values = values_of(columns)
    cdef _HeadersView headers = headers_view(columns)
    cdef Py_ssize_t count = len(parts), row = start, bound = 0, at = 0, cut = 0, index
    cdef Py_ssize_t room, limit
    cdef Rows rows
    cdef char *base
    cdef Token *tokens
    cdef int64_t *cuts
    cdef Py_ssize_t cuts_count = 0
    limit = min(offsets.size // 8, timestamps.size // 8, kinds.size, keys.count, values.count)
    if not 0 <= start <= stop <= limit:
        raise ValueError("the columns are not consistent")
    rows.offsets, rows.timestamps = <const int64_t *>offsets.data, <const int64_t *>timestamps.data
    rows.kinds, rows.keys, rows.values = kinds.data, keys.column(), values.column()
    rows.starts, rows.starts_count = NULL, 0
    if headers is not None:
        rows.starts = <const int32_t *>headers.starts.data
        rows.starts_count = headers.starts.size // 4
        rows.names, rows.contents = headers.names.column(), headers.contents.column()
    rows.null, rows.null_size = PyBytes_AS_STRING(null), PyBytes_GET_SIZE(null)
    held = [(int(sign), bytes(data)) for sign, data in parts]
    list_of_tokens = bytearray(max(1, count) * sizeof(Token))
    tokens = <Token *>PyByteArray_AS_STRING(list_of_tokens)
    for index in range(count):
        text = <bytes>held[index][1]
        tokens[index].sign = held[index][0]
        tokens[index].data, tokens[index].size = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    if row < stop:
        bound = row_bound(&rows, tokens, count, row)
        if bound > len(into):
            PyByteArray_Resize(into, bound)
    # Two pieces next to each other are together larger than ``most``.
    list_of_cuts = bytearray(16 * (2 + min(stop - start, 2 * len(into) // max(most, 1) + 2)))
    cuts = <int64_t *>PyByteArray_AS_STRING(list_of_cuts)
    base, room = PyByteArray_AS_STRING(into), len(into)
    held_open = memoryview(into)  # a bytearray that is viewed cannot be resized by another thread
    with nogil:
        while row < stop:
            bound = row_bound(&rows, tokens, count, row)
            if bound < 0 or bound > room - at:
                break
            index = at
            at = write_row(base + at, &rows, tokens, count, row) - base
            if at - cut > most and index > cut:
                cuts[2 * cuts_count], cuts[2 * cuts_count + 1] = index, row - start
                cuts_count += 1
                cut = index
            row += 1
    held_open.release()
    if bound < 0:
        raise ValueError("the columns are not consistent")
    if row > start and (at > cut or not cuts_count):
        cuts[2 * cuts_count], cuts[2 * cuts_count + 1] = at, row - start
        cuts_count += 1
    elif row > start:  # the last rows became nothing
        cuts[2 * cuts_count - 1] = row - start
    return row, memoryview(list_of_cuts).cast("q")[: 2 * cuts_count]


cdef Py_ssize_t count_lines(const char *data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t count = 0, at = 0
    cdef const char *found
    while at < size:
        found = <const char *>memchr(data + at, c"\n", size - at)
        count += 1
        if found == NULL:
            break
        at = found - data + 1
    return count


cdef const char *find_bytes(
    const char *data, Py_ssize_t size, const char *what, Py_ssize_t what_size
) noexcept nogil:
    """Return where ``what``, of at least one byte, begins in the data; NULL: nowhere."""
    cdef const char *end = data + size
    while end - data >= what_size:
        data = <const char *>memchr(data, what[0], end - data - what_size + 1)
        if data == NULL or memcmp(data, what, what_size) == 0:
            return data
        data += 1
    return NULL


def split_lines(data, delimiter, bint empty_is_null):
    """See ``_fallback_lines.split_lines``."""
    cdef _View view = _View(data)
    cdef const char *base = <const char *>view.data
    cdef const char *line
    cdef const char *found
    cdef Py_ssize_t size = view.size, at = 0, length, row, count, bad = -1
    cdef Py_ssize_t delimiter_size = 0 if delimiter is None else len(delimiter)
    cdef const char *between = NULL if delimiter is None else PyBytes_AS_STRING(<bytes>delimiter)
    cdef const char *part
    cdef int column
    cdef int32_t[2] ends
    if size > 0x7FFFFFFF:
        raise ValueError(f"{size} bytes at once")
    with nogil:
        count = count_lines(base, size)
    # By column: keys, values. Each is as large as the input at most.
    cdef char *outs[2]
    cdef int32_t *offsets[2]
    cdef uint8_t *bits[2]
    cdef list made = []
    cdef bytes block, numbers, bitmap
    for column in range(2):
        block = PyBytes_FromStringAndSize(NULL, size if column or delimiter_size else 0)
        numbers = PyBytes_FromStringAndSize(NULL, 4 * count + 4)
        bitmap = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
        outs[column] = PyBytes_AS_STRING(block)
        offsets[column] = <int32_t *>PyBytes_AS_STRING(numbers)
        bits[column] = <uint8_t *>PyBytes_AS_STRING(bitmap)
        made.append((numbers, block, bitmap))
    with nogil:
        ends[0], ends[1] = 0, 0
        for column in range(2):
            offsets[column][0] = 0
            memset(bits[column], 0, (count + 7) // 8)
        for row in range(count):
            line = base + at
            found = <const char *>memchr(line, c"\n", size - at)
            length = (size - at) if found == NULL else found - line
            at += length + 1
            if between != NULL:
                part = find_bytes(line, length, between, delimiter_size)
                if part == NULL:
                    bad = row
                    break
                memcpy(outs[0] + ends[0], line, part - line)
                ends[0] += <int32_t>(part - line)
                if part > line or not empty_is_null:
                    bits[0][row >> 3] |= <uint8_t>(1 << (row & 7))
                length -= part - line + delimiter_size
                line = part + delimiter_size
            memcpy(outs[1] + ends[1], line, length)
            ends[1] += <int32_t>length
            if length or not empty_is_null:
                bits[1][row >> 3] |= <uint8_t>(1 << (row & 7))
            offsets[0][row + 1], offsets[1][row + 1] = ends[0], ends[1]
    if bad >= 0:
        return bad, None, None
    return count, *(
        (memoryview(numbers).cast("i"), block, bitmap) for numbers, block, bitmap in made
    )
