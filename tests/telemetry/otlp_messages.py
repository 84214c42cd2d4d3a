"""OTLP's messages for Google's protobuf library: a decoder that shares nothing with our encoder."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "string": 9,
    "bool": 8,
    "int64": 3,
    "double": 1,
    "fixed64": 6,
    "sfixed64": 16,
    "enum": 5,  # read as int32
}
#: The fields of each message: number, name, type; a list where it repeats.
_MESSAGES: dict[str, list[tuple[int, str, str | list[str]]]] = {
    "AnyValue": [
        (1, "string_value", "string"),
        (2, "bool_value", "bool"),
        (3, "int_value", "int64"),
        (4, "double_value", "double"),
    ],
    "KeyValue": [(1, "key", "string"), (2, "value", "AnyValue")],
    "Resource": [(1, "attributes", ["KeyValue"])],
    "Scope": [(1, "name", "string"), (2, "version", "string")],
    "NumberDataPoint": [
        (2, "start_time", "fixed64"),
        (3, "time", "fixed64"),
        (4, "as_double", "double"),
        (6, "as_int", "sfixed64"),
        (7, "attributes", ["KeyValue"]),
    ],
    "Gauge": [(1, "data_points", ["NumberDataPoint"])],
    "Sum": [
        (1, "data_points", ["NumberDataPoint"]),
        (2, "aggregation_temporality", "enum"),
        (3, "is_monotonic", "bool"),
    ],
    "Metric": [(1, "name", "string"), (5, "gauge", "Gauge"), (7, "sum", "Sum")],
    "ScopeMetrics": [(1, "scope", "Scope"), (2, "metrics", ["Metric"])],
    "ResourceMetrics": [(1, "resource", "Resource"), (2, "scope_metrics", ["ScopeMetrics"])],
    "MetricsData": [(1, "resource_metrics", ["ResourceMetrics"])],
}
_ONE_OF = {"AnyValue": {1, 2, 3, 4}, "NumberDataPoint": {4, 6}, "Metric": {5, 7}}


def _build() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="otlp.proto", package="otlp", syntax="proto3")
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        if message in _ONE_OF:
            made.oneof_decl.add(name="one")
        for number, name, kind in fields:
            repeated = isinstance(kind, list)
            word = kind[0] if isinstance(kind, list) else kind
            field = made.field.add(name=name, number=number, label=3 if repeated else 1)
            if word in _TYPES:
                field.type = _TYPES[word]
            else:
                field.type = 11
                field.type_name = f".otlp.{word}"
            if number in _ONE_OF.get(message, ()):
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("otlp.MetricsData"))


MetricsData = _build()


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("one"))


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


class Decoded:
    """A payload, decoded.

    Attributes:
        resource: The attributes of the client.
        scope: The name and version of the library.
        metrics: The values of each metric by their attributes.
        points: The data points of each metric.
        sums: The temporality (1 delta, 2 cumulative) and monotony of each sum.
    """

    def __init__(self, payload: bytes) -> None:
        data = MetricsData.FromString(payload)
        size = data.ByteSize()
        data.DiscardUnknownFields()
        assert data.ByteSize() == size
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        self.resource = _attributes(resource.resource.attributes)
        self.scope = (scope.scope.name, scope.scope.version)
        self.points: dict[str, list[Any]] = {}
        self.sums: dict[str, tuple[int, bool]] = {}
        for metric in scope.metrics:
            assert metric.name not in self.points
            kind = metric.WhichOneof("one")
            self.points[metric.name] = list(getattr(metric, kind).data_points)
            if kind == "sum":
                self.sums[metric.name] = (
                    metric.sum.aggregation_temporality,
                    metric.sum.is_monotonic,
                )
        self.metrics = {
            name: {tuple(_attributes(point.attributes).items()): _value(point) for point in points}
            for name, points in self.points.items()
        }

    def value(self, name: str) -> Any:
        """Return the value of a metric that has one."""
        (value,) = self.metrics[name].values()
        return value
