"""What a client measures, and how it becomes metrics: averages, maxima, rates, totals."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka._state.telemetry.metrics import ADMIN, CONSUMER, PRODUCER, SHARE_CONSUMER, Meter
from trikafka.interfaces import ClientMetrics, Metric

KAFKA = "org.apache.kafka."
SECOND = 1_000_000_000


class Time:
    """A clock that a test moves; the wall's clock goes with it."""

    def __init__(self) -> None:
        self.now = 50.0

    def clock(self) -> float:
        return self.now

    def wall(self) -> int:
        return int(self.now * SECOND)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def meter(time: Time) -> Meter:
    meter = Meter(CONSUMER, time.clock, time.wall, {"group_id": "g"})
    meter.select([""])
    return meter


def values(metrics: Iterable[Metric]) -> dict[str, object]:
    """Return the values by name without Kafka's namespace; with a label by its value."""
    found: dict[str, object] = {}
    for metric in metrics:
        for point in metric.points:
            label = "".join(f"[{value}]" for value in point.attributes.values())
            found[metric.name.removeprefix(KAFKA) + label] = point.value
    return found


def test_meter_meets_the_contract(meter: Meter) -> None:
    assert isinstance(meter, ClientMetrics)


def test_latencies_have_average_and_maximum(meter: Meter) -> None:
    meter.responded(3, "Fetch", 0.010)
    meter.responded(3, "Fetch", 0.030)
    meter.responded(4, "OffsetCommit", 0.005)
    meter.responded(-1, "Metadata", 9.0)  # a bootstrap address is no broker
    found = values(meter.collect(True))
    assert found["consumer.node.request.latency.avg[3]"] == pytest.approx(20)
    assert found["consumer.node.request.latency.max[3]"] == pytest.approx(30)
    assert found["consumer.node.request.latency.max[4]"] == pytest.approx(5)
    assert found["consumer.fetch.manager.fetch.latency.avg"] == pytest.approx(20)
    assert found["consumer.coordinator.commit.latency.max"] == pytest.approx(5)
    assert not [name for name in found if "[-1]" in name]


def test_producer_measures_throttle_and_queue(time: Time) -> None:
    meter = Meter(PRODUCER, time.clock, time.wall)
    meter.select([""])
    meter.responded(0, "Produce", 0.01)
    meter.responded(0, "Produce", 0.01)
    meter.throttled("Produce", 0.3)
    meter.throttled("Fetch", 9.0)
    meter.queued([])
    meter.queued([0.02, 0.04])
    found = values(meter.collect(False))
    assert found["producer.produce.throttle.time.avg"] == pytest.approx(150)
    assert found["producer.produce.throttle.time.max"] == pytest.approx(300)
    assert found["producer.record.queue.time.avg"] == pytest.approx(30)
    assert found["producer.record.queue.time.max"] == pytest.approx(40)


def test_total_and_rate_of_connections(meter: Meter, time: Time) -> None:
    for _ in range(6):
        meter.connected()
    time.now += 3
    metrics = {metric.name: metric for metric in meter.collect(False)}
    total = metrics[KAFKA + "consumer.connection.creation.total"]
    assert (total.total, total.delta) == (True, False)
    assert [(p.value, p.start, p.time) for p in total.points] == [(6.0, 50 * SECOND, 53 * SECOND)]
    rate = metrics[KAFKA + "consumer.connection.creation.rate"]
    assert (rate.total, [p.value for p in rate.points]) == (False, [2.0])


def test_delta_begins_at_the_confirmed_push(meter: Meter, time: Time) -> None:
    name = KAFKA + "consumer.connection.creation.total"

    def total() -> tuple[float, int, int]:
        (metric,) = [metric for metric in meter.collect(True) if metric.name == name]
        assert metric.total
        assert metric.delta
        (point,) = metric.points
        return point.value, point.start // SECOND, point.time // SECOND

    meter.connected()
    time.now = 60.0
    assert total() == (1.0, 50, 60)
    meter.confirm()
    meter.connected()
    meter.connected()
    time.now = 70.0
    assert total() == (2.0, 60, 70)  # refused: not confirmed
    meter.connected()
    time.now = 80.0
    assert total() == (3.0, 60, 80)
    meter.connected()  # between the collection and its confirmation
    meter.confirm()
    time.now = 90.0
    assert total() == (1.0, 80, 90)


def test_unconfirmed_is_collected_again(meter: Meter) -> None:
    name = "consumer.fetch.manager.fetch.latency"
    meter.responded(0, "Fetch", 0.010)
    meter.collect(True)
    meter.responded(0, "Fetch", 0.002)
    found = values(meter.collect(True))
    assert found[f"{name}.avg"] == pytest.approx(6)
    assert found[f"{name}.max"] == pytest.approx(10)
    meter.responded(0, "Fetch", 0.001)
    meter.confirm()
    assert values(meter.collect(True))[f"{name}.max"] == pytest.approx(1)


