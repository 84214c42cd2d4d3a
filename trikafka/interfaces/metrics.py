"""The metrics that a client measures for the cluster's operators (KIP-714)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

#: The value of an attribute (a label) of a metric.
AttributeValue = str | bool | int | float


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of a metric.

    Attributes:
        value: The number; an ``int`` is sent as an integer.
        time: Nanoseconds since the epoch.
        start: The start of the time that the value covers; 0 for a value of one moment.
        attributes: The labels of the value.
    """

    value: int | float
    time: int
    start: int = 0
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its values.

    Attributes:
        name: The name, with dots.
        points: The values; they differ in their attributes.
        total: True for a sum that only grows; otherwise the metric is a gauge.
        delta: True if the values of a sum are what was added since the last push.
    """

    name: str
    points: tuple[MetricPoint, ...]
    total: bool = False
    delta: bool = False


@runtime_checkable
class ClientMetrics(Protocol):
    """The metrics of one client, for its telemetry manager.

    The client records events; the manager selects, collects and confirms.
    """

    def select(self, prefixes: Sequence[str]) -> None:
        """Record for metrics whose names begin with one of ``prefixes``; ``""`` means all.

        Args:
            prefixes: The prefixes. None of them: nothing is recorded.
        """

    def collect(self, delta: bool) -> tuple[Metric, ...]:
        """Return the selected metrics that have a value, each once.

        Args:
            delta: Whether totals are what was added since the last confirmed collection.
        """

    def confirm(self) -> None:
        """Record that the broker has taken the last collection: the next one begins at its end."""

    def resource(self) -> Mapping[str, AttributeValue]:
        """Return the attributes of the client, such as its group."""
