"""The lag of a stream, by its progress."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trikafka_spark import stream_lag

from trikafka import TopicPartition

LATEST = {"t": {"0": 90, "1": 30, "2": 4}}
END = {"t": {"0": 80, "1": 30}, "t=an-id": {}}
LAG = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 0, TopicPartition("t", 2): 4}


class Progress:
    json = json.dumps({"sources": [{"latestOffset": LATEST, "endOffset": END}]})


class Query:
    lastProgress: Any = Progress()


class Unborn:
    lastProgress = None


TEXTS = {"sources": [{"latestOffset": json.dumps(LATEST), "endOffset": json.dumps(END)}]}


@pytest.mark.parametrize(
    "given", [Query(), Progress(), Progress.json, json.loads(Progress.json), TEXTS]
)
def test_lag_is_what_the_last_batch_left(given: Any) -> None:
    assert stream_lag(given) == LAG


@pytest.mark.parametrize(
    "sources",
    [
        [],
        None,
        [{"latestOffset": None, "endOffset": END}],
        [{"latestOffset": 7, "endOffset": 5}],
        [{"endOffset": "x"}],
    ],
)
def test_other_sources_have_no_lag(sources: Any) -> None:
    assert stream_lag({"sources": sources}) == {}


@pytest.mark.parametrize("ends", [(90, 60), (60, 90)])
def test_lag_of_a_topic_read_twice_is_the_largest(ends: tuple[int, int]) -> None:
    """The sources of a union or a self join have batches of their own."""
    sources = [{"latestOffset": {"t": {"0": 90}}, "endOffset": {"t": {"0": end}}} for end in ends]
    assert stream_lag({"sources": sources}) == {TopicPartition("t", 0): 30}


def test_query_without_batches_has_no_lag() -> None:
    assert stream_lag(Unborn()) == {}  # type: ignore[arg-type]
