"""Dead letters: the record, and headers with its coordinates and its error."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

from ..config import check_topic_name
from ..errors import ConfigurationError, DeserializationError
from ..errors.groups import outlined, unwrapped
from ..types import Record, TopicPartition
from .tracebacks import traceback_text

#: The longest text of an error in a header, in characters.
_MOST_TEXT = 1_000
#: Bytes that the first cut of a value leaves free beside the added headers: for lengths, and for
#: the batch around the record.
_SPARE = 256
#: The added header that a record is not cut or skipped for.
_TRACEBACK = "trikafka.traceback"
_TOO_LARGE = ("truncate", "skip", "raise")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The dead-letter topic of :func:`run_tasks`, and the policy for too large records.

    The added headers make a dead letter larger than its record. So a dead-letter topic with the
    same limit always refuses a record of the largest size that its own topic allows. A refused
    record is written again without the header ``trikafka.traceback``. If it is still too large,
    ``too_large`` says what follows:

    * ``"truncate"``: the value is cut until the topic takes the record. The header
      ``trikafka.truncated`` holds the value's original size in bytes. If an empty value is still
      too large, the record's own key and headers are left out, too. A record that is refused even
      then is skipped.
    * ``"skip"``: the record is not written, and counts as processed.
    * ``"raise"``: the run ends with the :exc:`RecordTooLargeError`.

    In each case a log line has the record's coordinates. The default does not end the run: the next
    run would end at the same record. The default also keeps what the coordinates do not: the error,
    and as much of the record as fits.

    Attributes:
        topic: The name of the dead-letter topic.
        too_large: The policy.
    """

    topic: str
    too_large: Literal["truncate", "skip", "raise"] = "truncate"

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise ConfigurationError(f"dead_letter must be the name of a topic, not {self.topic!r}")
        object.__setattr__(self, "topic", check_topic_name(self.topic))
        if not isinstance(self.too_large, str) or self.too_large not in _TOO_LARGE:
            raise ConfigurationError(
                f"too_large must be one of {', '.join(_TOO_LARGE)}, not {self.too_large!r}"
            )

    def check_not_read(self, topics: Container[str]) -> None:
        """Raise :exc:`ConfigurationError` if a worker that reads ``topics`` reads its dead letters.

        Each letter would fail again and become another one: the topic would grow without end, and
        its records by the headers of each turn.
        """
        if self.topic in topics:
            raise ConfigurationError(
                f"the consumer reads the dead-letter topic {self.topic!r} too, so its records "
                "would come back for ever: leave it out of the subscription, or out of what its "
                "pattern matches"
            )


class Letter:
    """A record for the dead-letter topic, whole or cut to what the topic accepts."""

    __slots__ = ("_added", "_bare", "_record", "_room", "open")

    def __init__(self, record: Record, added: Sequence[tuple[str, bytes]]) -> None:
        self._record = record
        self._added = added
        self._room: int | None = None  # bytes of the value; None: all
        self._bare = False  # without the record's own key and headers
        self.open = True  # still to be written

    @property
    def where(self) -> str:
        """The record's coordinates, for the log."""
        return (
            f"offset {self._record.offset} of "
            f"{TopicPartition(self._record.topic, self._record.partition)}"
        )

    @property
    def key(self) -> bytes | None:
        """The record's key, unless there is no room for it."""
        return None if self._bare else self._record.key

    @property
    def value(self) -> bytes | None:
        """The value, cut to the room for it."""
        value = self._record.value
        return value if value is None or self._room is None else value[: self._room]

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The record's own headers and the added ones."""
        own = [] if self._bare else self._record.headers
        cut = [] if self._room is None else [("trikafka.truncated", b"%d" % self.size)]
        return [*own, *self._added, *cut]

    @property
    def size(self) -> int:
        """The size of the record's value, in bytes."""
        return len(self._record.value or b"")

    def close(self) -> None:
        """Mark the letter as written or skipped."""
        self.open = False

    def drop_traceback(self) -> bool:
        """Leave the traceback out. Returns False if there is none."""
        kept = [each for each in self._added if each[0] != _TRACEBACK]
        dropped = len(kept) < len(self._added)
        self._added = kept
        return dropped

    def shorten(self) -> bool:
        """Cut the value to the room beside the added headers, then to half, again and again.

        Returns False when nothing is left to cut.
        """
        # Only the broker knows the topic's limit (max.message.bytes), and its refusal does not say
        # it. So the letter is tried again with less: first without as many bytes as the headers
        # added, which is enough when both topics have the same limit, and then with half of the
        # value each time. A value of a megabyte takes about twenty attempts at most, and keeps at
        # least half of what would have fitted.
        if self._bare:
            return False
        if self._room is None:
            added = sum(len(name) + len(value) for name, value in self._added)
            self._room = max(0, self.size - added - _SPARE)
        elif self._room:
            self._room //= 2
        else:
            self._bare = True
        return True


def dead_letter_headers(
    record: Record, error: Exception, *, attempts: int, group_id: str | None = None
) -> list[tuple[str, bytes]]:
    """Return the headers that are added to a record in a dead-letter topic.

    :func:`run_tasks` and exports add these:

    * ``trikafka.topic``, ``trikafka.partition``, ``trikafka.offset`` and ``trikafka.timestamp``
      (milliseconds since the epoch): the record's origin;
    * ``trikafka.group``: the consumer's group;
    * ``trikafka.error`` and ``trikafka.message``: the exception's class and text (at most 1,000
      characters);
    * ``trikafka.traceback``: files, lines and functions, from the program's first one to the error,
      with the causes (the last 4,000 characters), unless the exception was never raised;
    * ``trikafka.attempts``: the number of attempts;
    * ``trikafka.truncated``: the value's original size in bytes, only where the value was cut
      (:class:`DeadLetter`).

    Args:
        record: The record that could not be handled.
        error: Its last error.
        attempts: The number of attempts.
        group_id: The consumer's group; ``None`` leaves the header out.
    """
    return [*coordinates(record), *about_error(error, attempts, group_id)]


def coordinates(record: Record) -> list[tuple[str, bytes]]:
    """Return the headers with a record's origin."""
    found = [
        ("trikafka.topic", record.topic.encode()),
        ("trikafka.partition", b"%d" % record.partition),
        ("trikafka.offset", b"%d" % record.offset),
    ]
    return (
        found
        if record.timestamp is None
        else [*found, ("trikafka.timestamp", b"%d" % record.timestamp)]
    )


def about_error(error: Exception, attempts: int, group_id: str | None) -> list[tuple[str, bytes]]:
    """Return the headers that all records with one error share."""
    text = outlined(error, _text)
    kind = type(unwrapped(error))
    place = traceback_text(error)
    return [
        *([] if group_id is None else [("trikafka.group", group_id.encode())]),
        (
            "trikafka.error",
            f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.").encode(),
        ),
        ("trikafka.message", text[:_MOST_TEXT].encode(errors="replace")),
        *([(_TRACEBACK, place.encode(errors="replace"))] if place else []),
        ("trikafka.attempts", b"%d" % attempts),
    ]


def _text(error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, DeserializationError) else None
    return f"{error}: {cause!r}" if cause is not None else str(error)
