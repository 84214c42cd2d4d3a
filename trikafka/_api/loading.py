"""The first client of a program loads two hundred modules. It does that a few at a time, so that other tasks have their turns."""

from __future__ import annotations

import sys
from importlib import import_module

import trio

from .._kafka_python import defer

#: Packages of messages whose bodies import all their modules: these are imported one by one before, and then the body is nothing.
_PACKAGES = {
    "kafka.protocol.metadata": ("api_versions", "find_coordinator", "metadata"),
    "kafka.protocol.consumer": ("fetch", "group", "metadata", "offsets"),
    "kafka.protocol.producer": ("produce", "transaction"),
    "kafka.protocol.admin": ("acl", "client_quotas", "cluster", "configs", "groups", "topics", "transactions", "users"),
}
#: In the order in which they need each other, so that none loads more than a few that do not stand here before it.
_SHARED = (
    "kafka.errors", "kafka.protocol.api_message", "kafka.protocol.metadata", "kafka.protocol.consumer", "kafka.protocol.producer",
    "trikafka._wire.extra_messages", "datetime", "email.utils", "email.message", "importlib.metadata", "argparse", "cramjam",
    "trikafka._checksum", "trikafka._wire._format", "trikafka._wire.messages", "trikafka.types", "trikafka._wire.compression",
    "trikafka._wire._implementation", "trikafka._net.in_flight", "trikafka._net.connection", "trikafka._net.tls",
    "trikafka._net.security", "trikafka._net.brokers", "trikafka._net.deadlines", "trikafka.interfaces",
    "trikafka._managers.metadata", "trikafka._wire.columns", "trikafka._state.progress", "trikafka._state.assignment",
    "trikafka._managers.commit", "trikafka._state.fetch_buffer", "trikafka._state.fetch_plan", "trikafka._wire.fetch",
    "trikafka._managers.fetch_responses", "trikafka._managers.fetch", "trikafka._wire.records", "trikafka._state.producer_batch",
    "trikafka._state.intake", "trikafka._state.accumulator", "trikafka._managers.produce", "trikafka._state.assignors.base",
    "trikafka._state.assignors.sticky", "trikafka._state.assignors", "pluggy", "trikafka.hooks",
    "trikafka._managers.membership_base", "trikafka._managers.classic_membership", "trikafka._state.target_assignment",
    "trikafka._managers.target_reconciler", "trikafka._managers.consumer_membership", "trikafka._managers.positions",
    "trikafka._state.transaction", "trikafka._managers.transaction_messages", "trikafka._managers.transactions",
    "trikafka._api.builtin", "trikafka._api.guard", "trikafka._api.context",
)  # fmt: skip
CONSUMER = (
    "trikafka._api.reader", "trikafka._api.receiving", "trikafka._managers.auto_commit", "trikafka._api.consumer_core",
    "trikafka._api.watchdog", "trikafka._api.partition_stream", "trikafka._api.streams", "trikafka._api.consumer_parts",
    "trikafka._api.consumer_health", "trikafka._api.committing", "trikafka._api.consumer",
)  # fmt: skip
PRODUCER = ("trikafka._api.arrow_sending", "trikafka._api.transaction", "trikafka._api.producer")
ADMIN = ("kafka.protocol.admin", "trikafka._api.admin_types", "trikafka._api.admin_messages", "trikafka._api.admin")


async def load(names: tuple[str, ...]) -> None:
    """Import these modules, and what all clients need before; a checkpoint after each that was not there."""
    for name in (*_SHARED, *names):
        for step in _steps(name):
            if step not in sys.modules:
                import_module(step)
                await trio.lowlevel.checkpoint()
    from .._wire._implementation import warn_if_missing

    warn_if_missing(stacklevel=4)  # at the ``async with``, above load(), open_*() and contextlib's __aenter__()


def _steps(name: str) -> tuple[str, ...]:
    """What to import for a module: of a package of messages first its modules, without the body of the package."""
    parts = _PACKAGES.get(name)
    if parts is None:
        return (name,)
    defer(name)
    return tuple(f"{name}.{part}" for part in parts)
