"""The comparison of a write with the parts that an earlier run of it has committed."""

# Why rows are compared, and not part numbers
# -------------------------------------------
#
# Spark divides a frame into tasks by the number of cores, adaptive execution and ``minPartitions``.
# So another run of the same write may have another number of tasks, and other rows in the part of
# the same number. If a part were skipped because its number is committed, rows could be lost. If it
# were written again, rows could be doubled.
#
# So the rows are compared. Each committed part must have exactly the rows that the task of its
# number has in this run. Then the other tasks have exactly the rows that are missing. If a part
# differs, there are two cases. If all committed parts together have the rows of this run, the write
# is complete. Otherwise it is refused.
#
# Spark does not pass the number of tasks to Python workers, so only the driver knows it. Before its
# first commit, the driver writes the mark of the whole write, with the number of tasks, as an
# offset's metadata in the group ``<id>-write``. The driver of the next run reads there how many
# parts may be committed. Without this mark it would overlook parts beyond its own number of tasks.

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import trikafka
from trikafka import Admin, OffsetAndMetadata, TopicPartition, TransactionError
from trikafka.toolkit import call_each, decisive, with_others

from .row_digest import RowDigest
from .write_options import WriteOptions
from .write_parts import Account, Mark, Part, Written

#: The name of the run (``Part.run``) of all batch writes that have a version.
BATCH = "version"
_log = logging.getLogger("trikafka.spark")


@dataclass(frozen=True, slots=True)
class WriteMark:
    """The mark of a whole write, committed with an offset of the partition ``at``.

    A run of the write with ``number`` had ``tasks`` tasks, and was about to commit.
    """

    number: int
    tasks: int
    at: TopicPartition


async def is_complete(options: WriteOptions, admin: Admin, messages: Sequence[Written]) -> bool:
    """Return whether an earlier run has committed all rows of this write.

    If so, the caller commits nothing. If not, and this run has transactions to commit, the mark of
    the write is written first.

    Args:
        options: The options of the write.
        admin: An open admin client.
        messages: The messages of all tasks, by number.

    Raises:
        TransactionError: An earlier run has committed parts that do not fit the tasks of this run.
        TrikafkaError: The coordinators do not respond, or refuse the requests.
    """
    accounts = {at: each.account for at, each in enumerate(messages) if each.account is not None}
    if not accounts:
        return False
    part = next(iter(accounts.values())).part
    found = None if part.whole is None else await _find(admin, part)
    marks = {at: account.mark for at, account in accounts.items() if account.mark is not None}
    if found is not None and found.number >= part.number:
        marks |= await _unheard(options, admin, messages, found.tasks, part)
        if found.number > part.number and any(mark.later for mark in marks.values()):
            # A later version is committed; this one must not follow it.
            _log.warning(
                "%s is skipped: a later one, %d, is committed already; after a new checkpoint, "
                "whose batches count from 0 again, use another transactionalId",
                _name(part),
                found.number,
            )
            return True
    given = {at: account.given for at, account in accounts.items()}
    unfit = [
        at
        for at, mark in marks.items()
        if mark.rows is not None and mark.rows != given.get(at, RowDigest())
    ]
    left = any(each.transaction is not None for each in messages)
    if unfit:
        first = min(unfit)
        total = sum(given.values(), RowDigest())
        committed = sum((mark.rows or RowDigest() for mark in marks.values()), RowDigest())
        if committed == total:
            return True
        why = _why_unfit(part, len(messages), found, marks, first, given.get(first, RowDigest()))
        # A micro-batch cannot run under another number, so an error here would stop the stream for
        # ever. If the number of rows is right and all parts are committed, a warning must do.
        if part.run == BATCH or left or committed.count != total.count:
            raise TransactionError(f"nothing of this run of {_name(part)} is committed: {why}")
        _log.warning(
            "%s is committed already, with other rows: its plan is not deterministic: %s",
            _name(part),
            why,
        )
        return True
    if part.whole is not None and left:
        await _leave(admin, part, len(messages), found, accounts)
    return False


