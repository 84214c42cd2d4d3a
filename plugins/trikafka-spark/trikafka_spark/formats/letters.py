"""Where records go that cannot be read: to a file beside the piece, or to a topic, as ``run_tasks`` sends its dead letters."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import trio

import trikafka
from trikafka import (
    ConfigurationError,
    ErrorCode,
    PieceLog,
    ProducerConfig,
    Record,
    RecordTooLargeError,
    StagedFile,
    TimestampType,
    UnknownTopicOrPartitionError,
)
from trikafka.errors import from_code

from .errors import UnreadableError

#: Records that are sent before their acknowledgements are waited for.
_AT_ONCE = 1_000
#: More than a request and a batch put around a record (bytes); each header has its lengths, too.
_AROUND = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A record as a row of Spark's columns, and what is wrong with it.
Refused = tuple[Mapping[str, Any], str]


class Letters(Protocol):
    """Those of one piece."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def bytes(self) -> int:
        """What they add to the piece."""

    def add(self, refused: Sequence[Refused]) -> None:
        """Take some. Blocks where they are sent; raises what a producer raises."""

    def staged(self, start: int) -> StagedFile | None:
        """The file that they become, if they do."""

    def drop(self) -> None:
        """Remove what was staged."""


class FileLetters:
    """A file of JSON lines in ``_dead_letters``: decided with the piece, so each is there once.

    Staged as they come: where nothing can be read, a piece is nothing but letters, and there is one in each thread.
    """

    def __init__(self, log: PieceLog, folder: str = "") -> None:
        """``folder`` is one below that."""
        self._log = log
        self._folder = f"_dead_letters/{folder}/" if folder else "_dead_letters/"
        self._path: Path | None = None
        self.bytes = self.count = 0

    def add(self, refused: Sequence[Refused]) -> None:
        """Take some."""
        if not refused:
            return
        self._path = self._path or self._log.stage()
        with self._path.open("a", encoding="utf-8") as file:
            for row, why in refused:
                self.bytes += file.write(_line(row, why))
        self.count += len(refused)

    def staged(self, start: int) -> StagedFile | None:
        """The file."""
        if self._path is None:
            return None
        path, self._path = self._path, None
        name = self._log.name_of(start).removesuffix(".parquet") + ".jsonl"
        return StagedFile(path.name, self._folder + name, self.count, path.stat().st_size, data=False)

    def drop(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


class TopicLetters:
    """A topic: they are there when :meth:`add` returns, so before the piece is decided; at least once."""

    bytes = 0

    def __init__(self, topic: str, settings: Mapping[str, Any], on_start: Callable[[Callable[[], None]], None]) -> None:
        names = set(ProducerConfig.__dataclass_fields__)
        self._topic, self._settings = topic, {name: value for name, value in settings.items() if name in names}
        self._on_start = on_start
        self.count = 0

    def add(self, refused: Sequence[Refused]) -> None:
        """Send them, and wait until they are there. ``on_start``'s function ends it from another thread."""
        if refused:
            trio.run(self._stoppable, lambda: self._send(refused))
            self.count += len(refused)

    def staged(self, start: int) -> StagedFile | None:
        """None: they are in Kafka."""
        return None

    def drop(self) -> None:
        """Nothing: what is in Kafka stays there."""

    async def _stoppable(self, work: Callable[[], Awaitable[None]]) -> None:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:

            def end() -> None:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(scope.cancel)

            self._on_start(end)
            await work()
        if scope.cancelled_caught:
            raise trikafka.KafkaTimeoutError("sending dead letters, until the export was stopped,", 0.0)

    async def _send(self, refused: Sequence[Refused]) -> None:
        records = [_record(*each) for each in refused]
        async with trikafka.open_producer(**self._settings, **room_for(records)) as producer:
            try:
                for at in range(0, len(records), _AT_ONCE):
                    acks = [await producer.enqueue(self._topic, **each) for each in records[at : at + _AT_ONCE]]
                    for ack in acks:
                        await ack.wait()
            except UnknownTopicOrPartitionError as error:
                detail = f"the dead-letter topic {self._topic!r}; create it"
                raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail) from error
            except RecordTooLargeError as error:
                detail = f"the dead-letter topic {self._topic!r} takes no record as large as one that cannot be read"
                raise from_code(ErrorCode.MESSAGE_TOO_LARGE, f"{detail}: raise its max.message.bytes") from error


def room_for(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a producer that takes them: an export has none of a producer's own, and a record was large before."""
    most = min(max(map(_size, records), default=0) + _AROUND, 2**31 - 1)
    usual = ProducerConfig()
    return {name: most for name in ("max_request_size", "buffer_memory") if most > getattr(usual, name)}


async def check_topic(topic: str, settings: Mapping[str, Any]) -> None:
    """Raise :exc:`trikafka.ConfigurationError` for a dead-letter topic that is not there."""
    names = set(trikafka.AdminConfig.__dataclass_fields__)
    async with trikafka.open_admin(**{name: value for name, value in settings.items() if name in names}) as admin:
        if topic not in await admin.list_topics():
            raise ConfigurationError(f"dead_letter_topic {topic!r} does not exist; create it")


def _record(row: Mapping[str, Any], why: str) -> dict[str, Any]:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    time = None if row["timestamp"] is None else _milliseconds(row["timestamp"])
    record = Record(
        row["topic"], row["partition"], row["offset"], time, TimestampType.CREATE_TIME, row["key"], row["value"], headers
    )
    about = trikafka.dead_letter_headers(record, UnreadableError(why), attempts=1)
    return {"value": record.value, "key": record.key, "headers": [*headers, *about]}


def _size(record: Mapping[str, Any]) -> int:
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record["headers"])
    return len(record["key"] or b"") + len(record["value"] or b"") + headers


def _milliseconds(time: datetime) -> int:
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


def _line(row: Mapping[str, Any], error: str) -> str:
    """A record that could not be read, with its coordinates, as a line of JSON; bytes in Base64."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    body = {name: row[name] for name in ("topic", "partition", "offset")} | {
        "timestamp": None if row["timestamp"] is None else row["timestamp"].isoformat(),
        "error": error,
        "key": text(row["key"]),
        "value": text(row["value"]),
        "headers": [[each["key"], text(each["value"])] for each in row["headers"] or ()],
    }
    return json.dumps(body) + "\n"
