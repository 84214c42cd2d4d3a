"""Waiting until a broker tells of what has been done: its controller or its coordinator has it first, and a broker hears of it."""

from __future__ import annotations

import trio

from trikafka import Admin, open_admin


async def told(admin: Admin, topic: str, partitions: int, limit: float = 20) -> None:
    """Wait until the brokers tell of ``topic`` with so many partitions, at most ``limit`` seconds."""
    with trio.fail_after(limit):
        while len((await admin.list_topics()).get(topic, ())) != partitions:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def settled(bootstrap: str, limit: float = 60) -> None:
    """Wait until each transaction that is being ended has ended: a commit is answered before its markers are in the logs."""
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(limit):
            while await admin.list_transactions(states=["PrepareCommit", "PrepareAbort"]):  # noqa: ASYNC110
                await trio.sleep(0.02)
