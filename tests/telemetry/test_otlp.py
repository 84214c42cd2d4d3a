"""The payload of metrics (OTLP), read by protobuf's own decoder."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otlp_messages import Decoded

from trikafka._wire.otlp import encode_metrics
from trikafka.interfaces import Metric, MetricPoint

SCOPE = ("trikafka", "1.0")
ANY = (
    st.text(max_size=200)
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
)
ATTRIBUTES = st.dictionaries(st.text(max_size=150), ANY, max_size=4)
POINTS = st.builds(
    MetricPoint,
    value=st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
    time=st.integers(0, 2**64 - 1),
    start=st.integers(0, 2**64 - 1),
    attributes=ATTRIBUTES,
)


def decode(*metrics: Metric, resource: dict[str, Any] | None = None) -> Decoded:
    return Decoded(encode_metrics(resource or {}, SCOPE, metrics))


def test_empty_payload_has_the_scope() -> None:
    found = decode()
    assert (found.scope, found.resource, found.metrics) == (SCOPE, {}, {})


def test_gauge_and_sums() -> None:
    found = decode(
        Metric("g", (MetricPoint(1.5, 7),)),
        Metric("d", (MetricPoint(2.0, 9, 5),), total=True, delta=True),
        Metric("c", (MetricPoint(3, 9, 1),), total=True),
        resource={"group_id": "g1", "client_rack": "ü"},
    )
    assert found.resource == {"group_id": "g1", "client_rack": "ü"}
    assert found.metrics == {"g": {(): 1.5}, "d": {(): 2.0}, "c": {(): 3}}
    assert found.sums == {"d": (1, True), "c": (2, True)}
    assert [(p.start_time, p.time) for p in found.points["d"]] == [(5, 9)]
    assert [(p.start_time, p.time) for p in found.points["g"]] == [(0, 7)]


@given(
    resource=ATTRIBUTES,
    metrics=st.dictionaries(st.text(max_size=150), st.tuples(POINTS, st.booleans()), max_size=5),
)
def test_every_payload_is_read_back(
    resource: dict[str, Any], metrics: dict[str, tuple[MetricPoint, bool]]
) -> None:
    given_ = [Metric(name, (point,), total) for name, (point, total) in metrics.items()]
    found = decode(*given_, resource=resource)
    assert found.resource == resource
    for name, (point, total) in metrics.items():
        assert found.metrics[name] == {tuple(point.attributes.items()): point.value}
        assert (name in found.sums) is total
        (read,) = found.points[name]
        assert (read.start_time, read.time) == (point.start, point.time)
        assert read.WhichOneof("one") == ("as_int" if isinstance(point.value, int) else "as_double")


@pytest.mark.parametrize(
    ("value", "read"),
    [(2**63, float(2**63)), (-(10**400), -math.inf), (10**400, math.inf), (True, 1)],
)
def test_odd_numbers_keep_the_payload_whole(value: int, read: float) -> None:
    found = decode(Metric("odd", (MetricPoint(value, 1, attributes={"big": value}),)))
    assert list(found.metrics["odd"].values()) == [read]


def test_lone_surrogate_is_replaced() -> None:
    found = decode(Metric("a\ud800b", (MetricPoint(1, 1, attributes={"\udfff": "\ud800"}),)))
    assert found.metrics == {"a?b": {(("?", "?"),): 1}}


def test_nan_is_sent_as_it_is() -> None:
    assert math.isnan(decode(Metric("n", (MetricPoint(math.nan, 1),))).value("n"))
