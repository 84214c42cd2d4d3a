"""The function that opens a share consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

from ...config import ShareConsumerConfig, check_topics_given
from ...config.describe import documented
from ...config.typed import BytesShareConsumerSettings
from ...errors import ConfigurationError
from ...types import AsyncDeserializer, Deserializer, Key, Value
from ..client import loading
from ..client.loading import load
from ..client.opens import Opening, opens
from ..client.service import Service, run_client

if TYPE_CHECKING:
    from .consumer import ShareConsumer


# Async deserializers come first: what an async function returns is also a value, an awaitable.
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@documented(ShareConsumerConfig)
@opens
async def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    **settings: Unpack[BytesShareConsumerSettings],
) -> AsyncIterator[ShareConsumer[Any, Any]]:
    """Open a share consumer: a member of a group that shares topics record by record (KIP-932).

    On the way out of the block, within ``close_timeout_ms``: records that are held are released,
    the last acknowledgements are sent, the member leaves its group, then the sockets are closed.
    When cancelled, all this takes a second at most.

    Args:
        topics: Names of topics, at least one.
        key_deserializer: A function of a key's bytes, plain or async, or a :class:`Deserializer`
            or :class:`AsyncDeserializer`. An async one has ``max_processing_ms``.
        value_deserializer: The same for values.
        settings: The others of :class:`ShareConsumerConfig`; ``group_id`` is required.

    Raises:
        ConfigurationError: A setting or a topic is wrong. Raised before any I/O.
        IllegalStateError: No Trio runs.
        BootstrapError: No bootstrap address answers.
        ClientFailedError: A background task failed; raised by the end of the block.
    """
    names = check_topics_given("open_share_consumer", topics)
    given: dict[str, Any] = settings  # type: ignore[assignment]  # with all keywords; taken below
    given["key_deserializer"] = key_deserializer
    given["value_deserializer"] = value_deserializer
    config = ShareConsumerConfig.take(given)
    if not names:
        raise ConfigurationError(
            "open_share_consumer() needs the names of topics: "
            "trikafka.open_share_consumer('jobs', group_id='workers', ...)"
        )
    await load(loading.SHARE, config)
    from .consumer import ShareConsumer
    from .parts import ShareParts

    async def start(service: Service) -> ShareConsumer[Any, Any]:
        parts = ShareParts(config, service, names)
        service.when_hurried(parts.shorten)
        await parts.start()
        consumer: ShareConsumer[Any, Any] = ShareConsumer(parts)
        return consumer

    async with run_client(config, start) as consumer:
        yield consumer
