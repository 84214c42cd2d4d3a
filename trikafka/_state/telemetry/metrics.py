"""The measurements of a client for the brokers (KIP-714), and the metrics made of them.

Each part of the client reports events here; the telemetry manager collects. No I/O.
"""

# What it costs, and when
# -----------------------
#
# Most clients are never asked for metrics. So nothing is measured for each record, and what is
# measured for each response begins with a look at `recording`, which is False until a broker has
# subscribed. Rare events (a connection, a rebalance) are counted always: the totals begin with the
# client, as their start time says.
#
# What a push covers
# ------------------
#
# An average, a maximum, a rate and a delta cover the time since the last push that the broker has
# taken. `collect` may run without a `confirm` after it (the push was refused, or lost): then the
# next collection covers that time, too, and nothing is missing. A gauge without a measurement in
# its time is left out, because 0 would look like a measurement.
#
# The names are Kafka's: `org.apache.kafka.`, the group of the metric in the Java client, the name.
# Times are in milliseconds.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ...errors import IllegalStateError
from ...interfaces.metrics import AttributeValue, Metric, MetricPoint
from .registered import RegisteredMetric

_NAMESPACE = "org.apache.kafka."


@dataclass(frozen=True, slots=True)
class _Span:
    """The time that a collection covers."""

    now: float  # seconds, of the client's clock
    seconds: float
    delta: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a collection."""

    name: str
    value: int | float
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    total: bool = False


class _Instrument(Protocol):
    """The part of a metric that measures."""

    def values(self, span: _Span) -> Iterator[_Value]:
        """Yield the values of the time until now; what follows belongs to the next collection."""

    def confirm(self) -> None:
        """Forget what the last collection covered."""


Instrument = TypeVar("Instrument", bound=_Instrument)


class Times:
    """Measured times (milliseconds): their average and maximum."""

    __slots__ = ("_attributes", "_collected", "_count", "_most", "_name", "_sum")

    def __init__(self, name: str, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        self._name = name
        self._attributes = attributes or {}
        self._count = 0
        self._sum = self._most = 0.0
        # Of the time that was collected and not confirmed: count, sum, maximum.
        self._collected = (0, 0.0, 0.0)

    @property
    def idle(self) -> bool:
        """True if nothing was measured since the last confirmed collection."""
        return not self._count and not self._collected[0]

    def record(self, milliseconds: float, count: int = 1) -> None:
        """Record a time; with ``count`` 0 it is added to one that was recorded before."""
        self._count += count
        self._sum += milliseconds
        self._most = max(self._most, milliseconds)

    def record_all(self, seconds: Sequence[float]) -> None:
        """Record several times, in seconds, at once."""
        self._count += len(seconds)
        self._sum += sum(seconds) * 1000
        self._most = max(self._most, max(seconds) * 1000)

    def values(self, span: _Span) -> Iterator[_Value]:
        count, total, most = self._collected
        self._collected = (self._count + count, self._sum + total, max(self._most, most))
        self._count = 0
        self._sum = self._most = 0.0
        count, total, most = self._collected
        if count:
            yield _Value(f"{self._name}.avg", total / count, self._attributes)
            yield _Value(f"{self._name}.max", most, self._attributes)

    def confirm(self) -> None:
        self._collected = (0, 0.0, 0.0)


class _NodeTimes:
    """The latencies of requests, by broker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: dict[int, Times] = {}

    def record(self, node_id: int, milliseconds: float) -> None:
        times = self._nodes.get(node_id)
        if times is None:
            times = self._nodes[node_id] = Times(self._name, {"node_id": str(node_id)})
        times.record(milliseconds)

    def values(self, span: _Span) -> Iterator[_Value]:
        for times in self._nodes.values():
            yield from times.values(span)

    def confirm(self) -> None:
        for times in self._nodes.values():
            times.confirm()
        # A broker that has left the cluster is not kept.
        self._nodes = {node: times for node, times in self._nodes.items() if not times.idle}


