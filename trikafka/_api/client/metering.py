"""The meter of a client, and the metrics that an application registers with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import trio

from ..._state.telemetry.metrics import (
    ADMIN,
    CONSUMER,
    PRODUCER,
    SHARE_CONSUMER,
    Meter,
    MetricNames,
)
from ..._state.telemetry.registered import MetricKind, RegisteredMetric, check_name
from ...config import ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig
from ...interfaces import AttributeValue
from .other_names import raise_missing

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


class MeteredClient:
    """The methods of a client for an application's own metrics."""

    _metrics: Meter

    if not TYPE_CHECKING:  # type checkers know of a wrong name by themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse a name that the client does not have, with a hint for other clients' names."""
            raise_missing(self, name)

    def __reduce__(self) -> NoReturn:
        """Refuse copies, also for other processes: sockets and tasks cannot be copied."""
        raise TypeError(
            f"trikafka.{type(self).__name__} has connections and tasks, and cannot be copied or "
            "pickled: open a client in each process"
        )

    def register_metric(
        self,
        name: str,
        read: Callable[[], int | float],
        *,
        kind: MetricKind = "gauge",
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        """Push a metric of the application with those of the client (KIP-1076).

        Brokers get the metric if the operator's subscription names it. See ``enable_metrics_push``.

        Args:
            name: The name, such as ``"com.example.orders.open"``.
            read: A plain function that returns the value; called once a push. If it fails, or
                returns a value that is infinite or NaN, that is logged once, and the metric is left
                out of the push.
            kind: ``"gauge"``: a value of the moment. ``"total"``: a sum that only grows.
            attributes: Labels of the metric.

        Raises:
            ConfigurationError: An argument is wrong.
            IllegalStateError: There is a metric of that name.
        """
        self._metrics.register(RegisteredMetric(name, read, kind, attributes))

    def unregister_metric(self, name: str) -> None:
        """Stop pushing a metric of the application.

        Args:
            name: The name that was registered.

        Raises:
            ConfigurationError: ``name`` cannot be the name of a metric.
            IllegalStateError: There is no such metric.
        """
        check_name(name)
        self._metrics.unregister(name)
