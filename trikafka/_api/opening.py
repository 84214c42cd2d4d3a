"""The functions that open clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Unpack

from ..config import AdminConfig, ConsumerConfig, check_topics_given
from ..config.describe import documented
from ..config.typed import AdminSettings, ConsumerSettings
from ..errors import ConfigurationError
from .loading import load
from .service import Service, run_client
from .trio_check import check_runs_under_trio

if TYPE_CHECKING:
    from .admin import Admin
    from .consumer import Consumer


@documented(ConsumerConfig)
@asynccontextmanager
async def open_consumer(*topics: str, **settings: Unpack[ConsumerSettings]) -> AsyncIterator[Consumer]:
    """Open a consumer, subscribed to ``topics`` if any are given; ``settings`` are those of :class:`ConsumerConfig`.

    Raises :exc:`ConfigurationError` for a wrong setting or topic before any I/O, :exc:`IllegalStateError` where no Trio runs,
    :exc:`BootstrapError` if no bootstrap address answers, :exc:`ClientFailedError` out of the block if a background task fails.
    On the way out: revoke hooks, last commit, leave the group, close the sockets, within ``close_timeout_ms``; when cancelled
    the group is still left (best effort, 1 s).
    """
    check_runs_under_trio("open_consumer")
    names = check_topics_given("open_consumer", topics)
    config = ConsumerConfig.build(settings)
    if names and config.group_id is None:
        raise ConfigurationError("subscribing to topics needs a group_id; to read without a group use assign()")

    await load("trikafka._api.receiving", "trikafka._api.consumer_parts", "trikafka._api.consumer")
    from .consumer import Consumer
    from .consumer_parts import ConsumerParts

    async def start(service: Service) -> Consumer:
        parts = ConsumerParts(config, service)
        parts.metadata.want(names)
        await parts.start()
        consumer = Consumer(parts)
        if names:
            consumer.subscribe(names)
        return consumer

    async with run_client(config, start) as consumer:
        yield consumer


@documented(AdminConfig)
@asynccontextmanager
async def open_admin(**settings: Unpack[AdminSettings]) -> AsyncIterator[Admin]:
    """Open an admin client; ``settings`` are those of :class:`AdminConfig`.

    Raises :exc:`ConfigurationError` for a wrong setting before any I/O, :exc:`BootstrapError` if no bootstrap address answers,
    :exc:`ClientFailedError` out of the block if a background task fails.
    """
    check_runs_under_trio("open_admin")
    config = AdminConfig.build(settings)

    await load("kafka.protocol.admin", "trikafka._api.admin_messages", "trikafka._api.admin")
    from .admin import Admin

    async def start(service: Service) -> Admin:
        admin = Admin(config, service)
        await admin._start()
        return admin

    async with run_client(config, start) as admin:
        yield admin
