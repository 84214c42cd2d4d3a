"""The functions that open clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Unpack

from ..config import AdminConfig, ConsumerConfig, ProducerConfig, check_topics_given
from ..config.describe import documented
from ..config.typed import AdminSettings, ConsumerSettings, ProducerSettings
from ..errors import ConfigurationError
from . import loading
from .loading import load
from .opens import opens
from .service import Service, run_client
from .trio_check import check_runs_under_trio

if TYPE_CHECKING:
    from .admin import Admin
    from .consumer import Consumer
    from .producer import Producer


@documented(ConsumerConfig)
@opens
async def open_consumer(*topics: str, **settings: Unpack[ConsumerSettings]) -> AsyncIterator[Consumer]:
    """Open a consumer, subscribed to ``topics`` if any are given; ``settings`` are those of :class:`ConsumerConfig`.

    Raises :exc:`ConfigurationError` for a wrong setting or topic before any I/O, :exc:`IllegalStateError` where no Trio runs,
    :exc:`BootstrapError` if no bootstrap address answers, :exc:`ClientFailedError` out of the block if a background task fails.
    On the way out: revoke hooks, last commit, leave the group, close the sockets, within ``close_timeout_ms``; when cancelled
    the group is still left (best effort, 1 s).
    """
    check_runs_under_trio("open_consumer")
    names = check_topics_given("open_consumer", topics)
    config = ConsumerConfig.take(settings)
    if names and config.group_id is None:
        raise ConfigurationError("subscribing to topics needs a group_id; to read without a group use assign()")

    await load(loading.CONSUMER)
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


@documented(ProducerConfig)
@opens
async def open_producer(**settings: Unpack[ProducerSettings]) -> AsyncIterator[Producer]:
    """Open a producer; ``settings`` are those of :class:`ProducerConfig`.

    Raises :exc:`ConfigurationError` for a wrong setting before any I/O, :exc:`BootstrapError` if no bootstrap address answers,
    :exc:`ClientFailedError` out of the block if a background task fails. On the way out, after an exception too, everything
    accepted is flushed within ``close_timeout_ms``; when cancelled within 1 s at most. What is left then fails.

    With a ``transactional_id`` opening fences any older producer that has it and aborts what that left open; what the coordinator
    refuses it with is raised (:exc:`AuthorizationError` ...), :exc:`KafkaTimeoutError` past ``default_api_timeout_ms``. On the
    way out a transaction that is still open is aborted, and one that is being ended is waited for.
    """
    check_runs_under_trio("open_producer")
    config = ProducerConfig.take(settings)

    await load(loading.PRODUCER)
    from .._wire.compression import codec_named
    from .producer import Producer

    codec_named(config.compression_type)

    async def start(service: Service) -> Producer:
        producer = Producer(config, service)
        await producer._start()
        return producer

    async with run_client(config, start) as producer:
        yield producer


@documented(AdminConfig)
@opens
async def open_admin(**settings: Unpack[AdminSettings]) -> AsyncIterator[Admin]:
    """Open an admin client; ``settings`` are those of :class:`AdminConfig`.

    Raises :exc:`ConfigurationError` for a wrong setting before any I/O, :exc:`BootstrapError` if no bootstrap address answers,
    :exc:`ClientFailedError` out of the block if a background task fails.
    """
    check_runs_under_trio("open_admin")
    config = AdminConfig.take(settings)

    await load(loading.ADMIN)
    from .admin import Admin

    async def start(service: Service) -> Admin:
        admin = Admin(config, service)
        await admin._start()
        return admin

    async with run_client(config, start) as admin:
        yield admin
