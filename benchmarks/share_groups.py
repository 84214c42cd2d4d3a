"""New share groups, which begin at the first record. Nothing here is measured."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from trikafka import ConfigResource, open_admin


async def new_share_group(bootstrap: str, connection: Mapping[str, Any]) -> str:
    """Set where a new group begins, as members cannot; return its name."""
    name = f"share-{uuid.uuid4().hex[:8]}"
    async with open_admin(bootstrap_servers=bootstrap, **connection) as admin:
        await admin.alter_configs(
            {ConfigResource("group", name): {"share.auto.offset.reset": "earliest"}}
        )
    return name
