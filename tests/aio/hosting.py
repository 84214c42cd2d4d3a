"""Helpers of asyncio's tests: a scripted cluster in the guest, loops, and what must be left over.

Time is real here: Trio's clock in guest mode is asyncio's. So the tests wait for conditions, with a
limit.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import trio
from open_files import open_files

import trikafka.aio
from trikafka import TopicPartition
from trikafka.aio import guest as guests
from trikafka.aio.opening import Opening
from trikafka.aio.testing import ScriptedCluster

T = TypeVar("T")
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
#: Real seconds after which a test has failed.
LIMIT = 400.0
#: The loops that tests run in; uvloop is no requirement of trikafka.
LOOPS = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]


def new_loop(kind: str = "asyncio") -> asyncio.AbstractEventLoop:
    if kind == "uvloop":
        uvloop: Any = importlib.import_module("uvloop")
        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def run(main: Callable[[], Coroutine[Any, Any, T]], kind: str = "asyncio") -> T:
    """Run a test's program in a new loop, within the limit."""

    async def limited() -> T:
        async with asyncio.timeout(LIMIT):
            return await main()

    with asyncio.Runner(loop_factory=lambda: new_loop(kind)) as runner:
        return runner.run(limited())


class Cluster(ScriptedCluster):
    """A scripted cluster in the guest."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a client of the cluster."""
        return {"bootstrap_servers": self.bootstrap_servers, "dial": self.dial}


@asynccontextmanager
async def cluster_of(
    partitions: int = 1, *, records: int = 0, **settings: Any
) -> AsyncIterator[Cluster]:
    """Open a cluster with the topic ``t``, each partition with the values ``b"0"``, ``b"1"`` ..."""
    async with Cluster(topics={"t": partitions}, **settings) as cluster:
        for number in range(partitions):
            if records:
                cluster.append("t", number, [b"%d" % offset for offset in range(records)])
        yield cluster


def consumer_of(cluster: Cluster, *topics: str, **settings: Any) -> Opening[trikafka.aio.Consumer]:
    """Return the opening of a consumer that reads from the beginning."""
    given: Any = {"auto_offset_reset": "earliest", "group_protocol": "classic"} | settings
    return trikafka.aio.open_consumer(*topics, **cluster.settings, **given)


def member_of(cluster: Cluster, **settings: Any) -> Opening[trikafka.aio.Consumer]:
    """Return the opening of a member of the group ``g`` with the topic ``t``."""
    return consumer_of(cluster, "t", **({"group_id": "g"} | settings))


def producer_of(cluster: Cluster, **settings: Any) -> Opening[trikafka.aio.Producer]:
    return trikafka.aio.open_producer(**cluster.settings, **settings)


class Worked:
    """The time since its start in which the loop turned. A standstill of the process is no time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.seconds += min(now - before, 0.05)
            before = now

    def stop(self) -> float:
        """Stop counting, and return the time."""
        self._watching.cancel()
        return self.seconds


async def until(true: Callable[[], object]) -> None:
    """Wait until ``true()`` holds. The limit is the test's."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def cut_off(
    work: Coroutine[Any, Any, T], turns: int
) -> tuple[T | None, BaseException | None]:
    """Cancel ``work`` after so many turns of the loop; return its value or its error."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    return (None, error) if error is not None else (task.result(), None)


@contextmanager
def nothing_left(kind: str = "asyncio") -> Iterator[None]:
    """Check that the block leaves no Trio run, no thread of asyncio, and no open file or socket."""
    new_loop(kind).close()  # uvloop opens a pipe for the process with its first loop
    gc.collect()
    before = open_files()
    yield
    assert guests._here.guest is None
    assert not trio.lowlevel.in_trio_run()
    gc.collect()
    # Files that earlier tests left open may be closed meanwhile, so only new ones count. A thread
    # that is about to end may live for a moment longer.
    deadline = time.monotonic() + 240
    while (left := open_files() - before) or asyncio_threads():
        assert time.monotonic() < deadline, f"still open: {dict(left)}, {asyncio_threads()}"
        gc.collect()
        time.sleep(0.05)


def asyncio_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("asyncio")]
