# Included by _native.pyx: the work of a producer for each record, and the check of a table's rows
# before the first row is sent.

# The default of ``headers``. The fast path compares by identity, and leaves all other values to
# ``carefully``: a NumPy array, for example, has no truth value.
cdef tuple NO_HEADERS = ()
cdef object MISSING = object()  # an argument that was not given


cdef dict given_of(topic, value):
    """Return those of the arguments that were given."""
    given = {"topic": topic, "value": value}
    return {name: each for name, each in given.items() if each is not MISSING}




@cython.no_gc
cdef class DeliveryHandle:
    """The place of an accepted record: a batch, the index in the batch, and the timestamp.

    The garbage collector does not track handles: programs hold millions of them, and they refer
    only to a batch, which refers to none of them. Subclasses written in Python may be tracked, so
    :meth:`Appender.make` untracks each handle.
    """

    cdef readonly object _batch
    cdef readonly Py_ssize_t _index
    cdef readonly int64_t _timestamp


cdef class BufferMemory:
    """See ``_fallback_producing.BufferMemory``."""

    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t free
    cdef readonly list waiters

    def __init__(self, Py_ssize_t capacity):
        self.capacity = self.free = capacity
        self.waiters = []

    def take(self, Py_ssize_t size):
        self.free -= size

    def give(self, Py_ssize_t size):
        self.free += size
        if self.waiters:
            self.waiters[0].set()


cdef class OpenBatches:
    """See ``_fallback_producing.OpenBatches``."""

    cdef readonly list encoders
    cdef readonly Py_ssize_t sticky

    def __init__(self):
        self.encoders = []
        self.sticky = -1

    def resize(self, Py_ssize_t count):
        del self.encoders[count:]
        self.encoders.extend([None] * (count - len(self.encoders)))
        self.sticky = -1

    def open(self, Py_ssize_t partition, BatchEncoder encoder not None):
        self.encoders[partition] = encoder

    def close(self, Py_ssize_t partition):
        self.encoders[partition] = None

    def stick(self, Py_ssize_t partition):
        if not -1 <= partition < len(self.encoders):
            raise IndexError(f"partition {partition} of {len(self.encoders)}")
        self.sticky = partition


cdef class Appender:
    """See ``_fallback_producing.Appender``."""

    cdef readonly dict topics
    cdef BufferMemory memory
    cdef Py_ssize_t batch_size
    cdef Py_ssize_t largest
    cdef bint careful
    cdef int key_hash
    cdef Py_ssize_t shortest_key
    cdef object handle
    cdef object carefully

    def __init__(
        self, handle, carefully, BufferMemory memory not None, Py_ssize_t batch_size,
        Py_ssize_t largest, *,
        bint careful=False, int key_hash=HASH_MURMUR2, Py_ssize_t shortest_key=0,
    ):
        if not (isinstance(handle, type) and issubclass(handle, DeliveryHandle)):
            raise TypeError("handles are a subclass of DeliveryHandle")
        self.handle, self.carefully, self.memory = handle, carefully, memory
        self.batch_size, self.largest = batch_size, largest
        self.careful, self.key_hash, self.shortest_key = careful, key_hash, shortest_key
        self.topics = {}

    cpdef make(self, batch, Py_ssize_t index, int64_t timestamp):
        cdef DeliveryHandle made = <DeliveryHandle>new_of(self.handle, ())
        made._batch, made._index, made._timestamp = batch, index, timestamp
        if PyObject_IS_GC(made):
            PyObject_GC_UnTrack(<void *>made)
        return made

    cdef BatchEncoder find(self, topic, key, partition):
        """Return the encoder of the open batch for a record; ``None``: the fast path has none."""
        cdef OpenBatches batches = self.topics.get(topic) if type(topic) is str else None
        cdef Py_ssize_t count, size
        cdef const char *data = NULL
        cdef int64_t number
        if batches is None:
            return None
        count = len(batches.encoders)
        if partition is None:
            size = -1
            if key is not None:
                size = PyBytes_GET_SIZE(key)
                data = PyBytes_AS_STRING(key)
            if size < self.shortest_key:
                number = batches.sticky
            elif count:
                number = partition_of(self.key_hash, data, max(size, 0), <int32_t>count)
            else:
                return None
        elif type(partition) is int and 0 <= partition < count:
            number = partition
        else:
            return None
        return None if number < 0 else batches.encoders[number]

    # The fast path only recognizes a common record. All decisions are those of
    # ``Accumulator.append``, and an unusual record goes there by ``carefully``: other types,
    # headers, callers that wait for room, an unknown topic, no open batch with room, an invalid
    # timestamp. Only ``carefully`` raises errors.
    def append(self, topic, value, key, headers, timestamp, partition):
        made = self.append_common(topic, value, key, headers, timestamp, partition)
        if made is None:
            return self.carefully(topic, value, key, headers, timestamp, partition)
        return made

    cdef object append_common(self, topic, value, key, headers, timestamp, partition):
        """Append a record and return its handle; ``None``: it is for ``carefully``."""
        cdef BatchEncoder encoder
        cdef BufferMemory memory = self.memory
        cdef Py_ssize_t size = RECORD_OVERHEAD
        cdef Py_ssize_t index, before
        cdef int64_t stamp
        if (
            self.careful
            or (headers is not None and headers is not NO_HEADERS)
            or len(memory.waiters)
            or not (value is None or PyBytes_CheckExact(value))
            or not (key is None or PyBytes_CheckExact(key))
        ):
            return None
        if value is not None:
            size += PyBytes_GET_SIZE(value)
        if key is not None:
            size += PyBytes_GET_SIZE(key)
        encoder = self.find(topic, key, partition)
        if timestamp is None:
            stamp = now_ms()
        elif type(timestamp) is int and 0 <= timestamp <= MAX_TIMESTAMP:
            stamp = timestamp
        else:
            stamp = -1
        if (
            encoder is None or stamp < 0 or size > self.largest or size + HEADER_SIZE > memory.free
            or HEADER_SIZE + encoder.length + size > self.batch_size
        ):
            return None
        before = encoder.length
        index = encoder.append_plain(stamp, key, value)
        memory.free -= encoder.length - before
        return self.make(encoder.owner, index, stamp)


