"""The parts of an exactly-once write: the part of a task, its mark, and its message to the driver.

Spark may run a part more than once within one write: as a further attempt, as a copy (speculation),
or because the whole stage is tried again. In the last case an attempt of the earlier stage may
still run, and both count as the first attempt. So an attempt that has written its part leaves a
*note* of its open transaction, for later attempts and for the driver.
"""

# Marks, notes and begins
# -----------------------
#
# Each is the metadata of a committed offset, in a group that is named by the part's transactional
# id. An offset can be committed within a transaction (KIP-98), so Kafka itself stores the evidence.
# No other store could be atomic with the rows.
#
# * The *mark* stands in the group ``<id>-<task>`` and is committed in the transaction of the rows:
#   it is visible if and only if the rows are. It has the run and number of the write, and the
#   digest of the rows. A mark with a higher number counts too: a later micro-batch or version has
#   replaced this one.
# * The *note* stands in the group ``<id>-<task>-written`` and is committed outside of the
#   transaction, after it was detached: it must be readable while the transaction is open. It has
#   the producer id and epoch of the open transaction, and the digest of its rows. It counts only
#   within the same try (``Part.write``) and only while the coordinator has that transaction open.
# * The *begin* stands in the group ``<id>-<task>-begun`` and is committed before the transactional
#   id is opened. It names the try. If Spark kills all workers of a job, nothing else shows the
#   driver whose transactions are open. A later run replaces it before it opens the id. A topic that
#   does not exist yet can have no begin.
#
# The digest makes two attempts comparable: if they have the same rows, one transaction serves for
# both. Without it, a plan that is not deterministic would lose some rows and write others twice.

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

import trikafka
from trikafka import (
    Admin,
    AdminErrors,
    BrokerResponseError,
    DetachedTransaction,
    ErrorCode,
    OffsetAndMetadata,
    TopicPartition,
    TransactionAbortableError,
    TransactionDescription,
    TrikafkaError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)

from .row_digest import RowDigest
from .write_options import WriteOptions


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a write that one task has.

    ``number`` is the number of this write among those called ``run``: a micro-batch of a query, or
    a version. A later number replaces an earlier one. ``write`` is one try at the whole write: all
    attempts of its tasks share it, and another driver has another one.

    ``whole`` is the transactional id of the whole write, if the write can run again
    (:mod:`.whole_write`).
    """

    transactional_id: str
    run: str
    number: int
    write: str
    whole: str | None = None

    @property
    def notes(self) -> str:
        """The name of the group with the note of the attempt that has written the part."""
        return f"{self.transactional_id}-written"

    @property
    def begins(self) -> str:
        """The name of the group with the begin of the latest attempt."""
        return f"{self.transactional_id}-begun"

    def mark(self, topic: str, rows: RowDigest) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the mark as an offset of ``topic``, which must exist."""
        note = json.dumps({"trikafka": self.run, "number": self.number, "rows": rows.to_list()})
        return {TopicPartition(topic, 0): OffsetAndMetadata(self.number, metadata=note)}

    def find_mark(self, notes: Iterable[str]) -> Mark | None:
        """Return the mark among ``notes`` that belongs to this part or to a later one in its place.

        Notes of another form are passed over.
        """
        for note in notes:
            try:
                mark = json.loads(note)
                if mark["trikafka"] == self.run and mark["number"] >= self.number:
                    later = mark["number"] > self.number
                    return Mark(
                        RowDigest.from_list(mark["rows"]) if not later and "rows" in mark else None,
                        later,
                    )
            except (ValueError, TypeError, KeyError):
                continue
        return None

    async def committed(
        self, admin: Admin, topic: str | None = None, *, timeout: float | None = None
    ) -> Mark | None:
        """Return the mark of this part if it is committed, as an offset of any topic.

        While a transaction is being ended, a request for all offsets waits for the group's known
        partitions only. The first mark of a group is waited for if the request names its ``topic``,
        so that request comes first. Raises the errors of :meth:`Admin.list_group_offsets`.
        """
        if topic is not None:
            named = await admin.list_group_offsets(
                self.transactional_id, [TopicPartition(topic, 0)], timeout=timeout
            )
            if (mark := self.find_mark(at.metadata for at in named.values())) is not None:
                return mark
        found = await admin.list_group_offsets(self.transactional_id, timeout=timeout)
        return self.find_mark(at.metadata for at in found.values())


