"""What stands in the headers of a dead letter: where the record comes from, and why it could not be handled."""

from __future__ import annotations

from ..errors import DeserializationError
from ..types import Record

#: The most that a header tells of an error, in characters.
_MOST_TEXT = 1_000


def dead_letter_headers(
    record: Record, error: Exception, *, attempts: int, group_id: str | None = None
) -> list[tuple[str, bytes]]:
    """The headers that :func:`run_tasks` and exports add to a record's own in a dead-letter topic; docs/tasks.md lists them.

    ``group_id`` is left out where there is no group.
    """
    return [*_coordinates(record), *_about(error, attempts, group_id)]


def _coordinates(record: Record) -> list[tuple[str, bytes]]:
    found = [
        ("trikafka.topic", record.topic.encode()),
        ("trikafka.partition", b"%d" % record.partition),
        ("trikafka.offset", b"%d" % record.offset),
    ]
    return found if record.timestamp is None else [*found, ("trikafka.timestamp", b"%d" % record.timestamp)]


def _about(error: Exception, attempts: int, group_id: str | None) -> list[tuple[str, bytes]]:
    cause = error.__cause__ if isinstance(error, DeserializationError) else None
    text = f"{error}: {cause!r}" if cause is not None else str(error)
    kind = type(error)
    return [
        *([] if group_id is None else [("trikafka.group", group_id.encode())]),
        ("trikafka.error", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.").encode()),
        ("trikafka.message", text[:_MOST_TEXT].encode(errors="replace")),
        ("trikafka.attempts", b"%d" % attempts),
    ]