class Total:
    """A sum that only grows; with ``rate`` also its growth each second."""

    __slots__ = ("_collected", "_confirmed", "_name", "_rate", "_value")

    def __init__(self, name: str, rate: bool = False) -> None:
        self._name = name
        self._rate = rate
        self._value = self._collected = self._confirmed = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Add to the sum."""
        self._value += amount

    def values(self, span: _Span) -> Iterator[_Value]:
        self._collected = self._value
        added = self._value - self._confirmed
        yield _Value(f"{self._name}.total", added if span.delta else self._value, total=True)
        if self._rate and span.seconds > 0:
            yield _Value(f"{self._name}.rate", added / span.seconds)

    def confirm(self) -> None:
        self._confirmed = self._collected


class _Present:
    """A gauge that is read when it is collected."""

    def __init__(self, name: str, read: Callable[[], float]) -> None:
        self._name = name
        self._read = read

    def values(self, span: _Span) -> Iterator[_Value]:
        yield _Value(self._name, float(self._read()))

    def confirm(self) -> None:
        pass


class _TimeShare:
    """The share of time for which a state lasted.

    ``read`` returns the seconds of the state from the beginning until the given time.
    """

    def __init__(self, name: str, read: Callable[[float], float]) -> None:
        self._name = name
        self._read = read
        self._collected = self._confirmed = 0.0

    def values(self, span: _Span) -> Iterator[_Value]:
        self._collected = self._read(span.now)
        if span.seconds > 0:
            share = (self._collected - self._confirmed) / span.seconds
            yield _Value(self._name, min(1.0, max(0.0, share)))

    def confirm(self) -> None:
        self._confirmed = self._collected


class _OfApplication:
    """A metric of the application."""

    def __init__(self, metric: RegisteredMetric) -> None:
        self._metric = metric

    def values(self, span: _Span) -> Iterator[_Value]:
        metric = self._metric
        value = metric.read()
        if value is not None:
            if metric.total:
                added = metric.added(value)
                value = added if span.delta else value
            yield _Value(metric.name, value, metric.attributes, metric.total)

    def confirm(self) -> None:
        self._metric.confirm()


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of a kind of client's metrics, without Kafka's namespace.

    Attributes:
        client: The prefix of the metrics of connections.
        latencies: The metric of response times by the API whose responses it measures.
        throttle: The metric of the delays that responses to Produce demand.
        queue: The metric of the time from a batch's first record until it is sent.
        rebalance: The metric of the time until the member is settled again.
    """

    client: str
    latencies: Mapping[str, str] = field(default_factory=dict)
    throttle: str | None = None
    queue: str | None = None
    rebalance: str | None = None


PRODUCER = MetricNames(
    "producer", throttle="producer.produce.throttle.time", queue="producer.record.queue.time"
)
CONSUMER = MetricNames(
    "consumer",
    latencies={
        "Fetch": "consumer.fetch.manager.fetch.latency",
        "OffsetCommit": "consumer.coordinator.commit.latency",
    },
    rebalance="consumer.coordinator.rebalance.latency",
)
SHARE_CONSUMER = MetricNames(
    "consumer.share",
    latencies={"ShareFetch": "consumer.share.fetch.manager.fetch.latency"},
    rebalance="consumer.share.coordinator.rebalance.latency",
)
ADMIN = MetricNames("admin.client")


