"""A run: producers, writers and faults at once, then the check.

This module owns all of them.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from trikafka_broker import Cluster, FaultProxy

from trikafka import NewTopic, Producer, open_producer

from ..librdkafka import messages_of, wait_until_in_sync
from ..soak import make_topics, opened_at_last
from .check import Found, Verdict, check, read_all
from .ledger import Ledger
from .nemesis import Nemesis
from .transacting import TOPIC as TRANSACTIONS
from .transacting import Register, TransactionWriter, check_transactions, left_open
from .writers import Pace, Target, Writer

PARTITIONS = 6
_TOPIC = "chaos"
#: Seconds within which all accepted records must have outcomes after the last fault.
_PATIENCE = 400.0
#: Properties of the brokers.
PROPERTIES: dict[str, object] = {"min.insync.replicas": 2, "log.retention.ms": -1}
#: The producers: their share of the records, and their settings. Records of the last one may
#: expire.
_PRODUCERS: dict[str, tuple[float, dict[str, Any]]] = {
    "plain": (0.45, {"request_timeout_ms": 4_000}),
    "packed": (
        0.35,
        {"request_timeout_ms": 4_000, "compression_type": "lz4", "batch_size": 65_536},
    ),
    "hasty": (0.2, {"request_timeout_ms": 1_500, "delivery_timeout_ms": 3_000, "linger_ms": 2}),
}
_MAY_FAIL = "hasty"
#: Milliseconds by which ``request_timeout_ms`` is shorter than ``delivery_timeout_ms`` at least.
#: The latter must also leave room for lingering.
_ROOM = 100
#: The calls: the tasks of each producer that make them, and their share of its records.
_CALLS: dict[str, tuple[int, float]] = {
    "send": (40, 0.1),
    "enqueue": (3, 0.3),
    "send_nowait": (3, 0.3),
    "send_arrow": (2, 0.3),
}


@dataclass(frozen=True)
class Options:
    """The number of records, of seconds and of broker faults of a run."""

    seed: int
    seconds: float = 300.0
    records: int = 1_200_000
    troubles: int = 36
    size: int = 100
    transacting: int = 3  # additional producers that write transactions
    #: ``delivery_timeout_ms`` of every producer, in seconds. With ``None`` only the hasty producer
    #: has a short one.
    delivery_timeout: float | None = None


@dataclass
class Figures:
    """The results of a run."""

    written: int
    acked: int
    verdict: Verdict
    faults: Counter[str]
    errors: Counter[str]
    log: Counter[str]
    seconds: float = 0.0
    #: The longest time in which a producer with waiting batches delivered nothing, and the faults
    #: in progress meanwhile.
    standstill: dict[str, tuple[float, str]] = field(default_factory=dict)
    retried: int = 0
    #: Transactions by outcome, and the number of their records that readers of committed records
    #: see.
    transactions: Counter[str] = field(default_factory=Counter)
    transacted: int = 0


class LogCount(logging.Handler):
    """A handler that counts the lines of the log, by level and message."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines[f"{record.levelname} {record.name}: {record.msg}"] += 1


async def run(
    options: Options, cluster: Cluster, tell: Callable[[str], object] = lambda line: None
) -> Figures:
    """Write under faults, then read everything again and check.

    The brokers of ``cluster`` must be up before, and are up afterwards.
    """
    rng = random.Random(options.seed)
    topic = NewTopic(PARTITIONS, 3, {"min.insync.replicas": "2"})
    await make_topics(cluster.bootstrap_servers, {_TOPIC: topic, TRANSACTIONS: topic})
    ledger = Ledger(PARTITIONS)
    register = Register(PARTITIONS)
    log = LogCount()
    begun = time.monotonic()
    logging.getLogger("trikafka").addHandler(log)
    try:
        async with FaultProxy.open(cluster.bootstrap_servers.split(",")) as proxy:
            nemesis = Nemesis(cluster, proxy, _TOPIC, PARTITIONS, rng)
            retried, standstill = await _write(
                options, cluster, proxy, nemesis, ledger, register, tell
            )
            faults = nemesis.counts + proxy.counts
        still_open = await left_open(cluster.bootstrap_servers)
    finally:
        logging.getLogger("trikafka").removeHandler(log)
    seconds = time.monotonic() - begun
    # A broker that has just restarted may still elect leaders. A new leader answers readers up to
    # its high watermark, which may lie before records that its predecessor acknowledged.
    await trio.to_thread.run_sync(
        lambda: wait_until_in_sync(cluster.bootstrap_servers, [_TOPIC, TRANSACTIONS])
    )
    tell("reading everything by librdkafka")
    verdict = await trio.to_thread.run_sync(
        lambda: check(ledger, read_all(cluster.bootstrap_servers, _TOPIC))
    )
    transacted = await trio.to_thread.run_sync(
        lambda: check_transactions(register, _committed(cluster.bootstrap_servers))
    )
    verdict.add(transacted)
    for what in still_open:
        verdict.violation("transactions: left open", what)
    said = sum(
        count for line, count in log.lines.items() if line.startswith("WARNING trikafka.produce:")
    )
    if said > len(_PRODUCERS) * (seconds + 1):  # one a second and topic, for each producer
        verdict.violation(
            "too many lines in the log",
            f"{said} of records that were not delivered in {seconds:.0f} s",
        )
    written, acked = ledger.count()
    errors = ledger.errors + register.errors
    transactions = register.count()
    return Figures(
        written,
        acked,
        verdict,
        faults,
        errors,
        log.lines,
        seconds,
        standstill,
        retried,
        transactions,
        transacted.records,
    )


