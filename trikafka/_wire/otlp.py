"""The encoder of OpenTelemetry's metrics, the payload of PushTelemetry (KIP-714).

A payload is the protobuf message ``MetricsData`` of OTLP 1. Ten small message types make it up, so
they are written by hand here, field by field, and need no protobuf library.
"""

# The fields that are written, with their numbers:
#
#   MetricsData       resource_metrics 1
#   ResourceMetrics   resource 1, scope_metrics 2
#   Resource          attributes 1
#   ScopeMetrics      scope 1, metrics 2
#   Scope             name 1, version 2
#   Metric            name 1, gauge 5, sum 7
#   Gauge             data_points 1
#   Sum               data_points 1, aggregation_temporality 2, is_monotonic 3
#   NumberDataPoint   start_time 2 (fixed64), time 3 (fixed64), as_double 4, as_int 6 (sfixed64),
#                     attributes 7
#   KeyValue          key 1, value 2
#   AnyValue          string 1, bool 2, int 3, double 4

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from ..interfaces.metrics import AttributeValue, Metric, MetricPoint

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_DELTA, _CUMULATIVE = 1, 2
_INT64 = range(-(2**63), 2**63)
_MASK64 = 2**64 - 1


def encode_metrics(
    resource: Mapping[str, AttributeValue], scope: tuple[str, str], metrics: Iterable[Metric]
) -> bytes:
    """Return the encoded ``MetricsData``.

    Args:
        resource: The attributes of the client.
        scope: The name and version of the library that measured.
        metrics: The metrics.
    """
    name, version = scope
    scope_metrics = _message(1, _text(1, name) + _text(2, version))
    scope_metrics += b"".join(_message(2, _metric(metric)) for metric in metrics)
    resource_metrics = _message(1, _attributes(1, resource)) + _message(2, scope_metrics)
    return _message(1, resource_metrics)


def _metric(metric: Metric) -> bytes:
    points = b"".join(_message(1, _point(point)) for point in metric.points)
    if not metric.total:
        return _text(1, metric.name) + _message(5, points)
    temporality = _number(2, _DELTA if metric.delta else _CUMULATIVE)
    return _text(1, metric.name) + _message(7, points + temporality + _number(3, 1))


def _point(point: MetricPoint) -> bytes:
    encoded = _fixed(3, struct.pack("<Q", point.time))
    if point.start:
        encoded = _fixed(2, struct.pack("<Q", point.start)) + encoded
    if isinstance(point.value, int) and point.value in _INT64:
        encoded += _fixed(6, struct.pack("<q", point.value))
    else:
        encoded += _fixed(4, struct.pack("<d", _double(point.value)))
    return encoded + _attributes(7, point.attributes)


def _attributes(number: int, attributes: Mapping[str, AttributeValue]) -> bytes:
    return b"".join(
        _message(number, _text(1, key) + _message(2, _any(value)))
        for key, value in attributes.items()
    )


def _any(value: AttributeValue) -> bytes:
    if isinstance(value, bool):
        return _number(2, value)
    if isinstance(value, int) and value in _INT64:
        return _number(3, value & _MASK64)
    if isinstance(value, int | float):
        return _fixed(4, struct.pack("<d", _double(value)))
    return _text(1, value)


def _double(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond the largest double
        return float("inf") if value > 0 else float("-inf")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _fixed(number: int, packed: bytes) -> bytes:
    return _varint(number << 3 | _FIXED64) + packed


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    # A lone surrogate must not make the receiver refuse the whole payload.
    return _message(number, text.encode("utf-8", "replace"))
