"""The size of a micro-batch, its waits, and the format of offsets. Pure."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trikafka_spark.batch_limits import share
from trikafka_spark.checkpoint_offsets import from_json, ids_of, to_json
from trikafka_spark.read_options import Rates

from trikafka import TopicPartition, TrikafkaError

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 10)


def test_batch_is_shared_by_lag() -> None:
    assert share(100, {A: 0, B: 50}, {A: 900, B: 150}) == {A: 90, B: 60}


def test_small_partition_gets_a_share() -> None:
    assert share(10, {A: 0, B: 0}, {A: 1_000_000, B: 3}) == {A: 9, B: 1}


def test_short_partitions_are_read_to_their_end() -> None:
    """A short partition is read to its end; one whose end moved back is taken as it is."""
    assert share(100, {A: 5, B: 9}, {A: 20, B: 9}) == {A: 20, B: 9}
    assert share(2, {A: 5, B: 9}, {A: 20, B: 3}) == {A: 7, B: 3}


LAGS = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=1, max_size=8)


@given(LAGS, st.integers(1, 10**7))
def test_share_stays_in_range_and_advances(lags: list[tuple[int, int]], most: int) -> None:
    starts = {TopicPartition("t", number): start for number, (start, _) in enumerate(lags)}
    ends = {tp: start + lag for (tp, start), (_, lag) in zip(starts.items(), lags, strict=True)}
    found = share(most, starts, ends)
    assert found.keys() == ends.keys()
    assert all(starts[tp] <= found[tp] <= ends[tp] for tp in ends)
    assert all(found[tp] > starts[tp] for tp in ends if ends[tp] > starts[tp])
    assert sum(found[tp] - starts[tp] for tp in ends) <= max(most, 0) + len(ends)


def test_batch_waits_for_a_minimum_or_a_delay() -> None:
    rates = Rates(least=10, delay=60.0)
    assert not rates.wait(1, math.inf), "the first one does not wait"
    assert rates.wait(9, 1.0)
    assert not rates.wait(10, 2.0)
    assert rates.wait(0, 59.9)
    assert not rates.wait(0, 60.0)
    assert not Rates().wait(0, 0.0)


def test_offsets_have_the_connectors_format() -> None:
    written = to_json({C: 3, B: 2, A: 1})
    assert json.dumps(written) == '{"a": {"0": 1, "1": 2}, "b": {"10": 3}}'
    assert from_json(json.loads('{"b":{"10":3},"a":{"1":2,"0":1}}')) == {A: 1, B: 2, C: 3}
    assert to_json({}) == {}


def test_topic_ids_are_ignored_as_offsets() -> None:
    written = to_json({C: 3, A: 1}, {"a": "id-of-a", "b": None, "c": "id-of-c"})
    assert json.dumps(written) == '{"a": {"0": 1}, "b": {"10": 3}, "a=id-of-a": {}}'
    assert from_json(written) == {A: 1, C: 3}
    assert ids_of(written) == {"a": "id-of-a"}
    assert ids_of(to_json({C: 3, A: 1})) == {}


WRONG = [
    {"offset": 3},
    {"t": [1]},
    {"t": {"x": 1}},
    {"t": {"0": "1"}},
    {"t": {"0": -1}},
    {"t": {"0": True}},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_foreign_checkpoint_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(
        TrikafkaError, match=r"the checkpoint's offsets are .*another kind of source"
    ):
        from_json(wrong)
