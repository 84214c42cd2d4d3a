"""The function that opens a producer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Unpack

from ...config import ProducerConfig
from ...config.describe import documented
from ...config.typed import ProducerSettings
from ..client import loading
from ..client.loading import load
from ..client.opens import opens
from ..client.service import Service, run_client

if TYPE_CHECKING:
    from .producer import Producer


@documented(ProducerConfig)
@opens
async def open_producer(**settings: Unpack[ProducerSettings]) -> AsyncIterator[Producer]:
    """Open a producer.

    On the way out of the block, after an exception too, accepted records are flushed within
    ``close_timeout_ms`` (when cancelled, within 1 s). Records that are left then fail.

    With a ``transactional_id``, opening fences every older producer with the same id and aborts its
    open transaction. On the way out, a transaction that is still open is aborted, and one that is
    being ended is waited for.

    Args:
        settings: Those of :class:`ProducerConfig`.

    Raises:
        ConfigurationError: A setting is wrong. Raised before any I/O.
        IllegalStateError: No Trio runs.
        BootstrapError: No bootstrap address answers.
        AuthorizationError: The coordinator refuses the ``transactional_id``. Other refusals are
            raised as their own errors.
        KafkaTimeoutError: The coordinator did not answer within ``default_api_timeout_ms``.
        ClientFailedError: A background task failed; raised by the end of the block.
    """
    config = ProducerConfig.take(settings)

    await load(loading.PRODUCER, config)
    from ..._wire.compression import codec_named
    from .producer import Producer

    codec_named(config.compression_type)

    async def start(service: Service) -> Producer:
        producer = Producer(config, service)
        await producer._start()
        return producer

    async with run_client(config, start) as producer:
        yield producer
