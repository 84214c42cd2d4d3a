"""Waiting until brokers know of a change, and brokers that nothing has to wait for.

The controller has a change first, and the brokers learn of it later.
"""

from __future__ import annotations

from collections.abc import Collection

import trio

from benchmarks.soak import create_known
from trikafka import Admin, NewTopic, open_admin

#: Properties of brokers that no test kills: one that stands still for three seconds on a busy
#: machine would lead no partition for a moment, and refuse to create a topic.
PATIENT = {"broker.session.timeout.ms": 18_000}


async def topic_made(admin: Admin, name: str, topic: NewTopic, limit: float = 240) -> None:
    """Create a topic, and wait up to ``limit`` seconds until the brokers report it."""
    await create_known(admin, {name: topic}, limit)
    await topic_reported(admin, name, topic.partitions, limit)


async def topic_reported(admin: Admin, topic: str, partitions: int, limit: float = 240) -> None:
    """Wait up to ``limit`` seconds until the brokers report ``topic`` with this many partitions."""
    with trio.fail_after(limit):
        while len((await admin.list_topics()).get(topic, ())) != partitions:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def topics_deleted(admin: Admin, topics: Collection[str], limit: float = 240) -> None:
    """Delete topics, and wait up to ``limit`` seconds until the brokers report none of them.

    A broker that still has a deleted topic would take the records for the next one of that name.
    """
    await admin.delete_topics(list(topics))
    with trio.fail_after(limit):
        while not set(topics).isdisjoint(await admin.list_topics()):  # noqa: ASYNC110
            await trio.sleep(0.02)


async def settled(bootstrap: str, limit: float = 240) -> None:
    """Wait until each transaction that is being completed now has its markers.

    A commit returns once it is decided, but readers see it only after the markers are written.
    """
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        with trio.fail_after(limit):
            # A coordinator that is just being elected lists nothing yet, without an error. Other
            # processes have transactions at this broker, too: the later ones do not matter here.
            looks, ending = 0, set[str]()
            while looks < 5 or ending:
                found = await admin.list_transactions(states=["PrepareCommit", "PrepareAbort"])
                now = {each.transactional_id for each in found}
                ending = ending | now if looks < 5 else ending & now
                looks += 1
                await trio.sleep(0.02)
