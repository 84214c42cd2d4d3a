"""New share groups, which begin at the first record. Nothing here is measured."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from trikafka import ConfigResource, open_admin

#: The most locks of one partition that a group may hold without a change of the brokers. Kafka's
#: default is half as many, which is one batch of the filled topic: then each partition waits for
#: the group's log between two batches, whichever client reads it.
LOCKS = 4_000


async def new_share_group(
    bootstrap: str, connection: Mapping[str, Any], locks: int | None = LOCKS
) -> str:
    """Set where a new group begins, as members cannot; return its name.

    ``locks`` is the most locks of one partition; ``None``: Kafka's default.
    """
    name = f"share-{uuid.uuid4().hex[:8]}"
    given = {"share.auto.offset.reset": "earliest"}
    if locks is not None:
        given["share.partition.max.record.locks"] = str(locks)
    async with open_admin(bootstrap_servers=bootstrap, **connection) as admin:
        await admin.alter_configs({ConfigResource("group", name): given})
    return name
