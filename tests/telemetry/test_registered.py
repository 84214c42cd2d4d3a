"""Metrics of the application, pushed with those of the client (KIP-1076)."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import trio
from test_metrics import SECOND, Time
from test_push import payloads, receiving, settings
from trio.testing import MockClock

import trikafka
from trikafka import ConfigurationError, IllegalStateError
from trikafka._state.telemetry.metrics import PRODUCER, Meter
from trikafka._state.telemetry.registered import RegisteredMetric
from trikafka.interfaces import Metric

NAME = "com.example.orders"
OPENERS: dict[str, Any] = {
    "consumer": trikafka.open_consumer,
    "producer": trikafka.open_producer,
    "admin": trikafka.open_admin,
}


@pytest.mark.parametrize("kind", OPENERS)
async def test_registered_metric_is_pushed(kind: str, autojump_clock: MockClock) -> None:
    async with receiving("com.example.", interval=1) as cluster:
        async with OPENERS[kind](**settings(cluster, enable_metrics_push=True)) as client:
            orders = [3]
            client.register_metric(NAME, lambda: orders[0], attributes={"shop": "x"})
            await trio.sleep(5)
            orders[0] = 4
            await trio.sleep(5)
            assert [
                payload.metrics for payload in (payloads(cluster)[0], payloads(cluster)[-1])
            ] == [
                {NAME: {(("shop", "x"),): 3}},
                {NAME: {(("shop", "x"),): 4}},
            ]
            client.unregister_metric(NAME)
            await trio.sleep(5)
            assert payloads(cluster)[-1].metrics == {}


async def test_share_consumer_has_them_too(autojump_clock: MockClock) -> None:
    async with receiving("com.example.", interval=1) as cluster:
        async with trikafka.open_share_consumer("t", **settings(cluster, group_id="g")) as queue:
            queue.register_metric(NAME, lambda: 1.5)
            await trio.sleep(5)
            push = queue.statistics().metrics_push
            assert push is not None
            assert push.pushes >= 3
        assert payloads(cluster)[-1].metrics == {NAME: {(): 1.5}}
        assert payloads(cluster)[-1].resource["group_id"] == "g"


def test_numbers_of_numpy_are_numbers() -> None:
    time = Time()
    meter = Meter(PRODUCER, time.clock, time.wall)
    meter.select(["com."])
    values = [numpy.int64(3), numpy.float32(1.5), numpy.asarray(4)]
    for number, value in enumerate(values):
        attributes = {"rank": numpy.int64(number)}
        meter.register(RegisteredMetric(f"com.{number}", lambda v=value: v, "gauge", attributes))
    points = [metric.points[0] for metric in meter.collect(delta=True)]
    assert [(type(each.value), each.value) for each in points] == [(int, 3), (float, 1.5), (int, 4)]
    assert [each.attributes for each in points] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


RETURNED: dict[str, Any] = {
    "text": "3",
    "nothing": None,
    "a truth": True,
    "NaN": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "more than a double has": 10**400,
}


@pytest.mark.parametrize("kind", ["gauge", "total"])
@pytest.mark.parametrize("fault", ["raises", *RETURNED])
async def test_failing_function_is_logged_once(
    kind: Any, fault: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> Any:
        if fault == "raises":
            raise KeyError("oops")
        return RETURNED[fault]

    async with receiving("com.", interval=1) as cluster:
        async with trikafka.open_producer(**settings(cluster)) as producer:
            producer.register_metric(NAME, read, kind=kind)
            producer.register_metric("com.good", lambda: 1)
            await trio.sleep(20)
            await producer.send("t", b"1")
        assert {name for payload in payloads(cluster) for name in payload.metrics} == {"com.good"}
    (line,) = [record for record in caplog.records if record.name == "trikafka.telemetry"]
    assert NAME in line.getMessage()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "begins with a letter"),
    ({"name": "1a"}, "begins with a letter"),
    ({"name": "a b"}, "begins with a letter"),
    ({"name": "a" * 256}, "at most 255"),
    ({"name": None}, "begins with a letter"),
    ({"name": "org.apache.kafka.x"}, "Kafka's own"),
    ({"read": 3}, "plain function"),
    ({"read": trio.sleep}, "plain function"),
    ({"kind": "counter"}, "'gauge' or 'total', not 'counter'"),
    ({"kind": []}, "'gauge' or 'total'"),
    ({"attributes": {"a": None}}, "attributes map"),
    ({"attributes": {1: "a"}}, "attributes map"),
    ({"attributes": "a"}, "attributes map"),
    ({"attributes": {"a": math.nan}}, "finite numbers"),
    ({"attributes": {"a": 10**400}}, "finite numbers"),
]


@pytest.mark.parametrize(("wrong", "text"), BAD)
async def test_bad_argument_is_named(
    wrong: dict[str, Any], text: str, autojump_clock: MockClock
) -> None:
    given: dict[str, Any] = {"name": NAME, "read": lambda: 1} | wrong
    async with receiving() as cluster, trikafka.open_producer(**settings(cluster)) as producer:
        with pytest.raises(ConfigurationError, match=text):
            producer.register_metric(given.pop("name"), given.pop("read"), **given)


async def test_name_is_registered_once(autojump_clock: MockClock) -> None:
    async with receiving() as cluster, trikafka.open_consumer(**settings(cluster)) as consumer:
        with pytest.raises(IllegalStateError, match="no registered metric"):
            consumer.unregister_metric(NAME)
        consumer.register_metric(NAME, lambda: 1)
        with pytest.raises(IllegalStateError, match="already"):
            consumer.register_metric(NAME, lambda: 2)
        consumer.unregister_metric(NAME)
        consumer.register_metric(NAME, lambda: 2)


def test_infinite_value_passes() -> None:
    """The metric is back with the first finite value, and a total has lost nothing."""
    time = Time()
    meter = Meter(PRODUCER, time.clock, time.wall)
    meter.select(["com."])
    value: float = 5
    meter.register(RegisteredMetric("com.total", lambda: value, "total", None))
    meter.register(RegisteredMetric("com.gauge", lambda: value, "gauge", None))

    def collected() -> dict[str, float]:
        found = {metric.name: metric.points[0].value for metric in meter.collect(delta=True)}
        meter.confirm()
        return found

    assert collected() == {"com.total": 5, "com.gauge": 5}
    value = math.inf
    assert collected() == {}
    value = math.nan
    assert collected() == {}
    value = 8
    assert collected() == {"com.total": 3, "com.gauge": 8}


def test_totals_of_the_application() -> None:
    time = Time()
    meter = Meter(PRODUCER, time.clock, time.wall)
    meter.select([NAME])
    count = 5
    meter.register(RegisteredMetric(NAME, lambda: count, "total", None))

    def total(*, delta: bool) -> tuple[float, int]:
        (metric,) = meter.collect(delta)
        assert isinstance(metric, Metric)
        assert (metric.total, metric.delta) == (True, delta)
        (point,) = metric.points
        return point.value, point.start // SECOND

    time.now = 60
    assert total(delta=False) == (5, 50)
    assert total(delta=True) == (5, 50)
    meter.confirm()
    count = 7
    assert total(delta=True) == (2, 60)
    assert total(delta=False) == (7, 50)
    meter.confirm()
    count = 3  # the application's counter has begun again
    assert total(delta=True) == (3, 60)


def test_failed_read_confirms_no_lost_growth() -> None:
    """A push was lost, and the next one, which arrives, is without the metric."""
    time = Time()
    meter = Meter(PRODUCER, time.clock, time.wall)
    meter.select([NAME])
    count: float = 5
    meter.register(RegisteredMetric(NAME, lambda: count, "total", None))
    assert [point.value for metric in meter.collect(delta=True) for point in metric.points] == [5]
    count = math.nan
    assert meter.collect(delta=True) == ()
    meter.confirm()
    count = 7
    assert [point.value for metric in meter.collect(delta=True) for point in metric.points] == [7]
