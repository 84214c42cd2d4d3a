"""Units of ranges as Spark's workers run them, and how their errors reach the driver.

Spark carries errors as text only, and nothing in such a text is ever run.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trikafka_export.formats import errors as format_errors
from trikafka_export.reader import Reader, kept_reader
from trikafka_export.reading import NothingYet
from trikafka_export.rounds import UnresponsivePartitions
from trikafka_export.task import Stopper, WriteTask, write_range

from trikafka import TrikafkaError, errors

from .python_worker import settle

#: How much of an error reaches the driver: characters of its message, and levels of errors in its
#: attributes.
_TEXT_LIMIT, _DEPTH_LIMIT = 10_000, 3


@dataclass(frozen=True, slots=True)
class Unit:
    """The ranges that one Spark task writes, in sequence and by one client. Pickled by Spark.

    ``round`` names the round of the job. A partition that does not respond is skipped for the rest
    of the round by each worker that has met it.
    """

    round: str
    tasks: Sequence[tuple[WriteTask, float | None]]


def run_unit(
    unit: Unit,
    secret: str,
    count_rows: Callable[[int], None],
    done: Callable[[int], None] = lambda ranges: None,
) -> list[str | None]:
    """Run :func:`run_task` for each range of the unit; call ``done(1)`` when a range ends.

    Returns:
        For each range ``None`` or its error as text (:func:`error_from_text`).
    """
    unresponsive = _unresponsive(unit.round)
    texts = []
    with kept_reader(unit.tasks[0][0].settings) as reader:
        for task, patience in unit.tasks:
            tp = task.planned.tp
            if (error := unresponsive.errors.get(tp)) is None:
                error = run_task(task, secret, count_rows, reader, patience)
                unresponsive.record(tp, error)
            texts.append(None if error is None else json.dumps(_to_json(error)))
            done(not isinstance(error, NothingYet))
    settle()
    return texts


@functools.lru_cache(1)
def _unresponsive(round: str) -> UnresponsivePartitions:
    """Return what this worker knows of the unresponsive partitions of a round.

    The units of a worker come in sequence, so the cache holds one round.
    """
    return UnresponsivePartitions()


def run_task(
    task: WriteTask,
    secret: str,
    count_rows: Callable[[int], None],
    reader: Reader | None = None,
    patience: float | None = None,
) -> Exception | None:
    """Call :func:`write_range` in a worker of Spark.

    ``secret`` is a random word of the job, which no broker can know. The text of an error may
    repeat what a broker said, so a mark without the secret is not trusted.

    Raises:
        RuntimeError: The range failed for another reason than Kafka's. :func:`error_of` reads it in
            the driver by the same ``secret``.
    """
    try:
        return write_range(task, Stopper(), count_rows, reader, patience)
    except Exception as failed:
        mark = marked(str(task.planned), failed, secret)
        raise RuntimeError(f"{task.planned}: {type(failed).__name__}: {failed} {mark}") from failed


def error_from_text(text: str) -> Exception:
    """Return the error that :func:`run_unit` turned into text."""
    body = json.loads(text)
    return NothingYet(body["text"]) if body["class"] == "NothingYet" else _from_json(body)


def marked(where: str, error: Exception, secret: str) -> str:
    """Return the mark that :func:`error_of` finds in the text of Spark's exception."""
    body = json.dumps({"where": where, "error": _to_json(error)})
    return f"trikafka-task-error:{secret}:{base64.b64encode(body.encode()).decode()}"


def error_of(text: str, secret: str) -> tuple[str, Exception] | None:
    """Find the error that :func:`run_task` raised in the text of Spark's exception.

    Returns:
        The range's name, and the error; ``None`` if the text has no mark of this job. An error of
        trikafka has its class and its plain attributes again. Another error is a RuntimeError that
        names the original class.
    """
    match = re.search(rf"trikafka-task-error:{re.escape(secret)}:([A-Za-z0-9+/=]+)", text)
    if match is None:
        return None
    try:
        body = json.loads(base64.b64decode(match[1], validate=True))
        return str(body["where"]), _from_json(body["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _to_json(error: BaseException, depth: int = 0) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, value in vars(error).items():
        if isinstance(value, str | int | float | None):
            known[name] = value
        elif isinstance(value, BaseException) and depth < _DEPTH_LIMIT:
            known[name] = _to_json(value, depth + 1)
        else:
            known[name] = None
    return {"class": type(error).__name__, "text": str(error)[:_TEXT_LIMIT], "attributes": known}


def _from_json(body: Mapping[str, Any]) -> Exception:
    name = str(body["class"])
    text = str(body["text"])
    cls = vars(errors).get(name) or vars(format_errors).get(name)
    if not (isinstance(cls, type) and issubclass(cls, TrikafkaError)):
        return RuntimeError(f"{name}: {text}")
    error: TrikafkaError = cls.__new__(cls, text)
    error.args = (text,)
    for attribute, value in body["attributes"].items():
        if not attribute.startswith("_"):
            vars(error)[attribute] = _from_json(value) if isinstance(value, dict) else value
    if isinstance(error.code, int):
        error.code = errors.from_code(error.code).code  # a member of the enum again
    return error
