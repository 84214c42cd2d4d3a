"""Rows that name their topics: a task sends to all of them at once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import trio
from trikafka_spark.writing import _send

from trikafka import TrikafkaError

TABLE = pa.table({"value": ["x"]})


class Tables:
    async def next(self) -> None:
        return None


async def test_topics_do_not_wait_for_each_other(autojump_clock: object) -> None:
    """One round trip for each topic, in turn, made a task with many topics slow."""
    sent: list[str] = []

    class Producer:
        async def send_arrow(self, topic: str, table: Any, **columns: str) -> None:
            await trio.sleep(1)
            sent.append(topic)

    began = trio.current_time()
    topics = [f"t{number}" for number in range(50)]
    await _send(Producer(), Tables(), [(topic, TABLE) for topic in topics])  # type: ignore[arg-type]
    assert sorted(sent) == sorted(topics)
    assert trio.current_time() - began == pytest.approx(1)


async def test_failed_topic_is_the_last_one(autojump_clock: object) -> None:
    """Of a thousand topics that time out, only those that were begun together cost time."""
    begun: list[str] = []

    class Producer:
        async def send_arrow(self, topic: str, table: Any, **columns: str) -> None:
            begun.append(topic)
            await trio.sleep(60)
            raise ValueError(f"no {topic}")

    began = trio.current_time()
    topics = [(f"t{number}", TABLE) for number in range(1000)]
    with pytest.raises(ValueError, match=r"^no t"):
        await _send(Producer(), Tables(), topics)  # type: ignore[arg-type]
    assert trio.current_time() - began == pytest.approx(60)
    assert len(begun) < 100


async def test_error_of_a_topic_keeps_the_others(autojump_clock: object) -> None:
    """The task fails with one error, which has the others as notes, and never with a group."""

    class Producer:
        async def send_arrow(self, topic: str, table: Any, **columns: str) -> None:
            await trio.sleep(1)
            if topic != "good":
                raise TrikafkaError(f"no {topic}")

    with pytest.raises(TrikafkaError, match=r"^no [ab]\n") as raised:
        await _send(Producer(), Tables(), [("a", TABLE), ("good", TABLE), ("b", TABLE)])  # type: ignore[arg-type]
    other = "b" if str(raised.value) == "no a" else "a"
    assert raised.value.__notes__ == [f"also failed: TrikafkaError: no {other}"]