def test_gauge_without_value_is_left_out(meter: Meter) -> None:
    meter.responded(0, "Fetch", 0.01)
    meter.collect(True)
    meter.confirm()
    names = {metric.name for metric in meter.collect(True)}
    assert names == {
        KAFKA + "consumer.connection.creation.total",
        KAFKA + "consumer.coordinator.rebalance.latency.total",
    }


def test_rebalances_count_from_the_start(time: Time) -> None:
    meter = Meter(CONSUMER, time.clock, time.wall)
    meter.connected()
    meter.rebalanced(2.0)
    meter.select([""])
    meter.rebalanced(4.0)
    found = values(meter.collect(True))
    assert found["consumer.coordinator.rebalance.latency.avg"] == 3000
    assert found["consumer.coordinator.rebalance.latency.max"] == 4000
    assert found["consumer.coordinator.rebalance.latency.total"] == 6000
    assert found["consumer.connection.creation.total"] == 1


def test_share_of_the_time(meter: Meter, time: Time) -> None:
    waited = 3.0
    meter.time_share("consumer.poll.idle.ratio.avg", lambda now: waited)
    time.now += 4
    assert values(meter.collect(True))["consumer.poll.idle.ratio.avg"] == 0.75
    meter.confirm()
    waited += 1
    time.now += 4
    assert values(meter.collect(True))["consumer.poll.idle.ratio.avg"] == 0.25


def test_nothing_is_recorded_unless_selected(time: Time) -> None:
    meter = Meter(PRODUCER, time.clock, time.wall)
    assert not meter.recording
    meter.responded(0, "Produce", 1.0)
    meter.throttled("Produce", 1.0)
    meter.select([""])
    assert meter.recording
    assert not [name for name in values(meter.collect(True)) if "creation" not in name]
    meter.select([])
    assert not meter.recording
    assert meter.collect(True) == ()


PREFIXES = [
    ([""], 13),
    ([KAFKA + "consumer."], 13),
    ([KAFKA + "consumer.", KAFKA, ""], 13),  # each once
    ([KAFKA + "consumer.coordinator."], 6),
    ([KAFKA + "consumer.coordinator.commit", KAFKA + "consumer.coordinator.commit.latency"], 2),
    ([KAFKA + "producer."], 0),
    (["consumer."], 0),
    ([], 0),
]


@pytest.mark.parametrize(("prefixes", "count"), PREFIXES)
def test_prefixes_select(prefixes: list[str], count: int, meter: Meter, time: Time) -> None:
    meter.present("consumer.coordinator.assigned.partitions", lambda: 3)
    meter.time_share("consumer.poll.idle.ratio.avg", lambda now: 0.0)
    meter.responded(0, "Fetch", 0.1)
    meter.responded(1, "OffsetCommit", 0.1)
    meter.rebalanced(1.0)
    time.now += 1
    meter.select(prefixes)
    names = [metric.name for metric in meter.collect(True)]
    assert len(names) == len(set(names)) == count


def test_resource_has_what_changes(meter: Meter) -> None:
    assert meter.resource() == {"group_id": "g"}
    meter.identify(lambda: {"group_member_id": "m-1"})
    assert meter.resource() == {"group_id": "g", "group_member_id": "m-1"}


def test_departed_broker_is_forgotten(meter: Meter) -> None:
    meter.responded(7, "Fetch", 0.1)
    for _ in range(2):
        meter.collect(True)
        meter.confirm()
    assert not [name for name in values(meter.collect(True)) if "node" in name]
    assert not meter._nodes._nodes


@pytest.mark.parametrize(
    ("names", "prefix"), [(SHARE_CONSUMER, "consumer.share."), (ADMIN, "admin.client.")]
)
def test_other_clients_measure_too(names: object, prefix: str, time: Time) -> None:
    meter = Meter(names, time.clock, time.wall)  # type: ignore[arg-type]
    meter.select([""])
    meter.responded(0, "ShareFetch", 0.1)
    found = values(meter.collect(True))
    assert found[f"{prefix}node.request.latency.max[0]"] == pytest.approx(100)
    assert all(name.startswith(prefix) for name in found)


@given(st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["collect", "confirm"])), max_size=30))
def test_deltas_add_up_to_the_total(steps: list[int | str]) -> None:
    """Whatever is refused in between, the confirmed deltas and the last one are the whole."""
    time = Time()
    meter = Meter(PRODUCER, time.clock, time.wall)
    meter.select([""])
    name = "producer.connection.creation.total"
    made = confirmed = 0.0
    pending: float | None = None
    for step in [*steps, "collect"]:
        time.now += 1
        if step == "collect":
            pending = float(values(meter.collect(True))[name])  # type: ignore[arg-type]
            assert confirmed + pending == made
        elif step == "confirm" and pending is not None:
            meter.confirm()
            confirmed += pending
            pending = None
        elif isinstance(step, int):
            for _ in range(step):
                meter.connected()
            made += step
