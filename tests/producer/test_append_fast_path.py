"""The fast path of a common record into a batch: the same result as the careful path, and light
objects.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from accumulating import Bench, records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trikafka import ConfigurationError

pytestmark = pytest.mark.usefixtures("record_path")

LONG_AGO = 10**12
fields = st.tuples(
    st.none() | st.binary(max_size=150),
    st.none() | st.binary(max_size=3),
    st.none() | st.integers(0, 3),
    st.booleans(),
    st.none() | st.integers(0, LONG_AGO),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.lists(fields, max_size=40), st.sampled_from([700, 10_000]))
def test_fast_path_equals_the_careful_path(rows: list[Any], memory: int) -> None:
    found = []
    for quick in (True, False):
        bench = Bench(0, 0, 0, buffer_memory=memory, batch_size=10_000)
        way = bench.accumulator.appender.append if quick else bench.accumulator.append
        taken = []
        for value, key, partition, headers, timestamp in rows:
            made = way("t", value, key, [("h", b"1")] if headers else (), timestamp, partition)
            taken.append(None if made is None else (made.parts()[0].partition, made.parts()[1]))
            assert bench.accumulator.used == sum(
                batch.size for batch in bench.accumulator.unsettled()
            )
        bench.accumulator.close_open()
        contents = {
            batch.partition: [
                (r.key, r.value, r.headers, min(r.timestamp, LONG_AGO + 1)) for r in records(batch)
            ]
            for batch in bench.accumulator.unsettled()
        }
        found.append((taken, contents))
    (ours, contents), (theirs, other_contents) = found
    if memory == 10_000:
        assert (ours, contents) == (theirs, other_contents)
    else:  # a clock that ticks may cost a record a byte, and so the last one its place
        assert [each for each in ours if each is not None][:3] == [
            each for each in theirs if each is not None
        ][:3]


def test_timestamps_are_the_clock_time() -> None:
    bench = Bench(0)
    before = time.time_ns() // 1_000_000
    stamps = [bench.put(partition=0)[2] for _ in range(3)]
    assert before <= stamps[0] <= stamps[1] <= stamps[2] <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("timestamp", [-1, 2**62 + 1, 2**70, True, 1.5, "now"])
def test_wrong_timestamp_is_refused(timestamp: Any) -> None:
    bench = Bench(0)
    with pytest.raises(ConfigurationError, match="timestamp"):
        bench.accumulator.appender.append("t", b"v", None, (), timestamp, 0)
    assert bench.accumulator.used == 0


def test_native_acks_are_not_tracked_by_gc(record_path: str) -> None:
    acks = [Bench(0).accumulator.appender.append("t", b"v", None, (), None, 0) for _ in range(3)]
    gc.collect()
    assert record_path == "pure" or not any(gc.is_tracked(ack) for ack in acks)