@cython.final
cdef class QuickSending(_Source):
    """See ``_fallback_producing.QuickSending``."""

    cdef Appender appender
    cdef Turn turn
    cdef object gate
    cdef object complete_enqueue
    cdef object complete_send
    cdef bint closed
    cdef object made  # the handle, from `has_next` to `next_item`

    def __init__(
        self, Appender appender not None, Turn turn not None, gate, complete_enqueue, complete_send
    ):
        self.appender, self.turn, self.gate = appender, turn, gate
        self.complete_enqueue, self.complete_send = complete_enqueue, complete_send
        self.closed = False

    def close(self):
        self.closed = True

    cdef object append_common(self, topic, value, key, headers, timestamp, partition):
        if self.closed or not (self.gate is None or self.gate.takes_records):
            return None
        return self.appender.append_common(topic, value, key, headers, timestamp, partition)

    def send_nowait(
        self, topic=MISSING, value=MISSING, *, key=None, headers=NO_HEADERS, timestamp=None,
        partition=None,
    ):
        """Accept a record without waiting; see ``Producer.send_nowait``."""
        if topic is MISSING or value is MISSING:
            return self.complete_send(**given_of(topic, value))  # raises
        made = self.append_common(topic, value, key, headers, timestamp, partition)
        if made is None:
            return self.complete_send(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
            )
        return made

    def enqueue(
        self, topic=MISSING, value=MISSING, *, key=None, headers=NO_HEADERS, timestamp=None,
        partition=None,
    ):
        """Accept a record into the buffer and return its ack; see ``Producer.enqueue``."""
        if topic is MISSING or value is MISSING:
            return self.complete_enqueue(**given_of(topic, value))  # raises
        return awaitable_of(self, 0, (topic, value, key, headers, timestamp, partition))

    # The record is appended last: `goes_on` calls Python, where a signal's handler may close the
    # producer.
    cdef bint has_next(self, int step, tuple given) except -1:
        if not self.turn.goes_on():
            return False
        topic, value, key, headers, timestamp, partition = given
        self.made = self.append_common(topic, value, key, headers, timestamp, partition)
        return self.made is not None

    cdef object next_item(self, int step, tuple given):
        made, self.made = self.made, None
        return made

    cdef object complete_way(self, int step, tuple given):
        topic, value, key, headers, timestamp, partition = given
        return self.complete_enqueue(
            topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )


def find_unfit(columns, Py_ssize_t largest):
    """Return the first row that no batch can take.

    See ``_fallback_partitioning.find_unfit``.
    """
    cdef _View timestamps = _View(columns.timestamps)
    cdef _BinaryView keys = keys_of(columns)
    cdef _BinaryView values = values_of(columns)
    cdef _HeadersView headers = headers_view(columns)
    cdef Py_ssize_t count = min(<Py_ssize_t>columns.count, timestamps.size // 8)
    cdef Py_ssize_t row, size
    cdef Plain plain_rows = Plain(
        NULL, count, <const int64_t *>timestamps.data, keys.column(), values.column()
    )
    row = 0
    while row < count:
        if headers is None:
            row = first_odd(&plain_rows, row, largest)
            if row == count:
                break
        if not 0 <= plain_rows.timestamps[row] <= MAX_TIMESTAMP:
            return row, -1
        size = bound_of(row, keys, values, headers)
        if size > largest:
            return row, size
        row += 1
    return None


cdef Py_ssize_t first_odd(const Plain *plain_rows, Py_ssize_t row, Py_ssize_t largest) noexcept:
    """Return the first row from ``row`` on, without headers, that is too large or invalid."""
    cdef Py_ssize_t key_size, value_size
    cdef const char *data
    while row < plain_rows.count:
        key_size = field_of(&plain_rows.keys, row, &data)
        value_size = field_of(&plain_rows.values, row, &data)
        if key_size < -1 or value_size < -1:
            break
        if RECORD_OVERHEAD + max(key_size, 0) + max(value_size, 0) > largest:
            break
        if not 0 <= plain_rows.timestamps[row] <= MAX_TIMESTAMP:
            break
        row += 1
    return row


cdef Py_ssize_t bound_of(
    Py_ssize_t row, _BinaryView keys, _BinaryView values, _HeadersView headers
) except -1:
    """Return the upper bound of a row's size.

    Raises ``ValueError`` where the columns are not consistent.
    """
    cdef Py_ssize_t key_size, value_size, name_size, content_size
    cdef Py_ssize_t size = RECORD_OVERHEAD
    cdef int32_t first = 0, end = 0, index
    keys.find(row, &key_size)
    values.find(row, &value_size)
    size += max(key_size, 0) + max(value_size, 0)
    if headers is not None:
        headers.bounds(row, &first, &end)
        for index in range(first, end):
            headers.names.find(index, &name_size)
            headers.contents.find(index, &content_size)
            size += HEADER_OVERHEAD + name_size + max(content_size, 0)
    return size
