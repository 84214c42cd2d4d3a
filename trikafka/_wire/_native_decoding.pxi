# Included by _native.pyx: sections of records into columns, without the GIL.
#
# Two passes. The first reads every record, checks it, fills the columns of fixed width, and sums up
# the sizes of keys, values and headers. The second copies these into buffers of exactly that size.
# With one pass the buffers would have to grow, and so be copied, or be as large as the whole input
# for keys and values each. The places of each row's key and value are kept between the passes, so
# only headers are parsed twice.

cdef struct Mark:
    # How far the columns were filled.
    Py_ssize_t count
    Py_ssize_t key_size
    Py_ssize_t value_size
    Py_ssize_t key_nulls
    Py_ssize_t value_nulls
    Py_ssize_t header_count
    Py_ssize_t name_size
    Py_ssize_t content_size


cdef struct Place:
    # Where a row's key and value begin in its section. The headers follow the value.
    uint32_t key
    uint32_t value


cdef class _Filler:
    """The columns while they are filled: first all but the contents, then the contents.

    The first pass determines the contents' sizes. There is room for ``most_records``, which the
    input bounds, and for exactly the bytes of the contents.
    """

    cdef Mark at
    cdef Memory offsets
    cdef Memory timestamps
    cdef Memory types
    cdef Memory key_offsets
    cdef Memory key_data
    cdef Memory key_bits
    cdef Memory value_offsets
    cdef Memory value_data
    cdef Memory value_bits
    cdef Memory places
    cdef Memory header_offsets
    cdef Memory name_offsets
    cdef Memory names
    cdef Memory content_offsets
    cdef Memory contents
    cdef Memory content_bits
    cdef Py_ssize_t content_nulls

    def __cinit__(self, Py_ssize_t most_records):
        self.offsets = memory_for(most_records, c"q", 8)
        self.timestamps = memory_for(most_records, c"q", 8)
        self.types = memory_for(most_records, c"b", 1)
        self.key_offsets = memory_for(most_records + 1, c"i", 4)
        self.value_offsets = memory_for(most_records + 1, c"i", 4)
        self.key_bits = bitmap_for(most_records)
        self.value_bits = bitmap_for(most_records)
        self.places = memory_for(most_records, c"q", 8)
        (<int32_t *>self.key_offsets.data)[0] = 0
        (<int32_t *>self.value_offsets.data)[0] = 0

    cdef int add_section(self, Section *section) noexcept nogil:
        cdef int64_t *offsets = <int64_t *>self.offsets.data
        cdef int64_t *timestamps = <int64_t *>self.timestamps.data
        cdef char *types = self.types.data
        cdef int32_t *key_offsets = <int32_t *>self.key_offsets.data
        cdef int32_t *value_offsets = <int32_t *>self.value_offsets.data
        cdef uint8_t *key_bits = <uint8_t *>self.key_bits.data
        cdef uint8_t *value_bits = <uint8_t *>self.value_bits.data
        cdef Place *places = <Place *>self.places.data
        cdef const uint8_t *pos = section.start
        cdef int64_t last_delta = -1
        cdef int64_t index
        cdef Mark at = self.at
        cdef Row row
        cdef int problem
        section.first_row = at.count
        for index in range(section.records):
            problem = read_record(section, &pos, last_delta, &row)
            if problem:
                return problem
            last_delta = row.offset_delta
            if section.base_offset + row.offset_delta < section.min_offset:
                continue
            offsets[at.count] = section.base_offset + row.offset_delta
            timestamps[at.count] = row.timestamp
            types[at.count] = section.timestamp_type
            places[at.count].key = <uint32_t>(row.key - section.start)
            places[at.count].value = <uint32_t>(row.value - section.start)
            if row.key_length >= 0:
                at.key_size += row.key_length
                key_bits[at.count >> 3] |= <uint8_t>(1 << (at.count & 7))
            else:
                at.key_nulls += 1
            if row.value_length >= 0:
                at.value_size += row.value_length
                value_bits[at.count >> 3] |= <uint8_t>(1 << (at.count & 7))
            else:
                at.value_nulls += 1
            at.header_count += row.headers
            at.name_size += row.name_size
            at.content_size += row.content_size
            at.count += 1
            key_offsets[at.count] = <int32_t>at.key_size
            value_offsets[at.count] = <int32_t>at.value_size
        if pos != section.end:
            return LEFTOVER
        self.at = at
        return OK

    cdef void go_back(self) noexcept nogil:
        """Clear the bits that a corrupt section has set; the other columns are only cut."""
        clear_after(<uint8_t *>self.key_bits.data, self.at.count, self.key_bits.size)
        clear_after(<uint8_t *>self.value_bits.data, self.at.count, self.value_bits.size)

    cdef int add_all(self, Section *sections, Py_ssize_t count, Py_ssize_t *failed) noexcept nogil:
        """Fill everything but the contents.

        ``failed`` is the first corrupt section, which is left out with all behind it.
        """
        cdef Py_ssize_t index
        cdef int problem
        for index in range(count):
            problem = self.add_section(&sections[index])
            if problem:
                self.go_back()
                failed[0] = index
                return problem
        return OK

    cdef int make_room(self) except -1:
        """Allocate the memory for the contents."""
        self.key_data = memory_for(self.at.key_size, c"B", 1)
        self.value_data = memory_for(self.at.value_size, c"B", 1)
        if self.at.header_count:
            self.header_offsets = memory_for(self.at.count + 1, c"i", 4)
            self.name_offsets = memory_for(self.at.header_count + 1, c"i", 4)
            self.names = memory_for(self.at.name_size, c"B", 1)
            self.content_offsets = memory_for(self.at.header_count + 1, c"i", 4)
            self.contents = memory_for(self.at.content_size, c"B", 1)
            self.content_bits = bitmap_for(self.at.header_count)
        return 0

    cdef int copy_all(self, const Section *sections, Py_ssize_t count) noexcept nogil:
        """Copy the contents of ``count`` sections that :meth:`add_all` has checked."""
        cdef const Place *places = <const Place *>self.places.data
        cdef Py_ssize_t index, last
        for index in range(count):
            last = sections[index + 1].first_row if index + 1 < count else self.at.count
            if self.at.key_size:
                copy_fields(
                    &sections[index], last, places, <int32_t *>self.key_offsets.data,
                    self.key_data.data, True,
                )
            copy_fields(
                &sections[index], last, places, <int32_t *>self.value_offsets.data,
                self.value_data.data, False,
            )
        return self.copy_headers(sections, count) if self.at.header_count else OK

    cdef int copy_headers(self, const Section *sections, Py_ssize_t count) noexcept nogil:
        cdef int32_t *starts = <int32_t *>self.header_offsets.data
        cdef const int32_t *value_offsets = <const int32_t *>self.value_offsets.data
        cdef const Place *places = <const Place *>self.places.data
        cdef const uint8_t *begin
        cdef Headers at
        cdef Py_ssize_t index, row, last
        cdef int problem
        at.count = at.name_size = at.content_size = at.nulls = 0
        at.most = self.at.header_count
        at.name_room, at.content_room = self.at.name_size, self.at.content_size
        at.name_offsets, at.names = <int32_t *>self.name_offsets.data, self.names.data
        at.content_offsets, at.contents = <int32_t *>self.content_offsets.data, self.contents.data
        at.bits = <uint8_t *>self.content_bits.data
        starts[0] = at.name_offsets[0] = at.content_offsets[0] = 0
        for index in range(count):
            last = sections[index + 1].first_row if index + 1 < count else self.at.count
            for row in range(sections[index].first_row, last):
                begin = sections[index].start + places[row].value
                begin += value_offsets[row + 1] - value_offsets[row]
                problem = copy_row_headers(&at, begin, sections[index].end)
                if problem:
                    return problem
                starts[row + 1] = <int32_t>at.count
        self.content_nulls = at.nulls
        return OK if at.count == at.most else BAD_HEADERS

    cdef tuple fields(self):
        cdef Py_ssize_t count = self.at.count
        cdef Py_ssize_t headers = self.at.header_count
        head = (
            count,
            self.offsets.view(count),
            self.timestamps.view(count),
            self.types.view(count),
            self.key_offsets.view(count + 1),
            self.key_data.view(self.at.key_size),
            self.key_bits.view((count + 7) // 8) if self.at.key_nulls else None,
            self.value_offsets.view(count + 1),
            self.value_data.view(self.at.value_size),
            self.value_bits.view((count + 7) // 8) if self.at.value_nulls else None,
        )
        if not headers:
            return head + (None, None, None, None, None, None)
        return head + (
            self.header_offsets.view(count + 1),
            self.name_offsets.view(headers + 1),
            self.names.view(self.at.name_size),
            self.content_offsets.view(headers + 1),
            self.contents.view(self.at.content_size),
            self.content_bits.view((headers + 7) // 8) if self.content_nulls else None,
        )


cdef Memory bitmap_for(Py_ssize_t count):
    """Return a bitmap with ``count`` bits, all of them 0."""
    cdef Memory made = memory_for((count + 7) // 8, c"B", 1)
    memset(made.data, 0, made.size)
    return made


cdef void clear_after(uint8_t *bits, Py_ssize_t count, Py_ssize_t size) noexcept nogil:
    """Clear the bits from ``count`` on in a bitmap of ``size`` bytes."""
    if count % 8:
        bits[count // 8] &= <uint8_t>((1 << (count % 8)) - 1)
    memset(bits + (count + 7) // 8, 0, size - (count + 7) // 8)


cdef inline void copy_fields(
    const Section *section, Py_ssize_t last, const Place *places, const int32_t *offsets,
    char *data, bint keys,
) noexcept nogil:
    """Copy the keys, or the values, of a section's rows up to ``last``."""
    cdef Py_ssize_t row
    cdef uint32_t place
    for row in range(section.first_row, last):
        if offsets[row + 1] != offsets[row]:
            place = places[row].key if keys else places[row].value
            memcpy(data + offsets[row], section.start + place, offsets[row + 1] - offsets[row])


cdef struct Headers:
    # The header columns while they are filled.
    Py_ssize_t count
    Py_ssize_t name_size
    Py_ssize_t content_size
    Py_ssize_t nulls
    Py_ssize_t most
    Py_ssize_t name_room
    Py_ssize_t content_room
    int32_t *name_offsets
    char *names
    int32_t *content_offsets
    char *contents
    uint8_t *bits


cdef int copy_row_headers(Headers *at, const uint8_t *pos, const uint8_t *end) noexcept nogil:
    """Copy the headers of a row that ``skip_headers`` has checked.

    Every step is checked again, since another thread may write to the input meanwhile.
    """
    cdef int64_t count, length
    cdef int problem = read_varint(&pos, end, &count)
    if problem or count > at.most - at.count:
        return BAD_HEADERS
    while count > 0:
        count -= 1
        problem = read_length(&pos, end, &length)
        if problem or not 0 <= length <= at.name_room - at.name_size:
            return BAD_HEADERS
        memcpy(at.names + at.name_size, pos, length)
        pos += length
        at.name_size += length
        problem = read_length(&pos, end, &length)
        if problem or length > at.content_room - at.content_size:
            return BAD_HEADERS
        if length >= 0:
            memcpy(at.contents + at.content_size, pos, length)
            pos += length
            at.content_size += length
            at.bits[at.count >> 3] |= <uint8_t>(1 << (at.count & 7))
        else:
            at.nulls += 1
        at.count += 1
        at.name_offsets[at.count] = <int32_t>at.name_size
        at.content_offsets[at.count] = <int32_t>at.content_size
    return OK


cdef struct Input:
    # The sections to decode, and the first one that is refused, with the reason.
    Section *sections
    Py_ssize_t count
    Py_ssize_t records
    Py_ssize_t size
    int64_t refused
    int problem


cdef bint accept(Input *given, const Section *section) noexcept nogil:
    """Return whether the section is accepted; otherwise it and all behind it are left out."""
    given.size += section.end - section.start
    if given.size > MAX_INT32:
        given.problem = TOO_LARGE
    elif section.records < 0 or section.records > (section.end - section.start) // MIN_RECORD:
        given.problem = BAD_COUNT
    else:
        given.sections[given.count] = section[0]
        given.count += 1
        given.records += section.records
        return True
    given.refused = section.min_offset
    return False


cdef bint accept_run(Input *given, Run run) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(run.count):
        if not accept(given, &run.sections[index]):
            return False
    return True


cdef int accept_all(Input *given, sections, list held) except -1:
    """Accept the sections up to the first that is refused; ``held`` keeps their memory."""
    cdef Section section
    cdef Py_ssize_t start, end
    cdef _View view = None
    last = None
    for item in sections:
        if isinstance(item, Run):
            held.append(item)
            if not accept_run(given, <Run>item):
                break
            continue
        (
            data, start, end, section.records, section.base_offset, section.last_offset_delta,
            section.base_timestamp, kind, section.append_timestamp, section.min_offset,
        ) = item
        if view is None or data is not last:
            view = _View(data)
            last = data
            held.append(view)
        if not 0 <= start <= end <= view.size:
            raise ValueError("a section lies outside its data")
        section.start, section.end = view.data + start, view.data + end
        section.timestamp_type = 1 if kind else 0
        section.first_row = 0
        if not accept(given, &section):
            break
    return 0


def fill(sections):
    """Decode the sections' records into the fields of ``Columns``; see ``_fallback.fill``."""
    cdef Py_ssize_t total = 0, failed = -1
    cdef int problem, changed
    cdef Input given
    cdef Memory room
    cdef _Filler filler
    cdef list held = []
    for item in sections:
        total += (<Run>item).count if isinstance(item, Run) else 1
    room = memory_for(total * sizeof(Section), c"B", 1)
    given.sections = <Section *>room.data
    given.count = given.records = given.size = 0
    given.refused, given.problem = -1, OK
    accept_all(&given, sections, held)
    filler = _Filler(given.records)
    with nogil:
        problem = filler.add_all(given.sections, given.count, &failed)
    if problem:
        given.problem, given.count = problem, failed
        given.refused = given.sections[failed].min_offset
    filler.make_room()
    with nogil:
        changed = filler.copy_all(given.sections, given.count)
    if changed:
        raise ValueError("the input was written to meanwhile")
    return filler.fields(), given.refused, given.problem
