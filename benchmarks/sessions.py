"""A soak of short SCRAM sessions: ``python -m benchmarks.sessions --minutes 3``.

It checks that no record is lost, duplicated or out of order while connections re-authenticate.

A broker over TLS accepts an authentication by SCRAM for ``--session`` seconds only (KIP-368). A
producer sends numbered records at a steady pace; a consumer in a group reads and commits them. In
the end each number must have arrived once and in its place, and the broker may not have closed any
connection. The output has the number and duration of the re-authentications, and the longest time
to an acknowledgement. A request that waits for a re-authentication waits no longer than that.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import trio
from trikafka_broker import KafkaCluster

import trikafka
from trikafka.interfaces import ConnectionObserver

TOPIC, PARTITIONS, RATE = "sessions", 3, 500


@dataclass
class Seen:
    """The observations of a run."""

    #: Acknowledged records and read records, by partition.
    acked: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    read: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    wrong: list[str] = field(default_factory=list)
    #: Seconds from send to acknowledgement.
    times: list[float] = field(default_factory=list)
    #: Re-authentications, by the connection's purpose.
    renewed: Counter[str] = field(default_factory=Counter)
    #: Seconds of each re-authentication.
    renewing: list[float] = field(default_factory=list)
    #: Connections that ended with an error.
    closed: list[str] = field(default_factory=list)


class Watching(ConnectionObserver):
    """An observer that records the re-authentications and errors of one client's connections."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        #: Seconds of re-authentication so far, by the connection's purpose.
        self._before: dict[str, float] = {}

    @trikafka.hookimpl
    def trikafka_observer(self, context: object) -> Watching:
        """Return this observer."""
        return self

    def connection_changed(self, event: trikafka.ConnectionEvent) -> None:
        """Record a re-authentication or an error. See :class:`ConnectionObserver`."""
        if event.before == "reauthenticating":
            self._seen.renewed[event.purpose] += 1
            self._seen.renewing.append(event.seconds - self._before.get(event.purpose, 0.0))
            self._before[event.purpose] = event.seconds
        if event.state == "closed":
            self._before.pop(event.purpose, None)
            if event.error is not None:
                self._seen.closed.append(f"{event.purpose}: {event.error}")


async def send(producer: trikafka.Producer, seen: Seen, seconds: float) -> None:
    """Send each record when it is due. Each partition has at most one record in flight."""

    async def fill(partition: int) -> None:
        begun = trio.current_time()
        while (now := trio.current_time()) - begun < seconds:
            await producer.send(TOPIC, b"%d" % seen.acked[partition], partition=partition)
            seen.times.append(trio.current_time() - now)
            seen.acked[partition] += 1
            await trio.sleep_until(begun + seen.acked[partition] * PARTITIONS / RATE)

    async with trio.open_nursery() as nursery:
        for partition in range(PARTITIONS):
            nursery.start_soon(fill, partition)


async def read(consumer: trikafka.Consumer, seen: Seen) -> None:
    """Read and check records until cancelled."""
    async for record in consumer:
        expected = seen.read[record.partition]
        if record.value != b"%d" % expected:
            seen.wrong.append(f"partition {record.partition}: {record.value!r} came for {expected}")
        seen.read[record.partition] += 1


async def run(cluster: KafkaCluster, minutes: float) -> Seen:
    """Run one producer and one consumer for ``minutes``."""
    seen = Seen()
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics({TOPIC: trikafka.NewTopic(PARTITIONS, 1)})
    settings: dict[str, Any] = cluster.client_settings("SCRAM-SHA-512")
    async with (
        trikafka.open_producer(linger_ms=0, plugins=[Watching(seen)], **settings) as producer,
        trikafka.open_consumer(
            TOPIC,
            group_id=TOPIC,
            auto_offset_reset="earliest",
            plugins=[Watching(seen)],
            **settings,
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, consumer, seen)
        await send(producer, seen, minutes * 60)
        with trio.move_on_after(30):
            while seen.read != seen.acked:  # noqa: ASYNC110 - the reader is another task
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    return seen


def main() -> int:
    """Run, and print the observations. Return 1 if any check failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument(
        "--session",
        type=float,
        default=5.0,
        help="seconds that the broker believes an authentication",
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    limit = {
        "listener.name.secured.scram-sha-512.connections.max.reauth.ms": int(given.session * 1000)
    }
    with KafkaCluster(tls=True, sasl=["scram"], properties=limit) as cluster:
        seen = trio.run(run, cluster, given.minutes)
    times = sorted(seen.times)
    renewing = sorted(seen.renewing)
    print(
        f"{sum(seen.acked):,} records acknowledged, {sum(seen.read):,} read, {len(seen.wrong)} "
        "lost, doubled or out of order"
    )
    print(f"{sum(seen.renewed.values())} reauthentications: {dict(sorted(seen.renewed.items()))}")
    print(f"connections that ended with an error: {seen.closed or 'none'}")
    for what, sizes in (("a reauthentication", renewing), ("an acknowledgement", times)):
        if sizes:
            print(
                f"{what} took {sizes[len(sizes) // 2] * 1e3:.1f} ms in the median, "
                f"{sizes[-1] * 1e3:.1f} ms at most"
            )
    for line in seen.wrong[:10]:
        print(line)
    good = seen.read == seen.acked and not seen.wrong and not seen.closed and bool(seen.renewed)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
