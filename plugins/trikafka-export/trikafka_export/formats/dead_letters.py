"""Dead letters: records that cannot be parsed go to a file beside the piece, or to a topic.

A topic receives them as ``run_tasks`` sends dead letters.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import trio

import trikafka
from trikafka import (
    ConfigurationError,
    ErrorCode,
    ProducerConfig,
    Record,
    RecordTooLargeError,
    TimestampType,
    UnknownTopicOrPartitionError,
)
from trikafka.errors import from_code

from ..piece_log import PieceLog, StagedFile
from ..plan import suffix_of
from ..summed_file import SummedFile
from .errors import UnreadableError

#: Records sent before their acknowledgements are awaited.
_AT_ONCE = 1_000
#: Upper bound of the bytes that a request and a batch add to a record.
_AROUND = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: 400 years, after which the calendar repeats, in microseconds.
_CYCLE = 146_097 * 86_400 * 1_000_000
#: A record as a row of Spark's columns with its time in microseconds, and the reason for the
#: refusal.
Refused = tuple[Mapping[str, Any], str]


class Letters(Protocol):
    """The dead letters of one piece."""

    @property
    def count(self) -> int:
        """The number of dead letters."""

    @property
    def bytes(self) -> int:
        """The bytes that they add to the piece."""

    def add(self, refused: Sequence[Refused]) -> None:
        """Add dead letters. Blocks while they are sent; raises the producer's errors."""

    def staged(self, start: int) -> StagedFile | None:
        """Return the staged file of dead letters; ``None`` if there is none."""

    def drop(self) -> None:
        """Remove the staged file."""


class FileLetters:
    """Dead letters in a file of JSON lines in ``_dead_letters``.

    The file is published with the piece, so each letter exists once. Letters are written as they
    arrive: if nothing can be parsed, a piece consists of letters only, and each thread has one.
    """

    def __init__(self, log: PieceLog, folder: str = "") -> None:
        """Write to ``_dead_letters``, or to ``folder`` below it."""
        self._log = log
        self._folder = f"_dead_letters/{folder}/" if folder else "_dead_letters/"
        self._path: Path | None = None
        self._file: SummedFile | None = None
        self.count = 0

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return 0 if self._file is None else self._file.size

    def add(self, refused: Sequence[Refused]) -> None:
        """Append dead letters to the file."""
        if not refused:
            return
        if self._file is None:
            self._path = self._log.stage()
            self._file = SummedFile(self._path)
        self._file.write("".join(_line(row, why) for row, why in refused).encode())
        self.count += len(refused)

    def staged(self, start: int) -> StagedFile | None:
        """Return the staged file."""
        if self._path is None or self._file is None:
            return None
        path = self._path
        self._path = None
        self._file.close()
        name = self._log.name_of(start)
        name = name.removesuffix(suffix_of(name)) + ".jsonl"
        return StagedFile(
            path.name,
            self._folder + name,
            self.count,
            self._file.size,
            data=False,
            crc32c=self._file.crc32c,
        )

    def drop(self) -> None:
        """Remove the staged file."""
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


class TopicLetters:
    """Dead letters in a topic.

    They are acknowledged when :meth:`add` returns, and so before the piece is published: at least
    once.
    """

    bytes = 0

    def __init__(
        self,
        topic: str,
        settings: Mapping[str, Any],
        on_start: Callable[[Callable[[], None]], None],
    ) -> None:
        names = set(ProducerConfig.__dataclass_fields__)
        self._topic = topic
        self._settings = {name: value for name, value in settings.items() if name in names}
        self._on_start = on_start
        self.count = 0

    def add(self, refused: Sequence[Refused]) -> None:
        """Send dead letters and wait for their acknowledgements.

        ``on_start`` receives a function that ends the call from another thread.
        """
        if refused:
            trio.run(self._stoppable, lambda: self._send(refused))
            self.count += len(refused)

    def staged(self, start: int) -> StagedFile | None:
        """Return None: the letters are in Kafka."""
        return None

    def drop(self) -> None:
        """No-op: letters in Kafka stay there."""

    async def _stoppable(self, work: Callable[[], Awaitable[None]]) -> None:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:

            def end() -> None:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(scope.cancel)

            self._on_start(end)
            await work()
        if scope.cancelled_caught:
            raise trikafka.KafkaTimeoutError(
                "sending dead letters, until the export was stopped,", 0.0
            )

    async def _send(self, refused: Sequence[Refused]) -> None:
        records = [_record(*each) for each in refused]
        async with trikafka.open_producer(**self._settings, **room_for(records)) as producer:
            try:
                for at in range(0, len(records), _AT_ONCE):
                    acks = [
                        await producer.enqueue(self._topic, **each)
                        for each in records[at : at + _AT_ONCE]
                    ]
                    for ack in acks:
                        await ack.wait()
            except UnknownTopicOrPartitionError as error:
                detail = f"the dead-letter topic {self._topic!r}; create it"
                raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail) from error
            except RecordTooLargeError as error:
                detail = (
                    f"the dead-letter topic {self._topic!r} takes no record as large as one that "
                    "cannot be read"
                )
                raise from_code(
                    ErrorCode.MESSAGE_TOO_LARGE, f"{detail}: raise its max.message.bytes"
                ) from error


def room_for(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return producer settings that accept these records.

    An export has no settings of a producer, and a record may have been large before.
    """
    most = min(max(map(_size, records), default=0) + _AROUND, 2**31 - 1)
    usual = ProducerConfig()
    return {
        name: most for name in ("max_request_size", "buffer_memory") if most > getattr(usual, name)
    }


async def check_topic(topic: str, settings: Mapping[str, Any]) -> None:
    """Check that the dead-letter topic exists.

    Raises:
        ConfigurationError: It does not exist.
    """
    names = set(trikafka.AdminConfig.__dataclass_fields__)
    async with trikafka.open_admin(
        **{name: value for name, value in settings.items() if name in names}
    ) as admin:
        if topic not in await admin.list_topics():
            raise ConfigurationError(f"dead_letter_topic {topic!r} does not exist; create it")


def _record(row: Mapping[str, Any], why: str) -> dict[str, Any]:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    time = None if row["timestamp"] is None else row["timestamp"] // 1_000
    record = Record(
        row["topic"],
        row["partition"],
        row["offset"],
        time,
        TimestampType.CREATE_TIME,
        row["key"],
        row["value"],
        headers,
    )
    about = trikafka.dead_letter_headers(record, UnreadableError(why), attempts=1)
    return {"value": record.value, "key": record.key, "headers": [*headers, *about]}


def _size(record: Mapping[str, Any]) -> int:
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record["headers"])
    return len(record["key"] or b"") + len(record["value"] or b"") + headers


def _iso(time: int) -> str:
    """Return a time in microseconds as text of ISO 8601; a year beyond four digits has a sign."""
    try:
        return (_EPOCH + timedelta(microseconds=time)).isoformat()
    except OverflowError:
        cycles, rest = divmod(time, _CYCLE)
        text = (_EPOCH + timedelta(microseconds=rest)).isoformat()
        return f"{int(text[:4]) + 400 * cycles:+05d}{text[4:]}"


def _line(row: Mapping[str, Any], error: str) -> str:
    """Return an unreadable record as a line of JSON, with bytes in Base64."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    body = {name: row[name] for name in ("topic", "partition", "offset")} | {
        "timestamp": None if row["timestamp"] is None else _iso(row["timestamp"]),
        "error": error,
        "key": text(row["key"]),
        "value": text(row["value"]),
        "headers": [[each["key"], text(each["value"])] for each in row["headers"] or ()],
    }
    return json.dumps(body) + "\n"
