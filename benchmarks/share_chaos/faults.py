"""The faults: members and brokers are killed, frozen, and cut off from each other."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trio
from trikafka_broker import Broker, Cluster, FaultProxy

from benchmarks.soak import Worker, move_leaders

from .judge import Fault

#: Kinds of faults, in these proportions. *Cut* connections are reset, and new ones get no answer
#: for a while. *Silent* ones stay, and what was sent meanwhile arrives late.
KINDS = (
    "member killed",
    "member frozen",
    "member cut",
    "member silent",
    "broker killed",
    "broker frozen",
    "broker cut",
    "broker silent",
    "leaders moved",
)
#: The longest times (seconds) of faults that have an end. Silence outlasts the lock of a record,
#: and the session of a member.
_FROZEN_MEMBER = 4.0
_FROZEN_BROKER = 12.0
_CUT = 5.0
_SILENT = 20.0


class Member:
    """A slot for a process of a member, which reaches the brokers through a proxy of its own.

    Each process has a name and a log of its own.
    """

    def __init__(
        self, number: int, arguments: Sequence[str], path: Path, proxy: FaultProxy
    ) -> None:
        self._number = number
        self._path = path
        self._generation = 0
        ports = json.dumps([[*address, port] for address, port in proxy.ports.items()])
        log = path / f"member-{number}.log"
        self._worker = Worker("benchmarks.share_chaos.worker", [*arguments, ports], log)
        self.proxy = proxy

    @property
    def name(self) -> str:
        """The name of the running process."""
        return f"member-{self._number}-{self._generation}"

    @property
    def ended_by_itself(self) -> bool:
        """True if a process has ended that was not asked to, or has not ended in time."""
        return bool(self._worker.ends)

    def start(self) -> None:
        """Start a process."""
        self._generation += 1
        self._worker.start(str(self._path / f"{self.name}.bin"))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._worker.send(number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends the process, and wait for its end."""
        self._worker.end(number, 60)


class Nemesis:
    """The faults of a run, one after the other; ``faults`` has those that have ended."""

    def __init__(
        self,
        cluster: Cluster,
        members: Sequence[Member],
        topic: str,
        partitions: int,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._members = members
        self._topic = topic
        self._partitions = partitions
        self._rng = rng
        self.faults: list[Fault] = []

    def plan(self, count: int) -> list[str]:
        """Return the kinds of so many faults, in their order."""
        kinds = [KINDS[number % len(KINDS)] for number in range(count)]
        self._rng.shuffle(kinds)
        return kinds

    async def cause(self, kind: str, say: Callable[[str], None]) -> None:
        """Cause one fault, and wait until it is over."""
        member = self._rng.choice(self._members)
        broker = self._rng.choice(self._cluster.brokers)
        struck = member.name if kind.startswith("member") else ""
        began = time.monotonic()
        await self._cause(kind, member, broker)
        ended = time.monotonic()
        self.faults.append(Fault(began, ended, struck))
        say(f"{kind} ({struck or broker.node_id}), {ended - began:.1f} s")

    async def _cause(self, kind: str, member: Member, broker: Broker) -> None:
        uniform = self._rng.uniform
        proxies = [each.proxy for each in self._members]
        ports = [each.port for each in self._cluster.brokers]
        match kind:
            case "member killed":
                await trio.to_thread.run_sync(member.end, signal.SIGKILL)
                await trio.to_thread.run_sync(member.start)
            case "member frozen":
                member.send(signal.SIGSTOP)
                await trio.sleep(uniform(0.2, _FROZEN_MEMBER))
                member.send(signal.SIGCONT)
            case "member cut":
                await _cut([member.proxy], ports, uniform(0, _CUT))
            case "member silent":
                await _silence([member.proxy], ports, uniform(0.5, _SILENT))
            case "broker killed":
                await broker.kill()
                await broker.start()
            case "broker frozen":
                await broker.freeze()
                await trio.sleep(uniform(0.5, _FROZEN_BROKER))
                await broker.thaw()
            case "broker cut":
                await _cut(proxies, [broker.port], uniform(0, _CUT))
            case "broker silent":
                await _silence(proxies, [broker.port], uniform(0.5, _SILENT))
            case _:
                nodes = [each.node_id for each in self._cluster.brokers]
                orders = {number: self._rng.sample(nodes, 3) for number in range(self._partitions)}
                servers = self._cluster.bootstrap_servers
                await trio.to_thread.run_sync(move_leaders, servers, self._topic, orders)


async def _silence(proxies: Sequence[FaultProxy], ports: Sequence[int], seconds: float) -> None:
    """Pass nothing for so long."""
    for proxy in proxies:
        for port in ports:
            proxy.hold(port)
    await trio.sleep(seconds)
    for proxy in proxies:
        for port in ports:
            proxy.release(port)


async def _cut(proxies: Sequence[FaultProxy], ports: Sequence[int], seconds: float) -> None:
    """Reset all connections, and those that are made in the next ``seconds`` after these."""
    for proxy in proxies:
        for port in ports:
            proxy.hold(port)
            proxy.cut(port)
    await trio.sleep(seconds)
    for proxy in proxies:
        for port in ports:
            proxy.cut(port)
            proxy.release(port)
