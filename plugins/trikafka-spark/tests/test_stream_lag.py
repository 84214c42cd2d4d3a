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


def test_query_without_batches_has_no_lag() -> None:
    assert stream_lag(Unborn()) == {}  # type: ignore[arg-type]