async def _find(admin: Admin, part: Part) -> WriteMark | None:
    """Return the latest mark of this write in its group; ``None`` if there is none."""
    marks = []
    for tp, at in (await admin.list_group_offsets(_group(part))).items():
        try:
            body = json.loads(at.metadata)
            if body["trikafka"] == part.run:
                marks.append(WriteMark(int(body["number"]), int(body["tasks"]), tp))
        except (ValueError, TypeError, KeyError):
            continue
    return max(marks, key=lambda mark: (mark.number, mark.tasks), default=None)


async def _unheard(
    options: WriteOptions,
    admin: Admin,
    messages: Sequence[Written],
    tasks: int,
    part: Part,
) -> Mapping[int, Mark]:
    """Return the committed marks of parts whose transactional id no task of this run has opened.

    These are the parts beyond this run's number of tasks, and the parts of tasks without rows. An
    earlier run of ``tasks`` tasks may have committed them. Opening their transactional ids fences
    the earlier run: if its driver is still alive, it can commit none of them afterwards.
    """

    async def look(number: int) -> Mark | None:
        its = replace(part, transactional_id=f"{part.whole}-{number}")
        async with trikafka.open_producer(
            **options.settings, transactional_id=its.transactional_id
        ):
            pass
        return await its.committed(admin)

    def is_heard(number: int) -> bool:
        return number < len(messages) and (
            messages[number].again or messages[number].transaction is not None
        )

    found, errors = await call_each(
        look, [number for number in range(tasks) if not is_heard(number)]
    )
    if errors:
        raise with_others(decisive([*errors.values()]), errors.values())
    return {number: mark for number, mark in found.items() if mark is not None}


async def _leave(
    admin: Admin,
    part: Part,
    tasks: int,
    found: WriteMark | None,
    accounts: Mapping[int, Account],
) -> None:
    """Write the mark of the whole write over the earlier one, so that the group has only one."""
    topic = next(account.topic for account in accounts.values() if account.topic is not None)
    at = TopicPartition(topic, 0) if found is None else found.at
    note = json.dumps({"trikafka": part.run, "number": part.number, "tasks": tasks})
    await admin.alter_group_offsets(
        _group(part), {at: OffsetAndMetadata(part.number, metadata=note)}
    )


def _group(part: Part) -> str:
    return f"{part.whole}-write"


def _name(part: Part) -> str:
    kind = "version" if part.run == BATCH else "micro-batch"
    return f"{kind} {part.number} of {part.whole or part.transactional_id!r}"


def _why_unfit(
    part: Part,
    tasks: int,
    found: WriteMark | None,
    marks: Mapping[int, Mark],
    unfit: int,
    given: RowDigest,
) -> str:
    """Return the text of the error: the difference between the runs, and what to do."""
    if found is not None and found.number == part.number and found.tasks != tasks:
        earlier = f"had {found.tasks} tasks and committed {len(marks)} of their parts"
        same = f"with {found.tasks} tasks"
    else:
        earlier = f"has committed {len(marks)} of its parts"
        same = "with the earlier run's number of tasks"
    if part.run == BATCH:
        how = (
            "repartition() or coalesce() the frame: cores and spark.sql.adaptive.* change the "
            "number"
        )
    else:
        how = (
            "with the minPartitions, maxRecordsPerPartition and spark.sql.shuffle.partitions of "
            "the earlier run, until this batch is finished"
        )
    return (
        f"an earlier run {earlier}, and this run has {tasks} tasks. The committed part {unfit} has "
        f"{marks[unfit].rows}, but task {unfit} of this run has {given}: rows would be lost or "
        f"written twice. Run it again {same} and the same rows in each ({how}): that run writes "
        "the missing parts"
    )
