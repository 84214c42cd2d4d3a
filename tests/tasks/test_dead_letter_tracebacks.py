"""The tracebacks of dead letters: in a header, and in the log."""

from __future__ import annotations

import pytest
from tasking import Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

from trikafka import Record, RecordBatch, dead_letter_headers
from trikafka.tasks import dead_letters, tracebacks

RECORD = Record("t", 0, 7, None, None, None, b"v", ())


def header(error: Exception) -> list[str]:
    added = dict(dead_letter_headers(RECORD, error, attempts=1))
    return added.get("trikafka.traceback", b"").decode().splitlines()


def kinds(error: Exception) -> list[str]:
    """Return the classes of the exceptions in the header."""
    return [line.rpartition(".")[2] for line in header(error) if " " not in line]


def raised(depth: int = 0) -> None:
    if depth:
        raised(depth - 1)
    try:
        int("secret")
    except ValueError as error:
        raise LookupError("password") from error


def caught(depth: int = 0) -> Exception:
    try:
        raised(depth)
    except LookupError as error:
        return error
    raise AssertionError


def caught_from(cause: Exception) -> Exception:
    """Return a raised error whose cause was raised, too."""
    try:
        try:
            raise cause
        except Exception as raised:
            raise LookupError from raised
    except LookupError as error:
        return error


def test_a_header_has_the_causes_and_no_texts() -> None:
    lines = header(caught())
    assert [line.rpartition(" ")[2] for line in lines] == [
        "raised",
        "ValueError",
        "caught",
        "raised",
        "LookupError",
    ]
    assert all(line.startswith("File ") for line in lines if " " in line)
    assert not any("secret" in line or "password" in line for line in lines)


def test_a_deep_traceback_has_its_last_frames() -> None:
    lines = header(caught(depth=500))
    assert len(lines) < 30
    assert len("\n".join(lines)) <= 4_000
    assert lines[-1] == "LookupError"


def test_a_group_has_each_members_traceback() -> None:
    lines = header(ExceptionGroup("two", [caught(), caught()]))
    assert lines.count("LookupError") == 2


def test_a_groups_cause_stands_before_its_members() -> None:
    error = ExceptionGroup("group", [caught()])
    error.__cause__ = caught_from(KeyError())
    assert kinds(error) == ["KeyError", "LookupError", "ValueError", "LookupError"]


def test_a_group_that_is_a_cause_has_its_members() -> None:
    error = caught_from(ExceptionGroup("two", [caught(), caught()]))
    assert kinds(error) == [*("ValueError", "LookupError") * 2, "LookupError"]


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


@pytest.mark.parametrize("cause", [Empty("nothing"), NoTruth()])
def test_a_cause_counts_whatever_its_truth(cause: Exception) -> None:
    assert kinds(caught_from(cause)) == [type(cause).__name__, "LookupError"]


def test_a_cut_text_begins_with_a_whole_line() -> None:
    error = ExceptionGroup("many", [caught() for _ in range(50)])
    lines = header(error)
    assert 3_000 < len("\n".join(lines)) <= 4_000
    assert all(line.startswith("File ") for line in lines if " " in line)
    assert {*kinds(error)} == {"ValueError", "LookupError"}


def test_of_a_large_group_the_last_members_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = []
    frames = tracebacks._frames

    def counted(error: BaseException) -> list[str]:
        looked_at.append(error)
        return frames(error)

    monkeypatch.setattr(tracebacks, "_frames", counted)
    assert header(ExceptionGroup("many", [caught() for _ in range(5_000)]))
    assert len(looked_at) < 200


def test_an_error_that_was_not_raised_has_no_header() -> None:
    assert header(ValueError("made here")) == []


async def test_the_log_has_one_traceback_a_kind(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Values(fail=lambda record: KeyError() if record.offset else ValueError("no"))
    async with (
        cluster_of(1, records=9, topics={"dead": 1}) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
        producer_of(cluster) as producer,
    ):
        async with running(consumer, handler, dead_letter="dead", producer=producer):
            await until(lambda: committed(cluster) == 9)
    logged = [record for record in caplog.records if "goes to dead" in record.message]
    assert len(logged) == 9
    assert [each.exc_info[0] for each in logged if each.exc_info] == [ValueError, KeyError]


async def test_the_letters_of_a_batch_share_one_text(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []

    def counted(error: BaseException) -> str:
        texts.append(tracebacks.traceback_text(error))
        return texts[-1]

    monkeypatch.setattr(dead_letters, "traceback_text", counted)

    async def handler(batch: RecordBatch) -> None:
        raise ValueError("no")

    async with (
        cluster_of(1, records=9, topics={"dead": 1}) as cluster,
        consumer_of(cluster, auto_commit_interval_ms=100) as consumer,
        producer_of(cluster) as producer,
    ):
        async with running(consumer, handler, dead_letter="dead", producer=producer, batches=True):
            await until(lambda: committed(cluster) == 9)
        letters = cluster.records("dead", 0)
    (text,) = texts
    found = [dict(letter.headers) for letter in letters]
    assert [headers["trikafka.traceback"] for headers in found] == [text.encode()] * 9
    assert [headers["trikafka.offset"] for headers in found] == [b"%d" % at for at in range(9)]