class Meter:
    """The metrics of one client, an implementation of :class:`~trikafka.interfaces.ClientMetrics`.

    Args:
        names: The names of the client's metrics.
        clock: Returns the seconds of the client's clock.
        wall: Returns the nanoseconds since the epoch.
        resource: The attributes of the client that do not change.
    """

    def __init__(
        self,
        names: MetricNames,
        clock: Callable[[], float],
        wall: Callable[[], int] = time.time_ns,
        resource: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        #: True while a broker wants metrics. Frequent events are recorded only then.
        self.recording = False
        self._names = names
        self._clock = clock
        self._wall = wall
        self._resource = dict(resource or {})
        self._resource_later: Callable[[], Mapping[str, AttributeValue]] = dict
        self._prefixes: tuple[str, ...] = ()
        self._instruments: list[_Instrument] = []
        self._registered: dict[str, _Instrument] = {}
        self._connections = self._added(Total(self._named("connection.creation"), rate=True))
        self._nodes = self._added(_NodeTimes(self._named("node.request.latency")))
        self._apis = {
            api: self._added(Times(_NAMESPACE + name)) for api, name in names.latencies.items()
        }
        self._throttle = self._times(names.throttle)
        self._queue = self._times(names.queue)
        self._rebalance = self._times(names.rebalance)
        self._rebalancing: Total | None = None
        if names.rebalance is not None:
            self._rebalancing = self._added(Total(_NAMESPACE + names.rebalance))
        # When the client began, when the last confirmed collection ended, and the last collection.
        self._began = self._since = self._collected = wall()
        self._since_clock = self._collected_clock = clock()

    def _named(self, name: str) -> str:
        return f"{_NAMESPACE}{self._names.client}.{name}"

    def _times(self, name: str | None) -> Times:
        return Times("") if name is None else self._added(Times(_NAMESPACE + name))

    def _added(self, instrument: Instrument) -> Instrument:
        self._instruments.append(instrument)
        return instrument

    # --- what happens in the client ---

    def connected(self) -> None:
        """Record that a connection was made."""
        self._connections.add()

    def responded(self, node_id: int, api: str, seconds: float) -> None:
        """Record a response whose request was made ``seconds`` ago."""
        if not self.recording:
            return
        milliseconds = max(0.0, seconds) * 1000
        if node_id >= 0:  # not a bootstrap address
            self._nodes.record(node_id, milliseconds)
        if (times := self._apis.get(api)) is not None:
            times.record(milliseconds)
        elif api == "Produce":
            self._throttle.record(0.0)

    def throttled(self, api: str, seconds: float) -> None:
        """Record the delay that a response to ``api`` demands, beside :meth:`responded`."""
        if self.recording and api == "Produce":
            self._throttle.record(seconds * 1000, count=0)

    def queued(self, seconds: Sequence[float]) -> None:
        """Record the time from each batch's first record until the batch was sent first."""
        if seconds:
            self._queue.record_all(seconds)

    def rebalanced(self, seconds: float) -> None:
        """Record a rebalance that took ``seconds``."""
        milliseconds = seconds * 1000
        self._rebalance.record(milliseconds)
        if self._rebalancing is not None:
            self._rebalancing.add(milliseconds)

    def present(self, name: str, read: Callable[[], float]) -> None:
        """Add a gauge below Kafka's namespace. ``read`` returns its value at each collection."""
        self._added(_Present(_NAMESPACE + name, read))

    def time_share(self, name: str, read: Callable[[float], float]) -> None:
        """Add the share of time for which a state lasts; see :class:`_TimeShare`."""
        self._added(_TimeShare(_NAMESPACE + name, read))

    def identify(self, read: Callable[[], Mapping[str, AttributeValue]]) -> None:
        """Set the function that returns the attributes of the client that change."""
        self._resource_later = read

    # --- metrics of the application ---

    def register(self, metric: RegisteredMetric) -> None:
        """Add a metric of the application.

        Raises:
            IllegalStateError: There is one of that name.
        """
        if metric.name in self._registered:
            raise IllegalStateError(
                f"there is a metric {metric.name!r} already: unregister_metric() first"
            )
        self._registered[metric.name] = _OfApplication(metric)

    def unregister(self, name: str) -> None:
        """Remove a metric of the application.

        Raises:
            IllegalStateError: There is none of that name.
        """
        if self._registered.pop(name, None) is None:
            raise IllegalStateError(f"there is no registered metric {name!r}")

    # --- for the telemetry manager ---

    def select(self, prefixes: Sequence[str]) -> None:
        """Record for metrics whose names begin with one of ``prefixes``; ``""`` means all."""
        self._prefixes = tuple(prefixes)
        self.recording = bool(self._prefixes)

    def collect(self, delta: bool) -> tuple[Metric, ...]:
        """Return the selected metrics that have a value, each once."""
        self._collected_clock = now = self._clock()
        self._collected = time_ns = max(self._wall(), self._since)
        span = _Span(now, now - self._since_clock, delta)
        found: dict[str, tuple[list[MetricPoint], bool]] = {}
        # A function of the application may register another metric.
        for instrument in [*self._instruments, *self._registered.values()]:
            for value in instrument.values(span):
                # A name that several prefixes match is found once.
                if value.name.startswith(self._prefixes):
                    start = 0 if not value.total else self._since if delta else self._began
                    points, _ = found.setdefault(value.name, ([], value.total))
                    points.append(MetricPoint(value.value, time_ns, start, value.attributes))
        return tuple(
            Metric(name, tuple(points), total, delta and total)
            for name, (points, total) in found.items()
        )

    def confirm(self) -> None:
        """Record that the broker has taken the last collection."""
        self._since = self._collected
        self._since_clock = self._collected_clock
        for instrument in [*self._instruments, *self._registered.values()]:
            instrument.confirm()

    def resource(self) -> Mapping[str, AttributeValue]:
        """Return the attributes of the client."""
        return {**self._resource, **self._resource_later()}
