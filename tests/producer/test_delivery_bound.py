"""The purpose of KIP-91 (seed 002): from the return of ``send`` there is an upper bound to
when the outcome is known.

Under troubles of any kind, drawn by chance, in virtual time: each record that was accepted has its
outcome within ``delivery_timeout_ms``, to the millisecond. With one request in flight the outcomes
of a partition come in order, too.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import trio
from producing import opened
from test_random_troubles import PARTITIONS, Troubles
from trio.testing import MockClock as Clock

from trikafka import Ack, DeliveryTimeoutError, TrikafkaError
from trikafka.testing import ScriptedCluster

LIMIT = 3.0


class Outcomes:
    """The times at which each record of a partition was accepted and completed."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.times: dict[int, tuple[float, float, bool]] = {}

    async def write(
        self, producer: Any, rng: random.Random, over: trio.Event, nursery: trio.Nursery
    ) -> None:
        number = 0
        while not over.is_set():
            ack = await producer.enqueue("t", b"%d" % number, partition=self.partition)
            nursery.start_soon(self._settle, number, ack, trio.current_time())
            number += 1
            await trio.sleep(rng.expovariate(10))

    async def _settle(self, number: int, ack: Ack, accepted: float) -> None:
        expired = False
        try:
            await ack.wait()
        except TrikafkaError as error:
            expired = isinstance(error, DeliveryTimeoutError)
        self.times[number] = (accepted, trio.current_time(), expired)


@pytest.mark.parametrize("seed", range(6))
async def test_outcome_is_known_within_the_timeout(seed: int, autojump_clock: Clock) -> None:
    rng = random.Random(seed)
    settings = [
        {"max_in_flight_requests_per_connection": 1},
        {"enable_idempotence": False},
        {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
    ][seed % 3]
    seen = [Outcomes(partition) for partition in range(PARTITIONS)]
    async with ScriptedCluster(nodes=2, topics={"t": PARTITIONS}) as cluster:
        given: dict[str, Any] = {
            "request_timeout_ms": 1_500,
            "delivery_timeout_ms": LIMIT * 1000,
            "max_block_ms": 600_000,
        }
        with trio.fail_after(900):
            async with (
                opened(cluster, **given | settings) as producer,
                trio.open_nursery() as nursery,
            ):
                over = trio.Event()
                for each in seen:
                    nursery.start_soon(each.write, producer, rng, over, nursery)
                await Troubles(cluster, rng).run()
                for node in range(2):
                    cluster.freeze(node)
                await trio.sleep(2 * LIMIT)  # so that some expire for certain
                for node in range(2):
                    cluster.thaw(node)
                over.set()
    outcomes = [times for each in seen for times in each.times.values()]
    assert [
        known - accepted for accepted, known, _ in outcomes if known - accepted > LIMIT + 0.001
    ] == []
    assert sum(expired for _, _, expired in outcomes) > 0
    if settings.get("max_in_flight_requests_per_connection") == 1:
        for each in seen:
            known = [each.times[number][1] for number in range(len(each.times))]
            assert all(sooner <= later for sooner, later in pairwise(known))
