"""The plan of ``trikafka reassign move``: which brokers get the replicas. No broker."""

from __future__ import annotations

from collections import Counter

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka.cli.log_dirs import readable
from trikafka.cli.reassign import planned
from trikafka.types import TopicPartition

T = [TopicPartition("t", number) for number in range(6)]
NO_RACKS: dict[int, str | None] = {}


def test_replicas_that_may_stay_do() -> None:
    now = {T[0]: (1, 2), T[1]: (2, 9), T[2]: (9, 8)}
    assert planned(now, [1, 2, 3], None, NO_RACKS) == {T[0]: (1, 2), T[1]: (2, 3), T[2]: (3, 1)}


def test_other_number_of_replicas() -> None:
    now = {T[0]: (1, 2, 3), T[1]: (2, 3, 1)}
    assert planned(now, [1, 2, 3], 1, NO_RACKS) == {T[0]: (1,), T[1]: (2,)}
    assert planned({T[0]: (1,)}, [1, 2, 3], 2, NO_RACKS) == {T[0]: (1, 2)}
    with pytest.raises(click.ClickException, match=r"t-0 shall have 4 replicas.*3 brokers"):
        planned(now, [1, 2, 3], 4, NO_RACKS)


def test_replicas_go_to_other_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    found = planned({T[0]: (1,), T[1]: (3,)}, [1, 2, 3, 4], 2, racks)
    assert found == {T[0]: (1, 4), T[1]: (3, 2)}


@given(
    st.dictionaries(
        st.sampled_from(T),
        st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    st.lists(st.integers(0, 5), min_size=3, max_size=6, unique=True),
)
def test_plan_moves_only_what_has_to(
    now: dict[TopicPartition, tuple[int, ...]], brokers: list[int]
) -> None:
    found = planned(now, brokers, None, NO_RACKS)
    for tp, replicas in found.items():
        assert len(set(replicas)) == len(replicas) == len(now[tp])
        assert set(replicas) <= set(brokers)
        assert set(now[tp]) & set(brokers) <= set(replicas)


def test_new_replicas_are_spread_evenly() -> None:
    now = dict.fromkeys(T, (9,))
    found = planned(now, [1, 2, 3], 2, NO_RACKS)
    assert Counter(each for own in found.values() for each in own) == {1: 4, 2: 4, 3: 4}
    assert Counter(own[0] for own in found.values()) == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, None),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 40, "5.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_readable(size: int | None, text: str | None) -> None:
    assert readable(size) == text
