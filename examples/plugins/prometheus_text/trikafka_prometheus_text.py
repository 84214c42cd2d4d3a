"""Metrics of clients as text in Prometheus' format.

Serve the result of ``plugin.text({"orders": producer})`` at a ``/metrics`` endpoint.

Counters of batches come from an observer, everything else from ``statistics()``. The plugin uses no
private attribute, and does no work for each record.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from trikafka import hookimpl
from trikafka.interfaces import ProducerObserver

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class PrometheusText:
    """The plugin."""

    def __init__(self):
        self._counts = defaultdict(int)  # (metric, labels) -> number
        # labels -> the number of batches in each bucket
        self._ages = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._sums = defaultdict(float)

    @hookimpl
    def trikafka_observer(self, context):
        return _Observer(self, context.config.client_id)

    def count(self, what, number=1, **labels):
        """Increase a counter."""
        self._counts[f"trikafka_{what}_total", _labels(labels)] += number

    def delivered(self, seconds, **labels):
        """Count a batch that was delivered ``seconds`` after its first record."""
        at = next(
            (index for index, limit in enumerate(_BUCKETS) if seconds <= limit), len(_BUCKETS)
        )
        self._ages[_labels(labels)][at] += 1
        self._sums[_labels(labels)] += seconds

    def text(self, clients: Mapping[str, object] = {}) -> str:
        """Return all metrics.

        Args:
            clients: Clients by name; the numbers of their ``statistics()`` are included.
        """
        lines = [
            f"{metric}{labels} {number}"
            for (metric, labels), number in sorted(self._counts.items())
        ]
        lines += [
            line
            for labels, buckets in sorted(self._ages.items())
            for line in self._histogram(labels, buckets)
        ]
        for name, client in clients.items():
            kind = type(client).__name__.lower()
            statistics = client.statistics()
            for field in dataclasses.fields(statistics):
                value = getattr(statistics, field.name)
                lines += _gauges(f"trikafka_{kind}_{field.name}", {"client": name}, value)
        return "\n".join(lines) + "\n"

    def _histogram(self, labels, buckets):
        name = "trikafka_batch_delivery_seconds"
        inner = labels[1:-1]
        total = 0
        for limit, number in zip((*_BUCKETS, "+Inf"), buckets, strict=True):
            total += number
            yield f'{name}_bucket{{{inner},le="{limit}"}} {total}'
        yield f"{name}_sum{labels} {self._sums[labels]:.6g}"
        yield f"{name}_count{labels} {total}"


class _Observer(ProducerObserver):
    def __init__(self, plugin, client):
        self._plugin = plugin
        self._client = client

    def opened(self, context):
        self._plugin.count("clients_opened", client=self._client)

    def failed(self, error):
        self._plugin.count("clients_failed", client=self._client, error=type(error).__name__)

    def closed(self):
        self._plugin.count("clients_closed", client=self._client)

    def batch_sent(self, event):
        self._plugin.count("batches_sent", client=self._client, topic=event.topic)

    def batch_retried(self, event):
        self._plugin.count(
            "batches_retried",
            client=self._client,
            topic=event.topic,
            error=type(event.error).__name__,
        )

    def batch_delivered(self, event):
        self._plugin.count(
            "records_delivered", event.records, client=self._client, topic=event.topic
        )
        self._plugin.delivered(event.age, client=self._client, topic=event.topic)

    def batch_failed(self, event):
        self._plugin.count(
            "records_failed",
            event.records,
            client=self._client,
            topic=event.topic,
            error=type(event.error).__name__,
        )


def _gauges(metric, labels, value):
    """Yield a number as one line, and a mapping or dataclass as a line for each number in it.

    Values that are no numbers are left out.
    """
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield f"{metric}{_labels(labels)} {value:.10g}"
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _gauges(f"{metric}_{field.name}", labels, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _gauges(metric, labels | {"of": key}, each)


def _labels(labels):
    def escaped(value):
        return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


plugin = PrometheusText()
