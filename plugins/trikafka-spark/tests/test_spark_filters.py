"""Filters as limits of the ranges to read, which never exclude a matching row. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)
from trikafka_spark.filters import Limits, limits_of

from trikafka import OffsetRange

AT = datetime.datetime(2024, 1, 1, 0, 0, 0, 1_500, tzinfo=datetime.UTC)
AT_MS = 1_704_067_200_001


def test_equality_selects_topics_and_partitions() -> None:
    limits = limits_of(
        [
            IsNotNull(("topic",)),
            EqualTo(("topic",), "a"),
            In(("partition",), (1, 2)),
            In(("partition",), (2, 3)),
        ]
    )
    assert (limits.topics, limits.partitions) == (frozenset({"a"}), frozenset({2}))
    assert limits.admits("a", 2)
    assert not limits.admits("a", 1)
    assert not limits.admits("b", 2)


def test_offsets_are_cut_from_both_sides() -> None:
    limits = limits_of(
        [GreaterThan(("offset",), 9), LessThanOrEqual(("offset",), 20), LessThan(("offset",), 100)]
    )
    assert limits.cut(OffsetRange("t", 0, 0, 1_000)) == OffsetRange("t", 0, 10, 21)
    assert limits.cut(OffsetRange("t", 0, 50, 60)) == OffsetRange("t", 0, 50, 50)
    assert limits_of([In(("offset",), (5, 7))]).cut(OffsetRange("t", 0, 0, 1_000)) == OffsetRange(
        "t", 0, 5, 8
    )


def test_times_limit_the_start_only() -> None:
    """The lower bound of the time is rounded down; an upper bound limits nothing."""
    assert limits_of([GreaterThanOrEqual(("timestamp",), AT)]).since == AT_MS
    assert limits_of([GreaterThan(("timestamp",), AT), EqualTo(("timestamp",), AT)]).since == AT_MS
    assert (
        limits_of([LessThan(("timestamp",), AT), LessThanOrEqual(("timestamp",), AT)]) == Limits()
    )


def test_other_filters_limit_nothing() -> None:
    others = [
        Not(EqualTo(("partition",), 1)),
        StringContains(("topic",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("a", "b"), 1),
    ]
    others += [
        GreaterThan(("partition",), 3),
        EqualTo(("offset",), None),
        EqualTo(("offset",), True),
    ]
    others += [GreaterThan(("timestamp",), 5), GreaterThan(("timestamp",), AT.replace(tzinfo=None))]
    assert limits_of(others) == Limits()


TESTS: dict[Any, Any] = {
    EqualTo: lambda one, two: one == two,
    GreaterThan: lambda one, two: one > two,
    GreaterThanOrEqual: lambda one, two: one >= two,
    LessThan: lambda one, two: one < two,
    LessThanOrEqual: lambda one, two: one <= two,
}
ONE = st.tuples(
    st.sampled_from(list(TESTS)), st.sampled_from(["partition", "offset"]), st.integers(-2, 12)
)


@given(st.lists(ONE, max_size=4))
def test_matching_rows_are_never_cut(filters: list[tuple[Any, str, int]]) -> None:
    limits = limits_of([kind((column,), value) for kind, column, value in filters])
    for partition in range(3):
        left = limits.cut(OffsetRange("t", partition, 0, 10))
        for offset in range(10):
            row = {"partition": partition, "offset": offset}
            if all(TESTS[kind](row[column], value) for kind, column, value in filters):
                assert limits.admits("t", partition)
                assert left.start <= offset < left.end
