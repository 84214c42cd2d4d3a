"""The tracebacks of dead letters: in a header, and in the log."""

from __future__ import annotations

import pytest
from tasking import Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

from trikafka import Record, dead_letter_headers

RECORD = Record("t", 0, 7, None, None, None, b"v", ())


def header(error: Exception) -> list[str]:
    added = dict(dead_letter_headers(RECORD, error, attempts=1))
    return added.get("trikafka.traceback", b"").decode().splitlines()


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
