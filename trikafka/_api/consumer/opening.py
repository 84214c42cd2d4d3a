"""The function that opens a consumer."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

from ...config import ConsumerConfig, check_pattern, check_topics_given
from ...config.describe import documented
from ...config.typed import BytesConsumerSettings
from ...errors import ConfigurationError
from ...types import AsyncDeserializer, Deserializer, Key, SubscriptionPattern, Value
from ..client import loading
from ..client.loading import load
from ..client.opens import Opening, opens
from ..client.service import Service, run_client

if TYPE_CHECKING:
    from .consumer import Consumer


# Async deserializers come first: what an async function returns is also a value, an awaitable.
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@documented(ConsumerConfig)
@opens
async def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    **settings: Unpack[BytesConsumerSettings],
) -> AsyncIterator[Consumer[Any, Any]]:
    """Open a consumer; subscribe it to ``topics`` if any are given.

    On the way out of the block, within ``close_timeout_ms``: the last auto commit, the rebalance
    listeners, LeaveGroup, then the sockets are closed. When cancelled, the consumer still leaves
    its group (best effort, 1 s).

    Args:
        topics: Names of topics, or one pattern alone, as :meth:`Consumer.subscribe` takes it. They
            need a ``group_id``.
        key_deserializer: A function of a key's bytes, plain or async, or a :class:`Deserializer`
            or :class:`AsyncDeserializer`. Its result is the type of keys: a ``Consumer[str, bytes |
            None]`` has keys of text. An async one is recognized by its ``async def``.
        value_deserializer: The same for values.
        settings: The others of :class:`ConsumerConfig`.

    Raises:
        ConfigurationError: A setting or a topic is wrong. Raised before any I/O.
        IllegalStateError: No Trio runs.
        BootstrapError: No bootstrap address answers.
        ClientFailedError: A background task failed; raised by the end of the block.
    """
    pattern = topics[0] if len(topics) == 1 and not isinstance(topics[0], str) else None
    if not isinstance(pattern, re.Pattern | SubscriptionPattern):
        pattern = None
    if pattern is not None:
        check_pattern(pattern)
    names = () if pattern else check_topics_given("open_consumer", topics)
    given: dict[str, Any] = settings  # type: ignore[assignment]  # with all keywords; taken below
    given["key_deserializer"] = key_deserializer
    given["value_deserializer"] = value_deserializer
    config = ConsumerConfig.take(given)
    if (names or pattern) and config.group_id is None:
        raise ConfigurationError(
            "subscribing to topics needs a group_id; to read without a group use assign()"
        )
    if isinstance(pattern, SubscriptionPattern) and config.group_protocol == "classic":
        raise ConfigurationError(
            "a SubscriptionPattern needs group_protocol='consumer' (or 'auto')"
        )

    await load(loading.CONSUMER, config)
    from .consumer import Consumer
    from .parts import ConsumerParts

    async def start(service: Service) -> Consumer[Any, Any]:
        parts = ConsumerParts(config, service)
        parts.metadata.want(names)
        await parts.start()
        consumer: Consumer[Any, Any] = Consumer(parts)
        service.when_hurried(consumer._leaving.shorten)
        if names or pattern:
            consumer.subscribe(pattern or names)
        return consumer

    async with run_client(config, start) as consumer:
        yield consumer