@dataclass(frozen=True, slots=True)
class Mark:
    """A committed mark of a part.

    ``rows`` is ``None`` if the mark does not say which rows the part has, as in older releases.
    ``later`` is true for the mark of a later micro-batch or version. Such a mark shows that this
    part was replaced, and nothing about this part's rows.
    """

    rows: RowDigest | None = None
    later: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """The rows that one run gives to one task.

    The driver compares them with the rows that an earlier run has committed. ``given`` are all rows
    of the task in this run. ``mark`` is the committed mark that the task has found, and then it has
    written nothing. ``topic`` is the topic of its first row, or ``None`` without rows.
    """

    part: Part
    given: RowDigest
    mark: Mark | None = None
    topic: str | None = None


@dataclass
class Written(WriterCommitMessage):
    """The message of a task to the driver.

    ``transaction`` is open, and has all rows and the mark; the driver commits or aborts it. It is
    ``None`` if there was nothing to write, or without ``exactlyOnce``. With ``again`` an earlier
    run has committed the part, and this run has written nothing.
    """

    rows: int
    again: bool = False
    transaction: DetachedTransaction | None = None
    account: Account | None = field(default=None, compare=False)


def admin_settings(options: WriteOptions) -> dict[str, Any]:
    """Return the producer's settings that an admin client has as well."""
    names = set(trikafka.AdminConfig.__dataclass_fields__)
    return {name: value for name, value in options.settings.items() if name in names}


@dataclass(frozen=True, slots=True)
class CompletePart:
    """A part that is written in an open transaction, and the digest of its rows."""

    transaction: DetachedTransaction
    rows: RowDigest


async def note_begun_part(admin: Admin, part: Part, topic: str) -> None:
    """Leave the begin of an attempt, before it opens the transactional id.

    It replaces the begins of other tries, also those of other topics. If ``topic`` does not exist
    yet, the attempt has no begin.

    Raises:
        TrikafkaError: The begin cannot be committed (:meth:`trikafka.Admin.alter_group_offsets`).
            Or the attempt can have none, and the begin of another try remains. The driver of that
            try could abort this attempt's transaction.
    """
    begin = OffsetAndMetadata(part.number, metadata=_begin(part))
    own = TopicPartition(topic, 0)
    noted = False
    with suppress(UnknownTopicOrPartitionError):  # the first record creates the topic
        # Only the look is quick: a commit waits for an unknown topic for seconds.
        await admin.describe_topics([topic])
        await admin.alter_group_offsets(part.begins, {own: begin})
        noted = True
    foreign = await _foreign_begins(admin, part)
    with suppress(TrikafkaError):
        if noted:
            topics = await _existing(admin, {tp.topic for tp in foreign - {own}})
            # The own begin may be that of a run that began at the same time.
            foreign = {tp for tp in foreign - {own} if tp.topic in topics}
        # Without a begin of its own, an attempt waits until a deleted topic's offset is deleted.
        if foreign:
            await admin.alter_group_offsets(part.begins, dict.fromkeys(foreign, begin))
    if not noted and (left := await _foreign_begins(admin, part)):
        where = ", ".join(sorted({tp.topic for tp in left}))
        raise TrikafkaError(
            f"the group {part.begins} has a begin of another run as an offset of {where}, which "
            f"cannot be replaced: create the topic {topic}, permit Read on {where}, or delete the "
            "group"
        )


def _begin(part: Part) -> str:
    return json.dumps({"write": part.write})


async def _foreign_begins(admin: Admin, part: Part) -> set[TopicPartition]:
    """Return the partitions with begins of other tries."""
    found = await admin.list_group_offsets(part.begins)
    return {tp for tp, at in found.items() if at.metadata != _begin(part)}


async def _existing(admin: Admin, topics: set[str]) -> set[str]:
    if not topics:
        return set()
    try:
        return {str(name) for name in await admin.describe_topics(topics)}
    except AdminErrors as error:
        return {*error.results}