def _committed(bootstrap: str) -> Iterator[Found]:
    for message in messages_of(bootstrap, TRANSACTIONS, "read_committed"):
        yield message.partition(), message.offset(), message.value()


async def _write(
    options: Options,
    cluster: Cluster,
    proxy: FaultProxy,
    nemesis: Nemesis,
    ledger: Ledger,
    register: Register,
    tell: Callable[[str], object],
) -> tuple[int, dict[str, tuple[float, str]]]:
    standstill: dict[str, tuple[float, str]] = {}
    async with _opened(options, cluster, proxy) as producers, trio.open_nursery() as watching:
        for name, producer in producers.items():
            watching.start_soon(_watch, name, producer, nemesis, standstill)
        watching.start_soon(_progress, producers, nemesis, tell)
        limit = trio.CancelScope()
        with limit:
            async with trio.open_nursery() as nursery:
                for name, producer in producers.items():
                    share, _ = _PRODUCERS[name]
                    _start_writers(
                        nursery, options, name, producer, options.records * share, ledger
                    )
                end = trio.current_time() + options.seconds
                for number in range(options.transacting):
                    own = f"transacting-{number}"
                    writer = TransactionWriter(
                        own, register, random.Random(f"{options.seed} {own}")
                    )
                    nursery.start_soon(
                        writer.run, cluster.bootstrap_servers, proxy.dial, end, name=own
                    )
                async with trio.open_nursery() as troubles:
                    troubles.start_soon(nemesis.trouble_brokers, options.seconds, options.troubles)
                    troubles.start_soon(nemesis.trouble_network, options.seconds)
                tell("the faults are over; waiting for the outcome of accepted records")
                limit.deadline = trio.current_time() + _PATIENCE
        if limit.cancelled_caught:
            ledger.unexpected[f"writers: not done {_PATIENCE:g} s after the last trouble"] += 1
        watching.cancel_scope.cancel()
        retried = sum(producer.statistics().batches_retried for producer in producers.values())
    return retried, standstill


@asynccontextmanager
async def _opened(
    options: Options, cluster: Cluster, proxy: FaultProxy
) -> AsyncIterator[dict[str, Producer]]:
    async with AsyncExitStack() as stack:
        producers = {}
        for name, (_, settings) in _PRODUCERS.items():
            if options.delivery_timeout is not None:
                limit = options.delivery_timeout * 1_000
                timeout = min(settings["request_timeout_ms"], limit - _ROOM)
                settings = settings | {"delivery_timeout_ms": limit, "request_timeout_ms": timeout}
            given: dict[str, Any] = {
                "bootstrap_servers": cluster.bootstrap_servers,
                "dial": proxy.dial,
                "client_id": name,
            } | settings
            opening = partial(open_producer, **given)
            producers[name] = await opened_at_last(stack, opening)
        yield producers


def _start_writers(
    nursery: trio.Nursery,
    options: Options,
    name: str,
    producer: Producer,
    records: float,
    ledger: Ledger,
) -> None:
    for call, (tasks, share) in _CALLS.items():
        for number in range(tasks):
            own = f"{name}-{call}-{number}"
            total = int(records * share / tasks)
            pace = Pace(total / (options.seconds * 0.95), total)
            target = Target(
                producer, _TOPIC, may_fail=options.delivery_timeout is not None or name == _MAY_FAIL
            )
            writer = Writer(
                own, target, ledger, pace, random.Random(f"{options.seed} {own}"), options.size
            )
            nursery.start_soon(getattr(writer, call), name=own)


async def _watch(
    name: str, producer: Producer, nemesis: Nemesis, standstill: dict[str, tuple[float, str]]
) -> None:
    """Record the longest time in which a producer with waiting batches delivered nothing."""
    standstill[name] = (0.0, "")
    delivered = 0
    since = trio.current_time()
    meanwhile: set[str] = set()
    while True:
        await trio.sleep(0.02)
        statistics = producer.statistics()
        now = trio.current_time()
        if statistics.records_delivered != delivered or not statistics.batches_waiting:
            delivered, since = statistics.records_delivered, now
            meanwhile = set(nemesis.now)
            continue
        meanwhile |= nemesis.now
        if now - since > standstill[name][0]:
            standstill[name] = (now - since, ", ".join(sorted(meanwhile)) or "nothing")


async def _progress(
    producers: dict[str, Producer], nemesis: Nemesis, tell: Callable[[str], object]
) -> None:
    while True:
        await trio.sleep(10)
        delivered = sum(producer.statistics().records_delivered for producer in producers.values())
        troubles = ", ".join(f"{count} {kind}" for kind, count in sorted(nemesis.counts.items()))
        tell(f"{delivered:,} records delivered; {troubles}")
