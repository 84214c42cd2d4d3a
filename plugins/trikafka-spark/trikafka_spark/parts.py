"""The parts of a write that is exactly once: a task's part, the mark that says it is done, and what a task hands to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import trio
from pyspark.sql.datasource import WriterCommitMessage

import trikafka
from trikafka import Admin, BrokerResponseError, DetachedTransaction, OffsetAndMetadata, TopicPartition, UnsupportedVersionError

from .write_options import WriteOptions

#: How long (seconds) a further attempt gives the driver to end what an attempt before it has written whole, and between two looks.
_PATIENCE, _PAUSE = 10.0, 0.25
_MARKS = "__consumer_offsets"  # where a mark goes, as one of a transaction's partitions


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a write that a task has: ``number`` of the write called ``run``. Later numbers replace earlier ones.

    The mark *this part is done* is an offset's note in the group that is named as the transactional id; it stands in the same
    transaction as the rows.
    """

    transactional_id: str
    run: str
    number: int

    @property
    def note(self) -> str:
        """The mark."""
        return json.dumps({"trikafka": self.run, "number": self.number})

    def mark(self, topic: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """The mark as an offset of ``topic``, which must be there."""
        return {TopicPartition(topic, 0): OffsetAndMetadata(self.number, metadata=self.note)}

    def is_done(self, notes: Iterable[str]) -> bool:
        """Whether a mark among ``notes`` says so."""
        for note in notes:
            try:
                mark = json.loads(note)
                if mark["trikafka"] == self.run and mark["number"] >= self.number:
                    return True
            except (ValueError, TypeError, KeyError):
                continue
        return False

    async def is_committed(self, admin: Admin, topic: str | None = None, *, timeout: float | None = None) -> bool:
        """Whether its mark is committed, at an offset of whatever topic. Raises what :meth:`Admin.list_group_offsets` raises.

        The mark of a transaction that is being ended is waited for; the first mark of a group only if it is one of ``topic``.
        """
        if topic is not None:
            named = await admin.list_group_offsets(self.transactional_id, [TopicPartition(topic, 0)], timeout=timeout)
            if self.is_done(at.metadata for at in named.values()):
                return True
        found = await admin.list_group_offsets(self.transactional_id, timeout=timeout)
        return self.is_done(at.metadata for at in found.values())


@dataclass
class Written(WriterCommitMessage):
    """What a task has written, as it comes to the driver.

    ``transaction`` is open, holds all rows and the mark, and waits for the driver's verdict; there is none where nothing was to be
    written, and where nothing has to be exactly once. ``again``: the part was committed by an earlier run, and not written again.
    """

    rows: int
    again: bool = False
    part: Part | None = None
    transaction: DetachedTransaction | None = None


def admin_settings(options: WriteOptions) -> dict[str, Any]:
    """Those of a producer's settings that an admin client has, too."""
    names = set(trikafka.AdminConfig.__dataclass_fields__)
    return {name: value for name, value in options.settings.items() if name in names}


async def leave_to_the_driver(admin: Admin, part: Part) -> None:
    """Wait, though not for long, while an attempt before this one has written the part whole and the driver has not ended it yet.

    For a further attempt of a task is either a repair or a copy (speculation). To open the transactional id would abort what a task
    that has succeeded has handed to the driver; Spark stops the copy as soon as it knows of that success. If it does not, the
    other one is lost, and this one takes over.
    """
    with trio.move_on_after(_PATIENCE):
        while await _is_whole(admin, part.transactional_id):  # noqa: ASYNC110 (the coordinator tells nobody)
            await trio.sleep(_PAUSE)


async def _is_whole(admin: Admin, transactional_id: str) -> bool:
    """Whether a transaction is open that has its mark, which is the last that a task puts into it."""
    try:
        found = (await admin.describe_transactions([transactional_id]))[transactional_id]
    except (BrokerResponseError, UnsupportedVersionError):
        return False  # there is none; or the brokers are too old to tell
    return found.state == "Ongoing" and any(tp.topic == _MARKS for tp in found.partitions)
