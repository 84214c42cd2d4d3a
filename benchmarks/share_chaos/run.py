"""A run: members, faults, and what the members' logs say at the end."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import trio
from trikafka_broker import Cluster

import trikafka
from benchmarks.chaos.nemesis import _move
from trikafka import ConfigResource, NewTopic

from .worker import LINE

ROOT = Path(__file__).parents[2]
PARTITIONS = 6
PROPERTIES = {
    "offsets.topic.num.partitions": "6",
    "share.coordinator.state.topic.num.partitions": "6",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
}
TOPIC, GROUP = "jobs", "workers"
_SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "15000",
    "share.delivery.count.limit": "10",
}
#: Kinds of faults, in these proportions.
_KINDS = ("member killed", "member frozen", "broker killed", "broker frozen", "leaders moved")
#: Seconds after the end of a fault in which its consequences may come: locks and sessions end.
_AFTER = 25.0
#: Otherwise the faults follow each other so closely that one of them excuses whatever happens. So
#: before each twentieth one comes a long pause (seconds).
_EVERY, _QUIET = 20, 60.0
#: Seconds for which a handler may go on after its record began elsewhere.
PAST = 0.1


@dataclass(frozen=True)
class Options:
    """The settings of a run; ``pause`` is the longest time (seconds) between two faults."""

    seed: int
    records: int = 2_000_000
    members: int = 8
    faults: int = 100
    pause: float = 4.0


class Handled(NamedTuple):
    """One handler's work on a record, by the machine's monotonic clock."""

    began: float
    ended: float
    delivery: int  # its number, from 1
    member: str
    whole: bool


class Fault(NamedTuple):
    """A fault, and the member that it struck; else an empty name."""

    began: float
    ended: float
    member: str


@dataclass
class Figures:
    """The results."""

    records: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    handled: int = 0
    again: int = 0  #: records that were handled more than once
    cut: int = 0  #: handlers that were cancelled
    longest_past: float = 0.0  #: seconds of a handler past its record's next beginning
    violations: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def violated(self, kind: str, what: object) -> None:
        """Count a violation; keep the first ones."""
        self.violations[kind] += 1
        if len(self.named) < 10:
            self.named.append(f"{kind}: {what}")


def check(
    handled: dict[tuple[int, int], list[Handled]],
    everything: set[tuple[int, int]],
    faults: Sequence[Fault],
    figures: Figures,
) -> None:
    """Judge what the members did, record by record."""

    def touched(since: float, until: float) -> bool:
        return any(each.began <= until and each.ended + _AFTER >= since for each in faults)

    for place in everything:
        if not any(each.whole for each in handled.get(place, ())):
            figures.violated("never accepted", place)
    for place, times in handled.items():
        figures.handled += len(times)
        figures.cut += sum(not each.whole for each in times)
        if len(times) == 1:
            if times[0].delivery > 1 and not touched(times[0].began - _AFTER, times[0].began):
                figures.violated("delivered again without a fault", (place, times))
            continue
        figures.again += 1
        times.sort()
        for earlier, later in pairwise(times):
            if not touched(earlier.began, later.began):
                figures.violated("delivered again without a fault", (place, earlier, later))
            past = earlier.ended - later.began
            # A frozen member cannot end its handlers.
            struck = any(
                each.member == earlier.member
                and each.began <= earlier.ended
                and each.ended + 1 >= later.began
                for each in faults
            )
            if past > 0 and not struck:
                figures.longest_past = max(figures.longest_past, past)
                if past > PAST:
                    figures.violated("a handler ran past its lock", (place, earlier, later))
        whole = Counter(each.delivery for each in times if each.whole)
        for count, accepted in whole.items():
            first, last = times[0].began, times[-1].began
            if accepted > 1 and not touched(first, last):
                figures.violated("accepted twice in one delivery", (place, count))


def pauses_of(options: Options, rng: random.Random) -> list[float]:
    """Return the seconds before each fault."""
    return [
        rng.uniform(0, options.pause) if number % _EVERY else _QUIET
        for number in range(1, options.faults + 1)
    ]


class Member:
    """A slot for a process of a member; each process has a name and a log of its own."""

    def __init__(self, number: int, bootstrap: str, directory: Path) -> None:
        self._number = number
        self._bootstrap = bootstrap
        self._directory = directory
        self._generation = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The name of the running process."""
        return f"member-{self._number}-{self._generation}"

    def start(self) -> None:
        """Start a process."""
        self._generation += 1
        path = self._directory / self.name
        arguments = [self._bootstrap, GROUP, TOPIC, str(path.with_suffix(".bin"))]
        with path.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.share_chaos.worker", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def run(
    options: Options,
    cluster: Cluster,
    directory: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Figures:
    """Run on ``cluster``. The members' logs go to ``directory``."""
    rng = random.Random(options.seed)
    figures = Figures(records=options.records)
    bootstrap = cluster.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({TOPIC: NewTopic(PARTITIONS, 3, {"min.insync.replicas": 2})})
        await admin.alter_configs({ConfigResource("group", GROUP): _SETTINGS})
    members = [Member(number, bootstrap, directory) for number in range(options.members)]
    for member in members:
        await trio.to_thread.run_sync(member.start)
    began = time.monotonic()
    faults: list[Fault] = []
    pauses = pauses_of(options, rng)
    try:
        async with trio.open_nursery() as nursery:
            seconds = sum(pauses) + 2 * options.faults
            nursery.start_soon(_feed, bootstrap, options, seconds, say)
            await _trouble(pauses, cluster, members, rng, faults, figures, say)
        await _drained(directory, options.records, say)
    finally:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                await trio.to_thread.run_sync(member.end, signal.SIGTERM)
    figures.seconds = time.monotonic() - began
    handled = await trio.to_thread.run_sync(_read, directory)
    each = options.records // PARTITIONS
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(each)}
    check(handled, everything, faults, figures)
    return figures


