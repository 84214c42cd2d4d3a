"""The imports of a program's first client, spread over several turns of the event loop."""

# Why modules are imported one by one, and ahead of their use
# -----------------------------------------------------------
#
# The first client of a program imports about two hundred modules. In one step that would hold the
# event loop for the whole time: timeouts of other tasks would pass, and heartbeats of other clients
# would be late. So ``load`` has a checkpoint after each module that was missing. The tables below
# are in the order of dependence: otherwise the first module of a table would import most of the
# others in one step. Packages of kafka-python whose bodies import everything are deferred, and
# their modules are imported first.
#
# A client also loads what the program will do with it (``_TASKS`` for a consumer). Public names are
# imported on first use, ``trikafka.run_tasks`` for example. That use is an attribute access in the
# user's own task, without any checkpoint: the import would hold the loop there, and a signal that
# arrives in such a step waits for its end. Once a client is open, the access finds the module
# loaded.

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from ..._kafka_python import defer

if TYPE_CHECKING:
    from ...config import ClientConfig

#: Packages of messages whose bodies import all their modules. These are imported one by one before,
#: so the body has nothing left to do.
_PACKAGES = {
    "kafka.protocol.metadata": ("api_versions", "find_coordinator", "metadata"),
    "kafka.protocol.consumer": ("fetch", "group", "metadata", "offsets"),
    "kafka.protocol.producer": ("produce", "transaction"),
    "kafka.protocol.admin": (
        "acl",
        "client_quotas",
        "cluster",
        "configs",
        "groups",
        "topics",
        "transactions",
        "users",
    ),
}
#: In the order of dependence, so that each loads few modules that are not listed before it.
_SHARED = (
    "kafka.errors",
    "kafka.protocol.api_message",
    "kafka.protocol.metadata",
    "kafka.protocol.consumer",
    "kafka.protocol.producer",
    "trikafka._wire.extra_messages",
    "datetime",
    "email.utils",
    "email.message",
    "importlib.metadata",
    "argparse",
    "cramjam",
    "trikafka._checksum",
    "trikafka._wire._format",
    "trikafka._wire.messages",
    "trikafka.types",
    "trikafka._wire.compression",
    "trikafka._wire._implementation",
    "trikafka._net.in_flight",
    "trikafka._net.connection",
    "trikafka._net.tls",
    "trikafka._net.security",
    "trikafka._net.brokers",
    "trikafka._net.deadlines",
    "trikafka.interfaces",
    "trikafka._managers.cluster.metadata",
    "trikafka._wire.columns",
    "trikafka._wire.records",
    "trikafka._state.assignors.base",
    "trikafka._state.assignors.sticky",
    "trikafka._state.assignors",
    "pluggy",
    "trikafka.hooks",
    "trikafka._managers.cluster.builtin",
    "trikafka._api.client.plugin_proxy",
    "trikafka._api.client.codecs",
    "trikafka._api.client.context",
)
PRODUCER = (
    "trikafka._state.producer.producer_batch",
    "trikafka._state.producer.accumulator",
    "trikafka._managers.producer.produce",
    "trikafka._state.producer.transaction_state",
    "trikafka._managers.producer.transaction_messages",
    "trikafka._managers.producer.transactions",
    "trikafka._api.producer.watchdog",
    "trikafka._api.producer.arrow_sending",
    "trikafka._api.producer.transaction_handle",
    "trikafka._api.producer.builtin",
    "trikafka._api.producer.producer",
)
#: What a program does with an open consumer: ``trikafka`` would import these names on first use, in
#: the user's own step.
_TASKS = (
    *PRODUCER,
    "trikafka._api.client.option_parsing",
    "trikafka.tasks.handling",
    "trikafka._api.admin.types",
    "trikafka.tasks.rounds",
    "trikafka.tasks.plan",
    "trikafka.tasks.ensuring",
    "trikafka.tasks.stream_task",
    "trikafka.tasks.keyed_workers",
    "trikafka.tasks.partition_task",
    "trikafka.tasks.run",
    "trikafka.tasks.transactional_run",
    "trikafka.tasks.run_tasks",
    "trikafka.tasks.processing",
    "trikafka._api.sinking",
)
CONSUMER = (
    "trikafka._state.consumer.progress",
    "trikafka._state.consumer.assignment",
    "trikafka._managers.commits.commit",
    "trikafka._state.consumer.fetch_buffer",
    "trikafka._state.consumer.fetch_plan",
    "trikafka._wire.fetch",
    "trikafka._managers.consumer.fetch_responses",
    "trikafka._managers.consumer.fetch",
    "trikafka._managers.group.membership_base",
    "trikafka._managers.group.classic_membership",
    "trikafka._state.group.target_assignment",
    "trikafka._managers.group.target_reconciler",
    "trikafka._managers.group.consumer_membership",
    "trikafka._managers.consumer.positions",
    "trikafka._api.consumer.reader",
    "trikafka._api.consumer.receiving",
    "trikafka._managers.commits.auto_commit",
    "trikafka._api.consumer.core",
    "trikafka._api.consumer.watchdog",
    "trikafka._api.consumer.partition_stream",
    "trikafka._api.consumer.streams",
    "trikafka._api.consumer.builtin",
    "trikafka._api.consumer.parts",
    "trikafka._api.consumer.health",
    "trikafka._api.consumer.committing",
    "trikafka._api.consumer.consumer",
    *_TASKS,
)
ADMIN = (
    "kafka.protocol.admin",
    "trikafka._state.consumer.assignment",
    "trikafka._managers.commits.commit",
    "trikafka._managers.producer.transaction_messages",
    "trikafka._api.admin.types",
    "trikafka._api.admin.messages",
    "trikafka._api.admin.ending",
    "trikafka._api.admin.admin",
)


#: The modules of clients that authenticate by SASL.
_SASL = ("kafka.protocol.sasl", "trikafka._wire.sasl", "trikafka._net.auth")
_OAUTH = ("http.client", "trikafka._net.oauth")


def needed_by(config: ClientConfig) -> tuple[str, ...]:
    """Return the modules that a client with these settings needs beside those of its kind."""
    names: tuple[str, ...] = ()
    if config.uses_sasl:
        names += _SASL
    if config.sasl_oauth_token_endpoint_url is not None:
        names += _OAUTH
    return names


async def load(names: tuple[str, ...], config: ClientConfig) -> None:
    """Import these modules and their prerequisites, with a checkpoint after each new one."""
    for name in (*_SHARED, *needed_by(config), *names):
        for step in _steps(name):
            if step not in sys.modules:
                import_module(step)
                await trio.lowlevel.checkpoint()
    from ..._wire._implementation import warn_if_missing

    # At the ``async with``, above load(), open_*() and contextlib's __aenter__().
    warn_if_missing(stacklevel=4)


def _steps(name: str) -> tuple[str, ...]:
    """Return the imports for a module; of a deferred package its modules, without the body."""
    parts = _PACKAGES.get(name)
    if parts is None:
        return (name,)
    defer(name)
    return tuple(f"{name}.{part}" for part in parts)
