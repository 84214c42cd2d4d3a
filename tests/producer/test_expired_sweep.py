"""Batches that expire at every step of an outage: order holds, no delivered record is doubled, and
no number is out of order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError, TrikafkaError
from trikafka._state.producer.sequences import LATE_BYTES
from trikafka.testing import ScriptedCluster

Default = Callable[[], Awaitable[Any]]


class Outage:
    """A fault that every Produce request meets until :meth:`end`."""

    def __init__(self, cluster: ScriptedCluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind
        self._kept: list[Default] = []
        self._began = trio.current_time()
        self._rule = cluster.on("Produce", self._meet, times=None)

    async def _meet(self, request: Any, default: Default) -> Any:
        if self._kind == "late response":
            response = await default()
            await trio.sleep(0.35)
            return response
        if self._kind == "lost response":
            await default()
        elif self._kind == "late bytes":
            self._kept.append(default)
        # So the first connection has several requests, and those after it end at once.
        await trio.sleep(max(0.05, self._began + 0.5 - trio.current_time()))
        self._cluster.disconnect()
        return None

    async def end(self) -> None:
        self._rule.remove()
        await trio.sleep(LATE_BYTES / 2)
        for default in self._kept:
            await default()


class Written:
    """The outcomes of a producer's records during an outage.

    Each failed record is sent once more.
    """

    def __init__(self) -> None:
        self.fates: dict[bytes, Exception | None] = {}
        self.missing: set[bytes] = set()  # from the log, when the error was raised
        self.log: list[bytes | None] = []

    async def run(self, kind: str, length: float) -> None:
        quick: Any = {
            "retry_backoff_ms": 50,
            "retry_backoff_max_ms": 50,
            "reconnect_backoff_max_ms": 50,
        }
        async with ready(request_timeout_ms=600, delivery_timeout_ms=1_000, **quick) as (
            cluster,
            producer,
        ):

            async def write(value: bytes) -> bool:
                try:
                    await producer.send("t", value, partition=0)
                except TrikafkaError as error:
                    self.fates[value] = error
                    if value not in values(cluster):
                        self.missing.add(value)
                    return False
                self.fates[value] = None
                return True

            async def insist(value: bytes) -> None:
                if not await write(value):
                    await write(value + b" again")

            async def fail() -> None:
                await trio.sleep(0.2)
                outage = Outage(cluster, kind)
                await trio.sleep(length)
                await outage.end()

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail)
                    for number in range(12):
                        nursery.start_soon(insist, b"%02d" % number)
                        await trio.sleep(0.13)
                await producer.send("t", b"last", partition=0)
            self.log = values(cluster)


@pytest.mark.parametrize("kind", ["not written", "lost response", "late response", "late bytes"])
async def test_batches_expire_in_order_in_an_outage(kind: str, autojump_clock: Clock) -> None:
    expired = delivered = 0
    for step in range(6):
        written = Written()
        await written.run(kind, 0.9 + 0.1 * step)
        log, fates = written.log, written.fates
        assert {type(error) for error in fates.values()} <= {type(None), DeliveryTimeoutError}
        assert len(set(log)) == len(log), "doubled"
        assert log[-1] == b"last"
        first = [value for value in log if value is not None and len(value) == 2]
        assert first == sorted(first), "out of order"
        for value, error in fates.items():
            assert error is not None or value in log, "lost"
            assert error is None or error.maybe_written or value not in log
        if kind in ("not written", "lost response"):
            assert written.missing.isdisjoint(log), "written after its error"
        expired += sum(error is not None for error in fates.values())
        delivered += sum(error is None for error in fates.values())
    assert expired > 0
    assert delivered > 5
