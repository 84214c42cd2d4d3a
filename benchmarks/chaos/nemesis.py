"""The faults: a plan made from the seed, carried out on brokers, leaders and the network."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import trio
from trikafka_broker import Broker, Cluster, Fault, FaultProxy, Rule

from ..soak import move_leaders

_BOTH = "kill while another is frozen"
#: Kinds of broker faults, in these proportions. With two brokers down the cluster has no majority.
_BIG = ("kill", "freeze", "leader moved", "kill", "freeze", "leader moved", _BOTH)
#: Weights of the network faults.
_SMALL: dict[str, int] = {
    "cut": 2,
    "silence": 1,
    "slow": 1,
    **{fault.value: 2 for fault in Fault},
}


class Nemesis:
    """The faults of a run.

    ``counts`` has the faults that have happened, ``now`` those in progress.
    """

    def __init__(
        self, cluster: Cluster, proxy: FaultProxy, topic: str, partitions: int, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._topic = topic
        self._partitions = partitions
        self._rng = rng
        self.counts: Counter[str] = Counter()
        self.now: set[str] = set()

    async def trouble_brokers(self, seconds: float, count: int) -> None:
        """Cause ``count`` broker faults, spread over ``seconds``. Each ends before the next."""
        kinds = [_BIG[number % len(_BIG)] for number in range(count)]
        self._rng.shuffle(kinds)
        begun = trio.current_time()
        for number, kind in enumerate(kinds):
            await trio.sleep_until(begun + seconds * number / count)
            broker = self._rng.choice(self._cluster.brokers)
            match kind:
                case "kill":
                    await self._kill(broker, self._rng.uniform(0, 2))
                case "freeze":
                    await self._freeze(broker, self._rng.uniform(0.5, 7))
                case "leader moved":
                    await self._move_leaders()
                case _:
                    await self._kill_while_frozen()

    async def trouble_network(self, seconds: float) -> None:
        """Cause two network faults per second, for ``seconds``."""
        kinds = list(_SMALL)
        weights = list(_SMALL.values())
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(self._rng.expovariate(2))
            (kind,) = self._rng.choices(kinds, weights)
            port = self._rng.choice(self._cluster.brokers).port
            match kind:
                case "cut":
                    self._proxy.cut(port)
                case "silence":
                    await self._silence(port, self._rng.uniform(0.2, 3))
                case "slow":
                    await self._slow(self._rng.uniform(0.5, 2))
                case fault:
                    after = self._rng.randrange(3)
                    self._proxy.add(
                        Rule(Fault(fault), port=port, after=after, seconds=self._rng.uniform(0, 1))
                    )
        self._proxy.forget()

    @contextlib.contextmanager
    def _noted(self, kind: str, where: object = "") -> Any:
        name = f"{kind} {where}".strip()
        self.counts[kind] += 1
        self.now.add(name)
        try:
            yield
        finally:
            self.now.discard(name)

    async def _kill(self, broker: Broker, pause: float) -> None:
        with self._noted("kill", broker.node_id):
            await broker.kill()
            await trio.sleep(pause)
            await broker.start()

    async def _freeze(self, broker: Broker, seconds: float) -> None:
        with self._noted("freeze", broker.node_id):
            await broker.freeze()
            try:
                await trio.sleep(seconds)
            finally:
                await broker.thaw()

    async def _kill_while_frozen(self) -> None:
        killed, frozen = self._rng.sample(self._cluster.brokers, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._freeze, frozen, self._rng.uniform(2, 6))
            nursery.start_soon(self._kill, killed, self._rng.uniform(0, 2))

    async def _silence(self, port: int, seconds: float) -> None:
        with self._noted("silence", port):
            self._proxy.hold(port)
            try:
                await trio.sleep(seconds)
            finally:
                self._proxy.release(port)

    async def _slow(self, seconds: float) -> None:
        with self._noted("slow"):
            self._proxy.delay = 0.05
            try:
                await trio.sleep(seconds)
            finally:
                self._proxy.delay = 0.0

    async def _move_leaders(self) -> None:
        """Move the leaders of some partitions.

        The replicas get another order, and the first of them is elected.
        """
        chosen = self._rng.sample(range(self._partitions), max(1, self._partitions // 2))
        nodes = [broker.node_id for broker in self._cluster.brokers]
        orders = {number: self._rng.sample(nodes, len(nodes)) for number in chosen}
        with self._noted("leader moved"):
            await trio.to_thread.run_sync(
                move_leaders, self._cluster.bootstrap_servers, self._topic, orders
            )
