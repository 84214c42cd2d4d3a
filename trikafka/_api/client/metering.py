"""The meter of a client, by its kind."""

from __future__ import annotations

import trio

from ..._state.telemetry.metrics import (
    ADMIN,
    CONSUMER,
    PRODUCER,
    SHARE_CONSUMER,
    Meter,
    MetricNames,
)
from ...config import ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig

_NAMES: dict[type[ClientConfig], MetricNames] = {
    ConsumerConfig: CONSUMER,
    ProducerConfig: PRODUCER,
    ShareConsumerConfig: SHARE_CONSUMER,
}
#: The settings that name the client in its metrics. ``client_id`` is not among them: the broker
#: knows it from the header of each request.
_RESOURCE = ("client_rack", "group_id", "group_instance_id", "transactional_id")


def meter_of(config: ClientConfig) -> Meter:
    """Return the meter of a client with these settings."""
    named = {name: getattr(config, name, None) for name in _RESOURCE}
    return Meter(
        _NAMES.get(type(config), ADMIN),
        trio.current_time,
        resource={name: value for name, value in named.items() if value},
    )
