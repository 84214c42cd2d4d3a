# Included by _native.pyx: over the headers of record batches, without the GIL.
#
# Only plain batches are taken here: format v2, not compressed, and no decision about an aborted
# transaction needed. A fetch may hold thousands of them, and for each a turn of ``records._Scan``
# in Python takes 10 microseconds, more than the decoding of 16 KiB. Everything else ends the walk
# and is left to ``_Scan``. So each decision about transactions and errors exists once, in Python.

cdef extern from "../_checksum/crc32c.h":
    void crc32c_prepare()
    int crc32c_processor_can()
    uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *at, size_t size) nogil
    uint32_t crc32c_by_processor(uint32_t crc, const uint8_t *at, size_t size) nogil

cdef enum:
    # A batch counts in the effort of a walk as one, and one more for each 400 bytes: so a step reads
    # at most 8 MB.
    BYTES_OF_EFFORT = 400
    CRC_START = 21
    MOST_ABORTING = 64
    CODEC_MASK = 0x07
    LOG_APPEND = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20

cdef int64_t MAX_OFFSET = MAX_INT64 - ((<int64_t>1) << 31)

crc32c_prepare()
cdef bint _crc_by_processor = crc32c_processor_can()


cdef inline uint32_t checksum(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    return crc32c_by_processor(0, at, size) if _crc_by_processor else crc32c_by_tables(0, at, size)


def checksums(data):
    """Return the checksum by each implementation on this machine; for the tests."""
    cdef _View view = _View(data)
    return crc32c_by_tables(0, view.data, view.size), checksum(view.data, view.size)


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
    Py_ssize_t first_row  # of the columns; set when it is filled


cdef inline int64_t big_endian(const uint8_t *at, int size) noexcept nogil:
    """Return a signed number of ``size`` bytes."""
    cdef uint64_t number = 0
    cdef int index
    for index in range(size):
        number = number << 8 | at[index]
    return <int64_t>(number << (64 - 8 * size)) >> (64 - 8 * size)


cdef struct Walk:
    # The position of a walk, and its rules; see _fallback.walk.
    int64_t position
    int64_t leader_epoch
    int64_t first_abort
    Py_ssize_t walked
    Py_ssize_t most
    bint check_crcs
    bint committed
    Py_ssize_t aborting  # the number of producers
    int64_t[MOST_ABORTING] producers


cdef inline bint is_ours(const uint8_t *head) noexcept nogil:
    """Return whether a batch is of format v2 and not compressed."""
    if head[16] != 2 or head[22] & CODEC_MASK:
        return False
    return HEADER_SIZE - 12 <= big_endian(head + 8, 4)


cdef bint is_aborting(const Walk *walk, int64_t producer) noexcept nogil:
    """Return whether an aborted transaction of the producer is under way."""
    cdef Py_ssize_t index
    for index in range(walk.aborting):
        if walk.producers[index] == producer:
            return True
    return False


@cython.final
cdef class Run:
    """The batches of one walk, as sections over one piece of memory."""

    cdef _View view
    cdef Memory room
    cdef Section *sections
    cdef Py_ssize_t count

    cdef int make_room(self, Py_ssize_t most) except -1:
        """Make room for ``most`` sections, and keep the present ones."""
        cdef Memory room = memory_for(most * sizeof(Section), c"B", 1)
        if self.count:
            memcpy(room.data, self.sections, self.count * sizeof(Section))
        self.room, self.sections = room, <Section *>room.data
        return 0

    cdef Py_ssize_t go(self, Py_ssize_t start, Walk *walk) noexcept nogil:
        """Walk from ``start`` to the first batch that is not plain; return its place."""
        cdef Py_ssize_t end
        while walk.walked < walk.most:
            end = self.step(start, walk)
            if end < 0:
                break
            walk.walked += 1 + (end - start) // BYTES_OF_EFFORT
            start = end
        return start

    cdef Py_ssize_t step(self, Py_ssize_t start, Walk *walk) noexcept nogil:
        """Walk over one batch; return its end, or -1 if it is not plain."""
        cdef const uint8_t *head = self.view.data + start
        cdef Section *section
        cdef int64_t size, attributes, base, last_delta, last, count, epoch
        cdef uint32_t crc
        cdef bint hidden = False
        if self.view.size - start < HEADER_SIZE or not is_ours(head):
            return -1
        size = big_endian(head + 8, 4) + 12
        if size > self.view.size - start:
            return -1
        attributes = head[21] << 8 | head[22]
        base, last_delta = big_endian(head, 8), big_endian(head + 23, 4)
        if base < 0 or last_delta < 0 or base > MAX_OFFSET:
            return -1
        last = base + last_delta
        if last < walk.position and not (walk.committed and attributes & CONTROL):
            return start + size
        if last >= walk.first_abort:
            return -1
        if walk.aborting and attributes & (TRANSACTIONAL | CONTROL):
            hidden = is_aborting(walk, big_endian(head + 43, 8))
            if hidden and attributes & CONTROL:
                return -1  # perhaps its end
            hidden = hidden and attributes & TRANSACTIONAL
        count = big_endian(head + 57, 4)
        if not 0 <= count <= (size - HEADER_SIZE) // MIN_RECORD:
            return -1
        if walk.check_crcs:
            crc = <uint32_t>big_endian(head + 17, 4)
            if checksum(head + CRC_START, size - CRC_START) != crc:
                return -1
        if not (hidden or attributes & CONTROL):
            section = &self.sections[self.count]
            self.count += 1
            section.start, section.end = head + HEADER_SIZE, head + size
            section.records = count
            section.base_offset, section.last_offset_delta = base, last_delta
            section.base_timestamp = big_endian(head + 27, 8)
            section.append_timestamp = big_endian(head + 35, 8)
            section.timestamp_type = 1 if attributes & LOG_APPEND else 0
            section.min_offset = walk.position
        epoch = big_endian(head + 12, 4)
        if epoch >= 0:
            walk.leader_epoch = epoch
        walk.position = max(walk.position, last + 1)
        return start + size


def walk(
    data, Py_ssize_t start, int64_t position, *, bint check_crcs, Py_ssize_t most, bint committed,
    first_abort, aborting,
):
    """See ``_fallback.walk``."""
    cdef Run run
    cdef Walk state
    cdef Py_ssize_t room, reached
    cdef _View view = _View(data)
    if not 0 <= start <= view.size:
        raise ValueError("a walk begins outside its data")
    room = min(most, (view.size - start) // HEADER_SIZE)
    if len(aborting) > MOST_ABORTING or room <= 0 or not is_ours(view.data + start):
        return start, position, -1, 0, None
    run = Run.__new__(Run)
    run.view = view
    run.make_room(room)
    state.position, state.leader_epoch, state.walked, state.most = position, -1, 0, room
    state.first_abort = MAX_INT64 if first_abort is None else first_abort
    state.check_crcs, state.committed, state.aborting = check_crcs, committed, 0
    for producer in aborting:
        state.producers[state.aborting] = producer
        state.aborting += 1
    with nogil:
        reached = run.go(start, &state)
    if run.count and run.count < room // 4:
        run.make_room(run.count)  # there may be many short runs
    return reached, state.position, state.leader_epoch, state.walked, run if run.count else None


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
        base, size = big_endian(head, 8), big_endian(head + 8, 4)
        last_delta = big_endian(head + 23, 4)
        if size < HEADER_SIZE - 12 or size > view.size - position - 12:
            break
        if last_delta >= 0 and base >= MAX_INT64 - last_delta:
            break
        if (base >= 0 or last_delta >= 0) and base + last_delta >= end:
            end = base + last_delta + 1
        position += 12 + size
    return end
