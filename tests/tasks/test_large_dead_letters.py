"""Records too large for the dead-letter topic: truncated, skipped, or the end of the run."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
import trio
from tasking import cluster_of, committed, consumer_of, producer_of, running, until
from test_task_transactions import seen_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ConfigurationError, DeadLetter, Record, RecordTooLargeError
from trikafka.tasks.dead_letters import Letter
from trikafka.testing import ScriptedCluster

#: The largest batch that the dead-letter topic takes here (bytes).
ROOM = 2_000


async def handler(record: Record) -> None:
    raise ValueError("no")


def refuse(cluster: ScriptedCluster, room: int = ROOM) -> None:
    """Have the brokers refuse what is larger than ``room`` in the topic ``dead``."""

    def too_large(request: Any) -> bool:
        return any(
            topic.name == "dead"
            and sum(len(partition.records or b"") for partition in topic.partition_data) > room
            for topic in request.topic_data
        )

    cluster.fail(
        "Produce", trikafka.ErrorCode.MESSAGE_TOO_LARGE, None, topic="dead", where=too_large
    )


@pytest.mark.parametrize("where", ["client", "broker"])
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("batches", [False, True])
async def test_large_value_is_truncated(
    autojump_clock: Clock,
    transactional: bool,
    batches: bool,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The default. Its small neighbours are whole, and each is written once."""
    given: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    if where == "client":
        given["max_request_size"] = ROOM
    values = [b"a", b"x" * ROOM, b"b"]
    async with cluster_of(topics={"dead": 2}) as cluster, consumer_of(cluster) as consumer:
        cluster.append("t", 0, values)
        if where == "broker":
            refuse(cluster)
        async with producer_of(cluster, **given) as producer:
            async with running(
                consumer, handler, producer=producer, dead_letter="dead", batches=batches
            ):
                await until(lambda: committed(cluster) == 3, limit=60)
        letters = {
            dict(each.headers)["trikafka.offset"]: each for each in await seen_of(cluster, "dead")
        }
        assert len(await seen_of(cluster, "dead")) == 3
    assert [letters[b"0"].value, letters[b"2"].value] == [b"a", b"b"]
    cut = letters[b"1"]
    assert dict(cut.headers)["trikafka.truncated"] == b"%d" % ROOM
    assert cut.value is not None
    assert ROOM / 4 < len(cut.value) < ROOM
    assert values[1].startswith(cut.value)
    assert not any("trikafka.truncated" in dict(letters[each].headers) for each in (b"0", b"2"))
    assert "offset 1 of t-0 is too large for dead, and goes there with" in caplog.text


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("how", ["skip", "truncate"])
async def test_record_that_never_fits_is_skipped(
    autojump_clock: Clock,
    transactional: bool,
    how: Literal["skip", "truncate"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The topic's limit is so small that nothing fits. The log has the coordinates."""
    given: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    async with (
        cluster_of(1, records=2, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        refuse(cluster, 10)
        async with producer_of(cluster, **given) as producer:
            async with running(
                consumer, handler, producer=producer, dead_letter=DeadLetter("dead", how)
            ):
                await until(lambda: committed(cluster) == 2, limit=600)
        assert cluster.records("dead", 0) == []
    lines = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition(":")[0] for line in lines] == [
        f"offset {offset} of t-0 is too large for dead, and is skipped" for offset in (0, 1)
    ]


@pytest.mark.parametrize("transactional", [False, True])
async def test_large_dead_letter_may_end_the_run(
    autojump_clock: Clock, transactional: bool
) -> None:
    given: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    async with (
        cluster_of(1, records=2, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
    ):
        refuse(cluster, 10)
        async with producer_of(cluster, **given) as producer:
            with pytest.raises(RecordTooLargeError) as raised, trio.fail_after(60):
                await trikafka.run_tasks(
                    consumer, handler, producer=producer, dead_letter=DeadLetter("dead", "raise")
                )
        assert not committed(cluster)
    assert "offset 0 of t-0" in raised.value.__notes__[0]


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("how", ["truncate", "skip", "raise"])
async def test_traceback_goes_before_the_record_is_cut(
    autojump_clock: Clock, transactional: bool, how: Literal["truncate", "skip", "raise"]
) -> None:
    """The traceback and the record are larger than the topic's room together."""
    given: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    names: dict[str, Any] = {}
    exec(compile("async def deep(record):\n    int('no')", "d" * 1_600, "exec"), names)
    async with cluster_of(1, topics={"dead": 2}) as cluster, consumer_of(cluster) as consumer:
        cluster.append("t", 0, [(b"key", b"v" * 500, 1234, (("own", b"1"),))])
        refuse(cluster)
        async with producer_of(cluster, **given) as producer:
            async with running(
                consumer, names["deep"], producer=producer, dead_letter=DeadLetter("dead", how)
            ):
                await until(lambda: committed(cluster) == 1, limit=60)
        (dead,) = await seen_of(cluster, "dead")
    assert (dead.key, dead.value) == (b"key", b"v" * 500)
    headers = dict(dead.headers)
    assert (headers["own"], headers["trikafka.error"]) == (b"1", b"ValueError")
    assert not {"trikafka.traceback", "trikafka.truncated"} & headers.keys()


async def test_all_letters_lose_the_traceback_in_one_round(autojump_clock: Clock) -> None:
    """Each round of a transaction is a second or so."""
    names: dict[str, Any] = {}
    exec(compile("async def deep(batch):\n    int('no')", "d" * 1_600, "exec"), names)
    async with cluster_of(1, topics={"dead": 2}) as cluster, consumer_of(cluster) as consumer:
        cluster.append("t", 0, [b"v" * 500] * 20)
        refuse(cluster)
        settings: dict[str, Any] = {"transactional_id": "x", "linger_ms": 0, "batch_size": 100}
        async with producer_of(cluster, **settings) as producer:
            given: dict[str, Any] = {"producer": producer, "dead_letter": "dead", "batches": True}
            async with running(consumer, names["deep"], **given):
                await until(lambda: committed(cluster) == 20, limit=60)
        assert len(await seen_of(cluster, "dead")) == 20
        assert len(cluster.requests("EndTxn")) == 2


def test_letter_shortens_until_it_is_bare() -> None:
    record = Record(
        "t", 0, 7, None, trikafka.TimestampType.CREATE_TIME, b"key", b"v" * 10_000, [("own", b"1")]
    )
    letter = Letter(record, [("trikafka.topic", b"t")])
    sizes = [len(letter.value or b"")]
    while letter.shorten():
        sizes.append(len(letter.value or b""))
    assert sizes[:3] == [10_000, 10_000 - 15 - 256, (10_000 - 15 - 256) // 2]
    assert sizes[-2:] == [0, 0]
    assert letter.key is None
    assert letter.headers == [("trikafka.topic", b"t"), ("trikafka.truncated", b"10000")]
    tombstone = Letter(record._replace(value=None), [])
    assert tombstone.shorten()
    assert tombstone.value is None


@pytest.mark.parametrize(("topic", "how"), [("", "skip"), (3, "skip"), ("dead", "keep")])
def test_wrong_dead_letter_options_are_refused(topic: Any, how: Any) -> None:
    with pytest.raises(ConfigurationError):
        DeadLetter(topic, how)
