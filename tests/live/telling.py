"""Waiting until a broker tells of what has been done: the controller has it first, and a broker hears of it."""

from __future__ import annotations

import trio

from trikafka import Admin


async def told(admin: Admin, topic: str, partitions: int, limit: float = 20) -> None:
    """Wait until the brokers tell of ``topic`` with so many partitions, at most ``limit`` seconds."""
    with trio.fail_after(limit):
        while len((await admin.list_topics()).get(topic, ())) != partitions:  # noqa: ASYNC110
            await trio.sleep(0.05)
