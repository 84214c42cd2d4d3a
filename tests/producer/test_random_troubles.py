"""Random troubles on a scripted cluster, from a seed, in virtual time, and the resulting log.

Some troubles last as long as the delivery timeout, so batches expire in every phase. Delivered
records are in the log once, failed ones at most once, and all in order.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from producing import opened
from trio.testing import MockClock as Clock

from trikafka import TrikafkaError
from trikafka._api.producer.ack import Ack
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster, faults
from trikafka.testing.script import Rule

Default = Callable[[], Awaitable[Any]]
PARTITIONS = 2
TROUBLES = 25


class Troubles:
    """A series of random faults."""

    def __init__(self, cluster: ScriptedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._late: list[list[Default]] = []
        self._rules: list[Rule] = []

    async def run(self) -> None:
        kinds = [
            self._lose_request,
            self._lose_response,
            self._arrive,
            self._cut,
            self._drop,
            self._damage,
            self._refuse,
            self._move,
            self._freeze,
            self._stop,
            self._slow,
            *[self._late_bytes, self._arrive_after] * 2,
        ]
        for _ in range(TROUBLES):
            await trio.sleep(self._rng.expovariate(3))
            await self._rng.choice(kinds)()
        for rule in self._rules:
            rule.remove()
        while self._late:
            await self._arrive()

    def _some(self) -> int:
        return self._rng.choice((1, 1, 1, 2, 3, 5))

    async def _lose_request(self) -> None:
        async def lose(request: Any, default: Default) -> None:
            pass

        self._rules.append(self._cluster.on("Produce", lose, times=self._some()))

    async def _lose_response(self) -> None:
        async def lose(request: Any, default: Default) -> None:
            await default()

        self._rules.append(self._cluster.on("Produce", lose, times=self._some()))

    async def _late_bytes(self) -> None:
        count = self._some()
        kept: list[Default] = []

        async def keep(request: Any, default: Default) -> None:
            kept.append(default)
            if len(kept) == count:
                self._late.append(kept)
                self._cluster.disconnect()

        self._rules.append(
            self._cluster.on("Produce", keep, times=count, node=self._rng.randrange(2))
        )

    async def _arrive(self) -> None:
        if self._late:
            for default in self._late.pop(self._rng.randrange(len(self._late))):
                await default()

    async def _arrive_after(self) -> None:
        """Deliver late bytes between a response and its handling."""

        async def carry_out(request: Any, default: Default) -> Any:
            response = await default()
            await self._arrive()
            return response

        self._rules.append(self._cluster.on("Produce", carry_out, times=self._some()))

    async def _cut(self) -> None:
        self._cluster.disconnect()

    async def _drop(self) -> None:
        self._rules.append(
            self._cluster.drop("Produce", times=self._some(), after=self._rng.random() < 0.5)
        )

    async def _damage(self) -> None:
        self._rules.append(self._cluster.damage("Produce", times=self._some(), change=faults.cut))

    async def _refuse(self) -> None:
        code, after = self._rng.choice(
            [
                (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
                (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
                (ErrorCode.NOT_ENOUGH_REPLICAS, False),
                (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
                (ErrorCode.REQUEST_TIMED_OUT, True),
                (ErrorCode.REQUEST_TIMED_OUT, False),
                (ErrorCode.KAFKA_STORAGE_ERROR, False),
                (ErrorCode.CORRUPT_MESSAGE, False),
            ]
        )
        self._rules.append(self._cluster.fail("Produce", code, times=self._some(), after=after))

    async def _move(self) -> None:
        partition = self._rng.randrange(PARTITIONS)
        if self._rng.random() < 0.3:
            self._cluster.move_leader("t", partition, None)
            await trio.sleep(self._rng.uniform(0, 3))
        self._cluster.move_leader("t", partition, self._rng.randrange(2))

    async def _freeze(self) -> None:
        node = self._rng.randrange(2)
        self._cluster.freeze(node)
        await trio.sleep(self._rng.uniform(0, 4))
        self._cluster.thaw(node)

    async def _stop(self) -> None:
        node = self._rng.randrange(2)
        self._cluster.stop(node)
        await trio.sleep(self._rng.uniform(0, 3))
        self._cluster.start(node)

    async def _slow(self) -> None:
        self._rules.append(
            self._cluster.delay(
                "Produce",
                self._rng.uniform(0, 1),
                times=self._some(),
                after=self._rng.random() < 0.5,
            )
        )


class Written:
    """Records of one partition, and their acks."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.acks: list[Ack] = []

    async def write(self, producer: Any, rng: random.Random, over: trio.Event) -> None:
        while not over.is_set():
            for _ in range(rng.choice((1, 1, 1, 3))):
                self.acks.append(
                    await producer.enqueue("t", b"%d" % len(self.acks), partition=self.partition)
                )
            await trio.sleep(rng.expovariate(20))

    async def check(self, cluster: ScriptedCluster) -> None:
        there = [int(record.value or b"") for record in cluster.records("t", self.partition)]
        doubled = [number for number in set(there) if there.count(number) > 1]
        assert not doubled, f"doubled: {doubled[:10]} in {there}"
        assert there == sorted(there), f"out of order: {there}"
        held = set(there)
        for number, ack in enumerate(self.acks):
            try:
                metadata = await ack.wait()
            except TrikafkaError as error:
                wrong = number in held and not getattr(error, "maybe_written", True)
            else:
                wrong = number not in held or metadata.offset not in (None, there.index(number))
            assert not wrong, f"{number} is {'there' if number in held else 'lost'}"


async def soak(seed: int, **settings: Any) -> None:
    rng = random.Random(seed)
    given = {
        "request_timeout_ms": 1_500,
        "delivery_timeout_ms": 3_000,
        "buffer_memory": 200_000,
        "max_block_ms": 600_000,
    }
    async with ScriptedCluster(nodes=2, topics={"t": PARTITIONS}) as cluster:
        with trio.fail_after(600):
            async with opened(cluster, **given | settings) as producer:
                over = trio.Event()
                written = [Written(partition) for partition in range(PARTITIONS)]
                async with trio.open_nursery() as nursery:
                    for each in written:
                        nursery.start_soon(each.write, producer, rng, over)
                    await Troubles(cluster, rng).run()
                    over.set()
                for each in written:  # what expired left nothing behind that stops the next one
                    await trio.sleep(5)
                    each.acks.append(
                        await producer.enqueue(
                            "t", b"%d" % len(each.acks), partition=each.partition
                        )
                    )
                    await each.acks[-1].wait()
                assert producer.statistics().buffer_used == 0
        for each in written:
            await each.check(cluster)


@pytest.mark.parametrize("seed", range(5))
async def test_no_record_is_lost_doubled_or_reordered(seed: int, autojump_clock: Clock) -> None:
    await soak(seed)


@pytest.mark.parametrize("seed", range(100, 105))
async def test_long_lived_batches_are_all_delivered(seed: int, autojump_clock: Clock) -> None:
    await soak(
        seed, delivery_timeout_ms=100_000, max_in_flight_requests_per_connection=seed % 5 + 1
    )