async def find_begun_part(admin: Admin, part: Part) -> tuple[int, int] | None:
    """Return the producer id and epoch of a transaction that this write has begun and not ended.

    Every later run replaces the begin before it opens the id. So a begin of this write, read after
    the description, shows that no later run has opened the transaction.

    There is one exception: a late attempt of this write may replace the begin of a later run, and
    be killed before it opens the id. Opening the id would have aborted that run's transaction, too.
    The begin is also read before the description, which leaves such an attempt little time.

    Raises:
        TrikafkaError: The coordinators do not respond, or refuse the look.
    """
    name = part.transactional_id
    if not await _is_begun(admin, part):
        return None
    try:
        seen = (await admin.describe_transactions([name]))[name]
    except BrokerResponseError as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None  # it was never opened
        raise
    if seen.state == "Ongoing" and await _is_begun(admin, part):
        return seen.producer_id, seen.producer_epoch
    return None


async def _is_begun(admin: Admin, part: Part) -> bool:
    """Return whether the latest begin is of this write."""
    begins = (await admin.list_group_offsets(part.begins)).values()
    return bool(begins) and all(each.metadata == _begin(part) for each in begins)


async def note_complete_part(admin: Admin, part: Part, topic: str, whole: CompletePart) -> None:
    """Leave the note of a written part, as an offset of ``topic``, which must exist.

    Raises:
        TransactionAbortableError: Another attempt has opened the transactional id.
        TrikafkaError: The note cannot be committed (:meth:`trikafka.Admin.alter_group_offsets`).
    """
    done = whole.transaction
    body = {
        "write": part.write,
        "number": part.number,
        "transaction": [done.producer_id, done.epoch, done.version],
        "rows": whole.rows.to_list(),
    }
    note = OffsetAndMetadata(part.number, metadata=json.dumps(body))
    # A late note must not replace the note of the attempt that has taken over.
    await _check_open(admin, done)
    await admin.alter_group_offsets(part.notes, {TopicPartition(topic, 0): note})
    # An attempt that looked before the note was committed has opened the id, or is about to.
    await _check_open(admin, done)


async def _check_open(admin: Admin, transaction: DetachedTransaction) -> None:
    if await _is_open_still(admin, transaction) is False:
        raise TransactionAbortableError(
            f"{transaction} is no longer open, so this attempt fails: another attempt of its "
            "task, or another run of this write, has replaced it, or kafka.transaction.timeout.ms "
            "has expired"
        )


async def find_complete_part(admin: Admin, part: Part) -> CompletePart | None:
    """Return what another attempt of the same write has written, if its transaction is still open.

    A task calls this before it opens the transactional id. Opening the id would abort a transaction
    that a successful task has already reported to the driver. Raises the errors of the admin
    client.
    """
    for at in (await admin.list_group_offsets(part.notes)).values():
        whole = _noted(part, at.metadata)
        if whole is not None and await _is_open_still(admin, whole.transaction):
            return whole
    return None


def _noted(part: Part, note: str) -> CompletePart | None:
    try:
        body = json.loads(note)
        if (body["write"], body["number"]) != (part.write, part.number):
            return None
        transaction = DetachedTransaction(part.transactional_id, *map(int, body["transaction"]))
        return CompletePart(transaction, RowDigest.from_list(body["rows"]))
    except (ValueError, TypeError, KeyError):
        return None


async def _is_open_still(admin: Admin, transaction: DetachedTransaction) -> bool | None:
    """Return whether the transaction is open; ``None`` if the cluster cannot describe it.

    Kafka can. A service that only speaks its protocol may lack the request.
    """
    try:
        found = await admin.describe_transactions([transaction.transactional_id])
    except UnsupportedVersionError:
        return None
    except BrokerResponseError:
        return False  # the id has no transaction
    return is_open(transaction, found[transaction.transactional_id])


def is_open(transaction: DetachedTransaction, found: TransactionDescription) -> bool:
    """Return whether the coordinator's transaction is the given one, and open."""
    same = (found.producer_id, found.producer_epoch) == (transaction.producer_id, transaction.epoch)
    return same and found.state == "Ongoing"
