"""Two runs of Trio in two threads: a turn that one gives to its tasks is not the other's."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import trio
from producing import ready

from trikafka._api.producer.waiting import Fairness, current

#: Takes a few milliseconds, and these records fit into the buffer.
_CALLS = 50_000


async def lets_others_run(call: Callable[[], Awaitable[object]]) -> bool:
    """Return whether another task runs during a series of calls that have nothing to wait for."""
    ran = False

    async def other() -> None:
        nonlocal ran
        ran = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(_CALLS):
            await call()
            if ran:
                return True
        return False


def test_turns_belong_to_one_run() -> None:
    other_had_its_turn, done = threading.Event(), threading.Event()

    async def other() -> None:
        current.fairness = Fairness(3_600)  # a turn that lasts as long as the test
        async with ready() as (_, producer):
            await producer.enqueue("t", b"x")
            other_had_its_turn.set()
            await trio.to_thread.run_sync(done.wait)

    async def mine() -> None:
        async with ready() as (_, producer):
            assert await lets_others_run(lambda: producer.enqueue("t", b"x"))
            ack = await producer.enqueue("t", b"x")
            await producer.flush()
            assert ack.done
            assert await lets_others_run(ack.wait)

    thread = threading.Thread(target=trio.run, args=(other,))
    thread.start()
    try:
        assert other_had_its_turn.wait(240)
        trio.run(mine)
    finally:
        done.set()
        thread.join()


def test_producers_of_one_run_share_turns() -> None:
    async def main() -> None:
        async with ready() as (_, one), ready() as (_, two):
            assert one._fairness is two._fairness is current.fairness

    trio.run(main)
