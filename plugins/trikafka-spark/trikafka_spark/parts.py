"""The parts of a write that is exactly once: a task's part, the mark that says it is done, and what a task hands to the driver.

Spark may have a part written more than once in the same write: by a further attempt, by a copy (speculation), or because the whole
stage is tried again, and then the earlier attempt may be at work still, and both count as the first. So an attempt that has written
its part leaves a *note* of its open transaction, for those that come after it, and for the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

import trikafka
from trikafka import (
    Admin,
    BrokerResponseError,
    DetachedTransaction,
    OffsetAndMetadata,
    TopicPartition,
    TransactionAbortableError,
    TransactionDescription,
    UnsupportedVersionError,
)

from .row_digest import Rows
from .write_options import WriteOptions


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a write that a task has: ``number`` of the write called ``run``. Later numbers replace earlier ones.

    ``write`` is this one try at the whole write: all attempts of its tasks have it, and those of another driver never do.

    The mark *this part is done* is an offset's note in the group that is named as the transactional id; it stands in the same
    transaction as the rows.
    """

    transactional_id: str
    run: str
    number: int
    write: str

    @property
    def notes(self) -> str:
        """The group that has the note of the attempt that has written the part."""
        return f"{self.transactional_id}-written"

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


def noting_settings(options: WriteOptions) -> dict[str, Any]:
    """And those of these that a consumer has: ``retries`` is none."""
    names = set(trikafka.ConsumerConfig.__dataclass_fields__)
    return {name: value for name, value in admin_settings(options).items() if name in names}


@dataclass(frozen=True, slots=True)
class Whole:
    """A part that is written, in a transaction that is open, and which rows these are."""

    transaction: DetachedTransaction
    rows: Rows


async def note_whole(options: WriteOptions, admin: Admin, part: Part, topic: str, whole: Whole) -> None:
    """Leave word of it, by an offset of ``topic``, which must be there. Raises what :meth:`trikafka.Consumer.commit` raises, and
    :exc:`TransactionAbortableError` if another attempt has opened the transactional id by then."""
    done, rows = whole.transaction, whole.rows
    body = {"write": part.write, "number": part.number, "transaction": [done.producer_id, done.epoch, done.version]}
    body |= {"rows": [rows.count, rows.size, rows.digest]}
    await _check_open(admin, done)  # a note that comes late must not replace that of the attempt that has taken over
    async with trikafka.open_consumer(**noting_settings(options), group_id=part.notes, enable_auto_commit=False) as committer:
        await committer.commit({TopicPartition(topic, 0): OffsetAndMetadata(part.number, metadata=json.dumps(body))})
    await _check_open(admin, done)  # who looked before the note was there has opened the id, or is about to


async def _check_open(admin: Admin, transaction: DetachedTransaction) -> None:
    if await _is_open_still(admin, transaction) is False:
        raise TransactionAbortableError(
            f"{transaction} is not open any more, so this attempt fails: another attempt of its task, or another run of this write,"
            " has taken its place, or kafka.transaction.timeout.ms is over"
        )


async def find_whole(admin: Admin, part: Part) -> Whole | None:
    """What another attempt of this same write has written, if it is open still. Raises what the admin client raises.

    To open its transactional id would abort what a task that has succeeded has handed to the driver.
    """
    for at in (await admin.list_group_offsets(part.notes)).values():
        whole = _noted(part, at.metadata)
        if whole is not None and await _is_open_still(admin, whole.transaction):
            return whole
    return None


def _noted(part: Part, note: str) -> Whole | None:
    try:
        body = json.loads(note)
        if (body["write"], body["number"]) != (part.write, part.number):
            return None
        transaction = DetachedTransaction(part.transactional_id, *map(int, body["transaction"]))
        return Whole(transaction, Rows(*map(int, body["rows"])))
    except (ValueError, TypeError, KeyError):
        return None


async def _is_open_still(admin: Admin, transaction: DetachedTransaction) -> bool | None:
    """``None``: the brokers are too old to tell (before Kafka 3.0)."""
    try:
        found = await admin.describe_transactions([transaction.transactional_id])
    except UnsupportedVersionError:
        return None
    except BrokerResponseError:
        return False  # there is none
    return is_open(transaction, found[transaction.transactional_id])


def is_open(transaction: DetachedTransaction, found: TransactionDescription) -> bool:
    """Whether it is the one that the coordinator has, and open."""
    same = (found.producer_id, found.producer_epoch) == (transaction.producer_id, transaction.epoch)
    return same and found.state == "Ongoing"
