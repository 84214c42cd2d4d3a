"""The first client of a program loads a hundred modules. It does that a few at a time, so that other tasks have their turns."""

from __future__ import annotations

import sys
from importlib import import_module

import trio

#: What others need first: none of these loads more than a few of those after it.
_SHARED = (
    "kafka.protocol.metadata", "kafka.protocol.consumer.offsets", "kafka.protocol.consumer.group", "kafka.protocol.producer",
    "trikafka._wire.extra_messages", "trikafka._wire.messages", "trikafka._net.brokers", "trikafka._managers.metadata",
    "trikafka._managers.commit", "trikafka._managers.fetch", "trikafka._managers.produce", "trikafka._state.assignors",
    "trikafka._managers.membership_base", "trikafka._managers.classic_membership", "trikafka._api.builtin", "trikafka._api.context",
)  # fmt: skip


async def load(*names: str) -> None:
    """Import these modules, and what all clients need before; a checkpoint after each that was not there."""
    for name in (*_SHARED, *names):
        if name not in sys.modules:
            import_module(name)
            await trio.lowlevel.checkpoint()
