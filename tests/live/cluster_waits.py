"""Waiting until brokers know of a change.

The controller has it first, and the brokers learn of it later.
"""

from __future__ import annotations

import trio

from trikafka import Admin, open_admin


async def topic_reported(admin: Admin, topic: str, partitions: int, limit: float = 60) -> None:
    """Wait up to ``limit`` seconds until the brokers report ``topic`` with this many partitions."""
    with trio.fail_after(limit):
        while len((await admin.list_topics()).get(topic, ())) != partitions:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def settled(bootstrap: str, limit: float = 60) -> None:
    """Wait until no transaction is being completed.

    A commit returns once it is decided, but readers see it only after the markers are written.
    """
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(limit):
            while await admin.list_transactions(states=["PrepareCommit", "PrepareAbort"]):  # noqa: ASYNC110
                await trio.sleep(0.02)
