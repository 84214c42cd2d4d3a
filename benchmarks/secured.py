"""What TLS and SASL cost: ``python -m benchmarks.secured``. One broker with a plain and a secured port, the same records by both.

Rows a second beside confluent-kafka over the same port, the time until a client is open, and what it costs to authenticate anew.
Kept apart from the plan of ``make bench``: it needs a broker of its own, and takes about two minutes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa
import trio
from trikafka_broker import KafkaCluster

import trikafka

_RECORDS, _SIZE, _RUNS, _OPENINGS = 2_000_000, 100, 3, 15
_TOPIC = "secured"
Settings = dict[str, Any]


def _say(name: str, port: str, rate: float, unit: str) -> None:
    print(f"{name:34} {port:10} {rate:10.3f} {unit}", flush=True)


async def _best(work: Callable[[], Awaitable[float]]) -> float:
    return max([await work() for _ in range(_RUNS)])


def _table(rows: int) -> pa.Table:
    return pa.table({"value": pa.array([b"%0*d" % (_SIZE, number) for number in range(rows)], pa.binary())})


async def _send_arrow(settings: Settings, table: pa.Table) -> float:
    async with trikafka.open_producer(**settings) as producer:
        began = time.perf_counter()
        await producer.send_arrow(_TOPIC, table)
        await producer.flush()
        return len(table) / (time.perf_counter() - began)


async def _send_nowait(settings: Settings, count: int = 500_000) -> float:
    value = b"x" * _SIZE
    async with trikafka.open_producer(**settings) as producer:
        began = time.perf_counter()
        for _ in range(count):
            try:
                producer.send_nowait(_TOPIC, value)
            except trio.WouldBlock:
                await producer.enqueue(_TOPIC, value)
        await producer.flush()
        return count / (time.perf_counter() - began)


async def _consume(settings: Settings, how: str, count: int) -> float:
    parts = [trikafka.TopicPartition(_TOPIC, number) for number in range(4)]
    async with trikafka.open_consumer(**settings) as consumer:
        consumer.assign(parts)
        consumer.seek_to_beginning()
        seen, began = 0, time.perf_counter()
        if how == "async for":
            async for _ in consumer:
                seen += 1
                if seen >= count:
                    break
        else:
            async for batch in consumer.batches():
                seen += len(batch.to_arrow()) if how == "arrow" else sum(1 for _ in batch)
                if seen >= count:
                    break
        return seen / (time.perf_counter() - began)


def _confluent(settings: dict[str, str], count: int) -> float:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    more = {"group.id": "bench", "queued.min.messages": "1000000", "fetch.message.max.bytes": "8388608"}
    consumer = Consumer({**settings, **more})
    consumer.assign([TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in range(4)])
    seen, began = 0, time.perf_counter()
    while seen < count:
        seen += len(consumer.consume(10_000, 1.0))
    rate = seen / (time.perf_counter() - began)
    consumer.close()
    return rate


async def _opening(settings: Settings) -> float:
    """Milliseconds until an admin client is open: one connection, negotiated, and metadata."""
    times = []
    for _ in range(_OPENINGS):
        began = time.perf_counter()
        async with trikafka.open_admin(**settings):
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


async def _renewing(settings: Settings) -> float:
    """Milliseconds that a connection takes to authenticate anew, of sessions of two seconds."""
    async with trikafka.open_consumer(**settings) as consumer:
        consumer.assign([trikafka.TopicPartition(_TOPIC, 0)])
        with trio.move_on_after(9):
            await trio.sleep_forever()
        spent = [each.seconds for each in consumer.statistics().connections if "reauthenticating" in each.seconds]
    return max(each["reauthenticating"] for each in spent) / 4 * 1000  # four or five times in nine seconds


async def _run(cluster: KafkaCluster) -> None:
    plain: Settings = {"bootstrap_servers": cluster.bootstrap_servers}
    secured: dict[str, Settings] = {"plain": plain, "TLS+SCRAM": cluster.client_settings("SCRAM-SHA-256")}
    others = {"plain": {"bootstrap.servers": cluster.bootstrap_servers}, "TLS+SCRAM": cluster.librdkafka_settings("SCRAM-SHA-256")}
    async with trikafka.open_admin(**plain) as admin:
        await admin.create_topics({_TOPIC: trikafka.NewTopic(4, 1)})
    table = _table(_RECORDS // 4)
    for port, settings in secured.items():
        _say("open a client", port, await _opening(settings), "ms")
        rate = max([await _send_arrow(settings, table) for _ in range(2)])
        _say("send_arrow", port, rate / 1e6, "M/s")
    for port, settings in secured.items():
        for how, count in (("arrow", _RECORDS), ("batches", _RECORDS), ("async for", _RECORDS // 4)):
            _say(f"consume, {how}", port, await _best(partial(_consume, settings, how, count)) / 1e6, "M/s")
        rate = await trio.to_thread.run_sync(_confluent, others[port], _RECORDS)
        _say("confluent-kafka consume()", port, rate / 1e6, "M/s")
    for port, settings in secured.items():
        _say("send_nowait", port, await _best(partial(_send_nowait, settings)) / 1e6, "M/s")
    _say("authenticate anew", "TLS+SCRAM", await _renewing(cluster.client_settings("SCRAM-SHA-512")), "ms")


def main() -> int:
    """Run them all."""
    sessions = {"listener.name.secured.scram-sha-512.connections.max.reauth.ms": 2_000}
    with KafkaCluster(tls=True, sasl=["scram"], properties=sessions, jvm_options=["-Xmx1g"]) as cluster:
        trio.run(_run, cluster)
    return 0


if __name__ == "__main__":
    sys.exit(main())