async def _feed(
    bootstrap: str, options: Options, seconds: float, say: Callable[[str], None]
) -> None:
    """Write the records over the time of the faults, as many into each partition."""
    each = options.records // PARTITIONS
    began = trio.current_time()
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        for offset in range(each):
            for partition in range(PARTITIONS):
                await producer.enqueue(TOPIC, b"%d" % offset, partition=partition)
            if offset % 100 == 99:
                await trio.sleep_until(began + seconds * offset / each)
    say(f"{options.records:,} records written")


async def _trouble(
    pauses: Sequence[float],
    cluster: Cluster,
    members: Sequence[Member],
    rng: random.Random,
    faults: list[Fault],
    figures: Figures,
    say: Callable[[str], None],
) -> None:
    """Cause the faults, one after the other."""
    kinds = [_KINDS[number % len(_KINDS)] for number in range(len(pauses))]
    rng.shuffle(kinds)
    for kind, pause in zip(kinds, pauses, strict=True):
        await trio.sleep(pause)
        member, broker = rng.choice(members), rng.choice(cluster.brokers)
        struck = member.name if kind.startswith("member") else ""
        began = time.monotonic()
        match kind:
            case "member killed":
                await trio.to_thread.run_sync(member.end, signal.SIGKILL)
                await trio.to_thread.run_sync(member.start)
            case "member frozen":
                member.send(signal.SIGSTOP)
                await trio.sleep(rng.uniform(0.2, 4))
                member.send(signal.SIGCONT)
            case "broker killed":
                await broker.kill()
                await broker.start()
            case "broker frozen":
                await broker.freeze()
                await trio.sleep(rng.uniform(0.5, 12))
                await broker.thaw()
            case _:
                nodes = [each.node_id for each in cluster.brokers]
                orders = {number: rng.sample(nodes, 3) for number in range(PARTITIONS)}
                await trio.to_thread.run_sync(_move, cluster.bootstrap_servers, TOPIC, orders)
        faults.append(Fault(began, time.monotonic(), struck))
        figures.faults[kind] += 1
        say(f"{kind} ({struck or broker.node_id})")


async def _drained(directory: Path, records: int, say: Callable[[str], None]) -> None:
    """Wait until each record was accepted; stop after two minutes without progress."""
    before, patience = -1, 24
    while patience:
        handled = await trio.to_thread.run_sync(_read, directory)
        done = sum(any(each.whole for each in times) for times in handled.values())
        if done >= records // PARTITIONS * PARTITIONS:
            say("each record was accepted")
            return
        patience = 24 if done > before else patience - 1
        before = done
        say(f"{done:,} records accepted")
        await trio.sleep(5)


def _read(directory: Path) -> dict[tuple[int, int], list[Handled]]:
    handled: dict[tuple[int, int], list[Handled]] = defaultdict(list)
    for path in sorted(directory.glob("member-*.bin")):
        data = path.read_bytes()
        whole = len(data) - len(data) % LINE.size
        for partition, offset, count, began, ended, clean in LINE.iter_unpack(data[:whole]):
            handled[partition, offset].append(Handled(began, ended, count, path.stem, clean))
    return handled
