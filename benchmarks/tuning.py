"""The settings of every client, in one place.

Keys are the clients' own names. ``docs/benchmarks-method.md`` describes the settings, too.
"""

from __future__ import annotations

from typing import Any

# How each peer is tuned:
#
# * The same guarantees for all. Checksums are checked, which librdkafka does only with check.crcs.
#   Producers are idempotent with acks=all. There are no groups and no commits, except in the cases
#   about groups and transactions.
# * The same sizes for all, where a client has the setting: bytes per partition and per response of
#   a fetch, bytes of a batch, linger. trikafka otherwise has its defaults, buffers included.
# * librdkafka gets large queues (four times trikafka's buffer) and a short fetch backoff, so that
#   it does not stop fetching for long when its queue is full. As one of many consumers it has its
#   default queues, since the large ones are meant for a single consumer.
# * Clients that return a limited number of records per call get a large limit (max_poll_records).
# * franz-go may buffer as many records as librdkafka, so both meet the same backpressure.
# * Members of a group keep their clients' defaults. Only the protocol is chosen.

#: Bytes of one partition, of one response, and of one batch.
_PARTITION_FETCH = 4 * 2**20
_FETCH = 50 * 2**20
_BATCH = 256 * 2**10
#: Milliseconds for which a batch may wait for more records, by the way of sending. In the way
#: ``one`` no task waits for an acknowledgement; in ``concurrent`` every task waits for its own.
_LINGER = {"one": 20, "enqueue": 20, "arrow": 20, "concurrent": 2, "latency": 0}

#: The raw reader requests the same sizes as trikafka.
RAW = {"max_partition_fetch_bytes": _PARTITION_FETCH, "fetch_max_bytes": _FETCH}
#: The raw writer sends the same batch again and again, so it cannot number its batches.
RAW_WRITER = {"acks": "all", "enable_idempotence": False, "linger_ms": 0}
_COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}


def trikafka_consumer() -> dict[str, Any]:
    return {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_partition_fetch_bytes": _PARTITION_FETCH,
    }


def trikafka_member(way: str) -> dict[str, Any]:
    """Return the settings of a group's member: the defaults, and the chosen protocol."""
    protocol = (
        {"group_protocol": "consumer"}
        if way == "consumer"
        else {"group_protocol": "classic", **_COOPERATIVE}
    )
    return {"auto_offset_reset": "latest", **protocol}


def trikafka_producer(way: str, compression: str) -> dict[str, Any]:
    return {"linger_ms": _LINGER[way], "batch_size": _BATCH, "compression_type": compression}


def trikafka_processing(name: str, compression: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a consumer and a producer that process records in transactions."""
    reading = {**trikafka_consumer(), "group_id": name, "isolation_level": "read_committed"}
    return reading, {**trikafka_producer("one", compression), "transactional_id": name}


def confluent_consumer() -> dict[str, Any]:
    return {
        "group.id": "benchmark",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "check.crcs": True,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 262_144,
        "fetch.queue.backoff.ms": 5,
        "fetch.message.max.bytes": _PARTITION_FETCH,
        "fetch.max.bytes": _FETCH,
        "socket.nagle.disable": True,
    }


def confluent_of_many() -> dict[str, Any]:
    """Return the settings of one of many consumers.

    The large queues are meant for a single consumer, so these have the default ones.
    """
    large = ("queued.min.messages", "queued.max.messages.kbytes")
    return {name: value for name, value in confluent_consumer().items() if name not in large}


def confluent_member(way: str) -> dict[str, Any]:
    protocol = (
        {"group.protocol": "consumer"}
        if way == "consumer"
        else {"partition.assignment.strategy": "cooperative-sticky"}
    )
    return {"auto.offset.reset": "latest", **protocol}


def confluent_processing(name: str, compression: str) -> tuple[dict[str, Any], dict[str, Any]]:
    reading = {**confluent_consumer(), "group.id": name, "isolation.level": "read_committed"}
    return reading, {**confluent_producer("one", compression), "transactional.id": name}


def confluent_producer(way: str, compression: str) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": _LINGER[way],
        "batch.size": _BATCH,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_048_576,
        "compression.type": compression,
        "socket.nagle.disable": True,
    }


def aiokafka_consumer() -> dict[str, Any]:
    return {
        "group_id": None,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_partition_fetch_bytes": _PARTITION_FETCH,
        "fetch_max_bytes": _FETCH,
    }


def aiokafka_member() -> dict[str, Any]:
    """Return the settings of a member. All of aiokafka's assignors are eager."""
    return {"auto_offset_reset": "latest"}


def aiokafka_producer(way: str, compression: str) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": _LINGER[way],
        "max_batch_size": _BATCH,
        "compression_type": None if compression == "none" else compression,
    }


def kafka_python_consumer() -> dict[str, Any]:
    return {
        "group_id": None,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_partition_fetch_bytes": _PARTITION_FETCH,
        "fetch_max_bytes": _FETCH,
        "max_poll_records": 10_000,
    }


def kafka_python_producer(way: str, compression: str) -> dict[str, Any]:
    return {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": _LINGER[way],
        "batch_size": _BATCH,
        "compression_type": None if compression == "none" else compression,
    }


def java_consumer() -> dict[str, Any]:
    return {
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.partition.fetch.bytes": _PARTITION_FETCH,
        "fetch.max.bytes": _FETCH,
        "max.poll.records": 10_000,
    }


def java_share_consumer(mode: str) -> dict[str, Any]:
    """Return the settings of a share consumer, which may hold as many records as ours."""
    return {
        "share.acknowledgement.mode": mode,
        "fetch.max.bytes": _FETCH,
        "max.poll.records": 20_000,
    }


def java_member(way: str) -> dict[str, Any]:
    assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    protocol = (
        {"group.protocol": "consumer"}
        if way == "consumer"
        else {"partition.assignment.strategy": assignor}
    )
    return {"auto.offset.reset": "latest", **protocol}


def java_processing(name: str, compression: str) -> tuple[dict[str, Any], dict[str, Any]]:
    reading = {**java_consumer(), "group.id": name, "isolation.level": "read_committed"}
    writing = {
        "acks": "all",
        "linger.ms": _LINGER["one"],
        "batch.size": _BATCH,
        "compression.type": compression,
    }
    return reading, {**writing, "transactional.id": name}


def franz_consumer() -> dict[str, Any]:
    """Return franz-go's options, by their names without ``kgo.``."""
    return {"FetchMaxPartitionBytes": _PARTITION_FETCH, "FetchMaxBytes": _FETCH}


def franz_share_consumer(group: str) -> dict[str, Any]:
    """Return franz-go's options for a member of a share group.

    A fetch may have as many records as Java's.
    """
    return {**franz_consumer(), "ShareGroup": group, "ShareMaxRecords": 20_000}


def franz_producer(way: str, compression: str) -> dict[str, Any]:
    """Return franz-go's options for a producer.

    ``MaxBufferedRecords`` is the number of records that librdkafka may buffer, too.
    """
    lingers = {
        "ProducerLinger": _LINGER[way],
        "ProducerBatchMaxBytes": _BATCH,
        "MaxBufferedRecords": 1_000_000,
    }
    return {**lingers, "ProducerBatchCompression": compression}
