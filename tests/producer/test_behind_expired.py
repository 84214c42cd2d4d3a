"""Records behind a batch that has expired in flight wait until its response arrives or its
connection ends.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from accumulating import Bench
from producing import ready, values
from trio.testing import MockClock as Clock

from trikafka import DeliveryTimeoutError
from trikafka._state.producer.sequences import LATE_BYTES
from trikafka.error_codes import ErrorCode
from trikafka.errors import KafkaConnectionError, from_code

LOST = KafkaConnectionError("lost")
OUT_OF_ORDER = from_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def expired(**limits: Any) -> tuple[Bench, Any, Any]:
    """Return a batch that expired in flight and one made after that, at 3 s."""
    bench = Bench(0, delivery_timeout=3.0, linger=0.0, **limits)
    bench.prove()
    (first,) = bench.fill(1)
    assert bench.drain() == [first]
    bench.now = 3.0
    bench.accumulator.completion.expire(bench.now)
    assert isinstance(first.error, DeliveryTimeoutError)
    (fresh,) = bench.fill(1)
    return bench, first, fresh


def test_nothing_is_sent_behind_expired_batch() -> None:
    bench, _, fresh = expired()
    assert bench.drain() == []
    assert bench.accumulator.due_at(0, bench.now) == float("inf")
    assert not fresh.settled


def test_response_of_expired_batch_frees_the_next() -> None:
    bench, first, fresh = expired()
    bench.woken.clear()
    bench.accumulator.completion.succeeded(first, 1, None)
    assert bench.woken == [0]
    assert bench.drain() == [fresh]
    assert (fresh.sequence, fresh.identity.epoch) == (2, 0)


def test_lost_connection_frees_the_next_batch() -> None:
    """The outcome of the expired batch is unknown, so the next one begins a new epoch."""
    bench, first, fresh = expired()
    bench.woken.clear()
    bench.accumulator.completion.refused(first, LOST, bench.now)
    assert 0 in bench.woken
    assert bench.drain() == [fresh]
    assert (fresh.sequence, fresh.identity.epoch) == (0, 1)


def test_other_partitions_are_not_held() -> None:
    bench = Bench(0, 0, delivery_timeout=3.0, linger=0.0)
    bench.prove(0)
    bench.prove(1)
    (first,) = bench.fill(1)
    assert bench.drain() == [first]
    bench.now = 3.0
    bench.accumulator.completion.expire(bench.now)
    bench.fill(1)
    (other,) = bench.fill(1, 1)
    assert bench.drain() == [other]


def test_nothing_waits_without_idempotence() -> None:
    bench, _, fresh = expired(idempotent=False)
    assert bench.drain() == [fresh]


def behind_a_stray(**limits: Any) -> tuple[Bench, Any, Any]:
    """Return two batches whose connection was lost, the older one expired, at 3 s."""
    bench = Bench(0, delivery_timeout=3.0, linger=0.0, **limits)
    bench.prove()
    (first,) = bench.fill(1)
    bench.now = 1.0
    (second,) = bench.fill(1)
    assert [bench.drain(), bench.drain()] == [[first], [second]]
    bench.now = 2.0
    bench.accumulator.completion.refused(first, LOST, bench.now)
    bench.accumulator.completion.refused(second, LOST, bench.now)
    bench.now = 3.0
    bench.accumulator.completion.expire(bench.now)
    assert isinstance(first.error, DeliveryTimeoutError)
    assert first.error.maybe_written
    return bench, first, second


def test_expired_batch_is_not_resent() -> None:
    """Batches behind it keep their numbers until the broker shows whether it has them."""
    bench, first, second = behind_a_stray()
    assert bench.accumulator.batches() == [second]
    assert bench.drain() == [second]
    assert (second.sequence, second.identity.epoch) == (2, 0)
    bench.accumulator.completion.succeeded(second, 2, None)
    assert isinstance(first.error, DeliveryTimeoutError)
    (fresh,) = bench.fill(1)
    assert bench.drain() == [fresh]
    assert (fresh.sequence, fresh.identity.epoch) == (3, 0)


def test_refusal_counts_after_late_bytes_time() -> None:
    bench, _, second = behind_a_stray()
    (fresh,) = bench.fill(1)
    assert bench.drain() == [second]
    bench.accumulator.completion.refused(second, OUT_OF_ORDER, bench.now)
    bench.now = 3.0 + LATE_BYTES - 0.01
    assert bench.drain() == []
    bench.now = 3.0 + LATE_BYTES
    assert bench.drain() == [second]
    assert (second.sequence, second.identity.epoch) == (2, 0)
    assert bench.drain() == []
    bench.accumulator.completion.refused(second, OUT_OF_ORDER, bench.now)
    assert bench.drain() == [second], "at once"
    assert (second.sequence, second.identity.epoch) == (0, 1)
    bench.accumulator.completion.succeeded(second, 2, None)
    assert bench.drain() == [fresh]
    assert (fresh.sequence, fresh.identity.epoch) == (1, 1)
    assert second.error is None


def test_late_bytes_time_restarts_after_a_loss() -> None:
    bench, _, second = behind_a_stray()
    assert bench.drain() == [second]
    bench.accumulator.completion.refused(second, OUT_OF_ORDER, bench.now)
    bench.now = 3.0 + LATE_BYTES
    assert bench.drain() == [second]
    bench.accumulator.completion.refused(second, LOST, bench.now)
    bench.now = 3.6
    assert bench.drain() == [second]
    bench.accumulator.completion.refused(second, OUT_OF_ORDER, bench.now)
    assert second.sequence is not None
    bench.now = 3.6 + LATE_BYTES
    assert bench.drain() == [second]
    bench.accumulator.completion.refused(second, OUT_OF_ORDER, bench.now)
    assert second.sequence is None


def test_new_leader_has_no_late_bytes() -> None:
    """The first refusal by another broker begins the new epoch."""
    bench = Bench(0, delivery_timeout=3.0, linger=0.0)
    bench.prove()
    (first,) = bench.fill(1)
    bench.now = 1.0
    (second,) = bench.fill(1)
    assert [bench.drain(), bench.drain()] == [[first], [second]]
    bench.accumulator.completion.refused(first, LOST, bench.now)
    bench.accumulator.completion.refused(second, LOST, bench.now)
    bench.now = 3.0
    bench.accumulator.completion.expire(bench.now)
    bench.accumulator.update_topic("t", [1])
    assert bench.drain(1) == [second]
    bench.accumulator.completion.refused(second, OUT_OF_ORDER, bench.now)
    bench.now += 0.2
    assert bench.drain(1) == [second]
    assert (second.sequence, second.identity.epoch) == (0, 1)


def test_last_expired_batch_frees_the_next() -> None:
    """No broker can have a copy of either batch, so the next one begins a new epoch."""
    bench, _, second = behind_a_stray()
    bench.now = 4.0
    (fresh,) = bench.fill(1)
    bench.accumulator.completion.expire(bench.now)
    assert isinstance(second.error, DeliveryTimeoutError)
    assert bench.accumulator.batches() == [fresh]
    assert bench.drain() == [fresh]
    assert (fresh.sequence, fresh.identity.epoch) == (0, 1)


def test_batch_behind_a_slow_one_is_sent_at_once() -> None:
    """The slow batch has used half of its time, and nothing is wrong."""
    bench = Bench(0, delivery_timeout=3.0, linger=0.0)
    bench.prove()
    (first,) = bench.fill(1)
    assert bench.drain() == [first]
    bench.now = 2.9
    (fresh,) = bench.fill(1)
    assert bench.drain() == [fresh]


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("made_at", [2.5, 3.5])
async def test_fresh_record_has_its_whole_time(
    made_at: float, carried_out: bool, autojump_clock: Clock
) -> None:
    """The batch before it expires at 3 s in its second attempt, whose connection is lost at 4 s.

    Then the fresh record is sent and delivered. Sent at once, it would be refused as out of order
    at 4 s and fail long before its own limit.
    """
    quick: Any = {
        "retry_backoff_ms": 20,
        "retry_backoff_max_ms": 20,
        "reconnect_backoff_max_ms": 20,
    }
    async with ready(request_timeout_ms=2_000, delivery_timeout_ms=3_000, **quick) as (
        cluster,
        producer,
    ):
        began = trio.current_time()
        cluster.silence("Produce", times=1)
        rule = cluster.silence("Produce", after=carried_out, times=1)
        with trio.fail_after(60):
            first = await producer.enqueue("t", b"first of all", partition=0)
            await trio.sleep(made_at)
            fresh = await producer.enqueue("t", b"fresh", partition=0)
            with pytest.raises(DeliveryTimeoutError) as caught:
                await first.wait()
            assert max(3.0, made_at) == pytest.approx(trio.current_time() - began, abs=1e-6)
            assert caught.value.maybe_written
            await fresh.wait()
        assert rule.spent
        # Sent behind it, the fresh one is refused if the first one is missing, once more when late
        # bytes have had their time, and goes on in a new epoch.
        late = LATE_BYTES + 0.02 if made_at < 3 and not carried_out else 0
        assert trio.current_time() - began == pytest.approx(4.05 + late, abs=0.05)
        assert values(cluster) == ([b"first of all"] if carried_out else []) + [b"fresh"]


async def test_slow_response_keeps_the_epoch(autojump_clock: Clock) -> None:
    """The response arrives after all. Waiting records are sent at that moment in the same epoch."""
    async with ready(request_timeout_ms=5_000, delivery_timeout_ms=5_000) as (cluster, producer):
        await trio.sleep(20)
        cluster.delay("Produce", 4.9, times=1, after=True)
        slow = await producer.enqueue("t", b"1", partition=0)
        began = trio.current_time()
        await trio.sleep(4.5)
        fresh = await producer.enqueue("t", b"2", partition=0)
        await slow.wait()
        await fresh.wait()
        assert trio.current_time() - began == pytest.approx(4.9)
        assert values(cluster) == [b"1", b"2"]
        assert {batch.info.producer_epoch for batch in cluster.partition("t", 0).batches} == {0}
