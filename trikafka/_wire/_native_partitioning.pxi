# Included by _native.pyx: the hashes of partitioners, over keys and whole columns of them.

# The hashes by number; see ``partitioning.KeyRule``.
cdef enum:
    HASH_MURMUR2 = 0
    HASH_CRC32 = 1
    HASH_FNV1A = 2

# The table of CRC-32 (reflected, polynomial 0xEDB88320), written once, when the module is imported.
cdef uint32_t crc32_table[256]


cdef void fill_crc32_table() noexcept nogil:
    cdef uint32_t state
    cdef int number, bit
    for number in range(256):
        state = <uint32_t>number
        for bit in range(8):
            if state & 1:
                state = state >> 1 ^ <uint32_t>0xEDB88320
            else:
                state >>= 1
        crc32_table[number] = state


fill_crc32_table()


cdef uint32_t crc32_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t state = 0xFFFFFFFF
    cdef Py_ssize_t pos
    for pos in range(size):
        state = state >> 8 ^ crc32_table[(state ^ data[pos]) & 0xFF]
    return ~state


cdef uint32_t fnv1a_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t state = 0x811C9DC5
    cdef Py_ssize_t pos
    for pos in range(size):
        state = (state ^ data[pos]) * <uint32_t>0x01000193
    return ~state + 1 if state >> 31 else state


cdef uint32_t murmur2_of(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t state = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t pos = 0
    while size - pos >= 4:
        k = data[pos] | <uint32_t>data[pos + 1] << 8
        k |= <uint32_t>data[pos + 2] << 16 | <uint32_t>data[pos + 3] << 24
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


cdef inline uint32_t hash_of(int kind, const char *key, Py_ssize_t size) noexcept nogil:
    if kind == HASH_MURMUR2:
        return murmur2_of(<const uint8_t *>key, size) & 0x7FFFFFFF
    if kind == HASH_CRC32:
        return crc32_of(<const uint8_t *>key, size)
    return fnv1a_of(<const uint8_t *>key, size)


cdef inline int32_t partition_of(
    int kind, const char *key, Py_ssize_t size, int32_t n_partitions
) noexcept nogil:
    return <int32_t>(hash_of(kind, key, size) % <uint32_t>n_partitions)


def murmur2(data):
    """Return Kafka's murmur2 as a signed 32-bit integer."""
    cdef _View view = _View(data)
    return <int32_t>murmur2_of(view.data, view.size)


def hash_key(int kind, data):
    """Return the hash that selects a partition; see ``_fallback_partitioning.hash_key``."""
    cdef _View view = _View(data)
    return hash_of(kind, <const char *>view.data, view.size)


def partition_columns(
    key_offsets, key_data, key_validity, int32_t n_partitions, explicit=None,
    int32_t keyless=-1, int kind=HASH_MURMUR2, Py_ssize_t shortest=0,
):
    """Return the partition of each row; see ``_fallback.partition_columns``."""
    if n_partitions < 1:
        raise ValueError("no partitions")
    cdef _BinaryView keys = _BinaryView(key_offsets, key_data, key_validity)
    cdef _View given = None if explicit is None else _View(explicit)
    cdef const int32_t *wanted = NULL
    cdef Py_ssize_t count = keys.offsets.size // 4 - 1
    cdef Py_ssize_t index, size
    cdef const char *key
    if given is not None and given.size // 4 < count:
        raise ValueError("the columns are not consistent")
    if given is not None:
        wanted = <const int32_t *>given.data
    made = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef int32_t *result = <int32_t *>PyBytes_AS_STRING(made)
    for index in range(count):
        if wanted != NULL and wanted[index] != -1:
            if not 0 <= wanted[index] < n_partitions:
                raise ValueError(f"partition {wanted[index]} of {n_partitions}")
            result[index] = wanted[index]
            continue
        key = keys.find(index, &size)
        if size < shortest:
            result[index] = keyless
        else:
            result[index] = partition_of(kind, key, max(size, 0), n_partitions)
    return memoryview(made).cast("i")


def group_rows(partitions, int32_t n_partitions):
    """Return the row numbers sorted by partition (stable), and the bounds of each partition."""
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
