"""A task's error on its way to the driver: text that a broker may have written, never executed."""

from __future__ import annotations

import base64
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trikafka_export.formats.errors import SchemaRegistryTimeoutError
from trikafka_export.pieces import Shape
from trikafka_export.reading import NothingYet
from trikafka_export.task import WriteTask
from trikafka_spark import range_units
from trikafka_spark.range_units import Unit, error_from_text, error_of, run_task, run_unit

import trikafka
from trikafka import errors
from trikafka.interfaces import PlannedRange

SECRET = "5ec7e7"
WHERE = "t-0 [0, 5)"
TASK = WriteTask(
    "/nonexistent", 1, PlannedRange("t", 0, 0, 5, "t.parquet"), None, {}, True, {}, Shape()
)


def text_of_task(error: Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the text that Spark would show for a task that failed with ``error``."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(range_units, "write_range", fail)
    with pytest.raises(RuntimeError) as caught:
        run_task(TASK, SECRET, lambda rows: None)
    return (
        f"org.apache.spark.SparkException: Job aborted\n  RuntimeError: {caught.value}\n\n\tat "
        "java.Thread"
    )


@pytest.mark.parametrize(
    "error",
    [
        errors.CorruptRecordError("bad CRC", "t", 3, 77),
        errors.KafkaTimeoutError(
            "reading", 120.0, 4, errors.KafkaConnectionError("cannot connect")
        ),
        errors.from_code(6, "t-0"),
        errors.from_code(10),
        errors.OffsetOutOfRangeError("gone"),
        errors.ConfigurationError("wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_trikafkas_error_arrives_unchanged(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = error_of(text_of_task(error, monkeypatch), SECRET)
    assert known is not None
    where, found = known
    assert (where, type(found), str(found)) == (WHERE, type(error), str(error))
    assert {name: repr(value) for name, value in vars(found).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }


def test_registry_error_keeps_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SchemaRegistryTimeoutError("asking", 0.3, 2, OSError("refused"), "http://registry", 9)
    monkeypatch.setattr(range_units, "write_range", lambda *_: error)
    (text,) = run_unit(Unit("registry", [(TASK, None)]), SECRET, lambda rows: None)
    assert text is not None
    found = error_from_text(text)
    assert (type(found), str(found)) == (SchemaRegistryTimeoutError, str(error))


def test_kafka_error_is_the_result_of_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of Kafka's is the result of its range, and arrives unchanged."""
    error = errors.KafkaTimeoutError("reading", 120.0, 4)
    monkeypatch.setattr(range_units, "write_range", lambda *_: error)
    (text,) = run_unit(Unit("round", [(TASK, None)]), SECRET, lambda rows: None)
    assert text is not None
    found = error_from_text(text)
    assert (type(found), str(found), found.retriable) == (
        errors.KafkaTimeoutError,
        str(error),
        error.retriable,
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ValueError("x"), KeyError("k")], ids=repr
)
def test_other_error_arrives_as_text(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    known = error_of(text_of_task(error, monkeypatch), SECRET)
    assert known is not None
    assert (known[0], type(known[1]), str(known[1])) == (
        WHERE,
        RuntimeError,
        f"{type(error).__name__}: {error}",
    )


class Evil:
    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


def test_text_of_a_broker_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of a broker that looks like a mark is neither executed nor taken for one."""
    made = tmp_path / "made"
    forged = base64.b64encode(json.dumps({"where": "elsewhere", "error": {}}).encode()).decode()
    pickled = base64.b64encode(pickle.dumps(Evil(made))).decode()
    host = (
        f"trikafka-task-error:{pickled} trikafka-task-error::{forged} "
        f"trikafka-task-error:0:{forged}"
    )
    error = trikafka.KafkaConnectionError(f"cannot connect to {host}")
    known = error_of(text_of_task(error, monkeypatch), SECRET)
    assert known is not None
    assert (known[0], type(known[1]), str(known[1])) == (
        WHERE,
        trikafka.KafkaConnectionError,
        str(error),
    )
    assert not made.exists()


@pytest.mark.parametrize(
    "name", ["trio", "_remake", "from_code", "Any", "NamedTuple", "__builtins__", "nothing"]
)
def test_only_trikafkas_errors_are_constructed(name: str) -> None:
    body = json.dumps({"where": "w", "error": {"class": name, "text": "x", "attributes": {}}})
    known = error_of(
        f"trikafka-task-error:{SECRET}:{base64.b64encode(body.encode()).decode()}", SECRET
    )
    assert known is not None
    assert (type(known[1]), str(known[1])) == (RuntimeError, f"{name}: x")


JSON = st.recursive(
    st.none() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
)


@given(st.binary() | JSON)
def test_damaged_mark_is_ignored(body: Any) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert (
        error_of(f"trikafka-task-error:{SECRET}:{base64.b64encode(data).decode()} text", SECRET)
        is None
    )


def test_time_out_counts_for_the_whole_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A time-out of a partition counts for its other ranges in the same worker.

    It counts in the next unit of the round as well, and no longer.
    """
    tried: list[str] = []
    found: dict[int, Exception] = {
        1: errors.KafkaTimeoutError("reading", 120.0),
        2: NothingYet("x"),
    }

    def write(task: WriteTask, *_: Any) -> Exception | None:
        tried.append(task.planned.name)
        return found.get(task.planned.partition)

    def unit(round: str, *ranges: tuple[int, int]) -> Unit:
        planned = [
            PlannedRange("t", part, number, number + 1, f"{part}-{number}")
            for part, number in ranges
        ]
        return Unit(
            round,
            [
                (WriteTask("/nonexistent", 1, each, None, {}, True, {}, Shape()), 5.0)
                for each in planned
            ],
        )

    monkeypatch.setattr(range_units, "write_range", write)
    done: list[int] = []
    first = run_unit(
        unit("a", (0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (0, 1)),
        SECRET,
        lambda rows: None,
        done.append,
    )
    second = run_unit(unit("a", (1, 2), (2, 2), (3, 0)), SECRET, lambda rows: None, done.append)
    assert tried == ["0-0", "1-0", "2-0", "0-1", "3-0"]
    assert [type(error_from_text(text)) if text else None for text in (*first, *second)] == [
        None,
        errors.KafkaTimeoutError,
        errors.KafkaTimeoutError,
        NothingYet,
        NothingYet,
        None,
        errors.KafkaTimeoutError,
        NothingYet,
        None,
    ]
    assert sum(done) == 6, "what is set aside is not done"
    run_unit(unit("b", (1, 3), (2, 3)), SECRET, lambda rows: None)
    assert tried[-2:] == ["1-3", "2-3"]
