"""The driver's verdict on an exactly-once write: it ends the transactions of all tasks.

Each task has a transaction of its own, and the coordinators end them one by one. So there is no
moment at which all become visible together.
"""

# The order of a verdict
# ----------------------
#
# Kafka has no transaction over several transactional ids. So the driver does all that can fail
# before the first commit, and after that only goes forward:
#
# 1. All tasks have succeeded: Spark calls ``commit`` with a message of each.
# 2. The driver asks the coordinators whether all transactions are still open. One that is not may
#    have been replaced by another attempt with the same rows (its note says so), or may be
#    committed already. Otherwise nothing is committed.
# 3. An earlier run may have committed all rows, or parts that do not fit this run's tasks
#    (:mod:`.whole_write`). If something is left to commit, the mark of the whole write is written.
# 4. The transactions are committed, 64 at a time. A commit that is refused or without a response is
#    not yet a failure: the mark in the part's group decides.
#
# A driver that dies after 1 or 2 leaves open transactions: the next run opens their ids, which
# aborts them, or their time-out does. A driver that dies in 4 leaves some parts committed. The next
# run's tasks find the marks of these, and write only the others. A reader may see the committed
# parts in the meantime, so the write is exactly once, but not atomic for readers while a driver is
# dead.

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import trio
from pyspark.sql.datasource import WriterCommitMessage

import trikafka
from trikafka import (
    Admin,
    DetachedTransaction,
    TransactionAbortableError,
    TransactionDescription,
    TransactionUndecidedError,
    TrikafkaError,
    UnsupportedVersionError,
)
from trikafka.toolkit import call_each

from .kafka_settings import by_option
from .whole_write import is_complete
from .write_options import WriteOptions
from .write_parts import (
    CompletePart,
    Part,
    Written,
    admin_settings,
    find_begun_part,
    find_complete_part,
    is_open,
)

#: Seconds that each transaction adds to the time limit for all ends; 4 ms were measured.
_EACH = 0.02
#: The limit for all aborts (seconds). The time-out of a transaction, or the next run, aborts the
#: rest.
_ABORT_LIMIT = 15.0
#: The limit for reading the marks and notes of parts (seconds).
_LOOK_LIMIT = 5.0
#: How long the Python workers of a cancelled job may go on (seconds): Spark looks for cancelled
#: tasks every two seconds, and kills a worker two seconds after that
#: (``spark.python.task.killTimeout``).
_DYING = 5.0
_log = logging.getLogger("trikafka.spark")
_Waiting = dict[Part, DetachedTransaction]


def commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the transactions of all tasks.

    Raises:
        TransactionError: Not all are committed in the end; or, before the first commit, an earlier
            run has committed parts that do not fit this run (:mod:`.whole_write`).
    """
    written = []
    for number, message in enumerate(messages):
        if not isinstance(message, Written):
            raise TrikafkaError(
                f"task {number} returned {message!r} instead of its part of the write, so nothing "
                "of the write is committed"
            )
        written.append(message)
    if any(each.account is not None for each in written):
        with by_option(options.kafka):
            trio.run(_commit, options, written)


def abort(
    options: WriteOptions,
    messages: Sequence[WriterCommitMessage | None],
    write: str | None = None,
) -> None:
    """Abort the transactions that are still open.

    If no task has returned a transaction, only ``write`` (:attr:`.Part.write`) shows which
    transactions belong to this try. Spark aborts a stream in a process that does not know
    ``write``.

    Raises nothing. A committed transaction stays committed, and one that cannot be reached ends by
    its time-out.
    """
    # The message of a task that has failed is None.
    if waiting := _waiting(each for each in messages if isinstance(each, Written)):
        trio.run(_abort, options, waiting, _unheard(messages))
    elif write is not None and any(not isinstance(each, Written) for each in messages):
        trio.run(_abort_begun, options, len(messages), write)


def _waiting(written: Iterable[Written]) -> _Waiting:
    return {
        each.account.part: each.transaction
        for each in written
        if each.account is not None and each.transaction is not None
    }


async def _commit(options: WriteOptions, written: Sequence[Written]) -> None:
    waiting = _waiting(written)
    async with trikafka.open_admin(**admin_settings(options)) as admin:
        closed = await _not_open(admin, waiting) if waiting else {}
        waiting |= (replaced := await _replaced(admin, closed))
        if lost := await _uncommitted(
            admin, {part: why for part, why in closed.items() if part not in replaced}
        ):
            raise TransactionAbortableError(_refusal(options, waiting, lost, 0))
        if await is_complete(options, admin, written):
            await _end(admin, waiting, commit=False, limit=_limit(options))
            return
        failed = await _end(
            admin, waiting, commit=True, limit=_limit(options) + _EACH * len(waiting)
        )
        failed = await _end_replaced(options, admin, waiting, failed)
        if not failed:
            return
        # The coordinator refuses what is over, and an attempt may have been heard that had no
        # response: the mark knows.
        lost = await _uncommitted(admin, failed)
    if lost:
        kind = TransactionUndecidedError if _undecided(lost) else TransactionAbortableError
        raise kind(_refusal(options, waiting, lost, len(waiting) - len(lost))) from next(
            iter(lost.values())
        )


async def _end_replaced(
    options: WriteOptions, admin: Admin, waiting: _Waiting, failed: dict[Part, TrikafkaError]
) -> dict[Part, TrikafkaError]:
    """Commit the transactions that have replaced those in ``failed``; return what still failed.

    A copy of a task may have finished after the driver's look at the open transactions. The part is
    then in the copy's transaction, and the other parts are already committed.
    """
    unknown = _undecided(failed)
    replaced = await _replaced(
        admin, {part: why for part, why in failed.items() if part not in unknown}
    )
    waiting |= replaced
    again = await _end(admin, replaced, commit=True, limit=_limit(options))
    return {part: why for part, why in failed.items() if part not in replaced} | again


def _unheard(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """Return the transactional ids of the tasks that have left no message.

    They are those of the other tasks, with the task's own number at the end.
    """
    for number, message in enumerate(messages):
        if isinstance(message, Written) and message.account is not None:
            begin = message.account.part.transactional_id.removesuffix(str(number))
            return [
                f"{begin}{other}"
                for other, left in enumerate(messages)
                if not isinstance(left, Written)
            ]
    return []


async def _abort(options: WriteOptions, waiting: _Waiting, unheard: list[str]) -> None:
    try:
        async with trikafka.open_admin(**admin_settings(options)) as admin:
            with trio.move_on_after(_LOOK_LIMIT), contextlib.suppress(TrikafkaError):
                waiting |= await _replaced(admin, await _not_open(admin, waiting))
            if unheard:
                await _until_killed()
            every = waiting | await _left_by_the_dead(admin, waiting, unheard)
            failed = await _end(
                admin, every, commit=False, limit=min(_ABORT_LIMIT, _limit(options))
            )
    except TrikafkaError as error:
        failed = dict.fromkeys(waiting, error)
    _warn_of(_undecided(failed))


def _warn_of(left: Iterable[Part]) -> None:
    """Log the parts whose transactions may still be open, if there are any."""
    if names := _names(left):
        _log.warning(
            (
                "some transactions of a failed write may still be open; the next run aborts them, "
                "or the broker after kafka.transaction.timeout.ms: %s"
            ),
            names,
        )


async def _abort_begun(options: WriteOptions, tasks: int, write: str) -> None:
    """Abort the transactions of a write of which no task has returned one.

    Spark does not call the commit of such a write, so no part of it is committed.
    """
    parts = [Part(f"{options.transactional_id}-{number}", "", 0, write) for number in range(tasks)]
    left = set(parts)
    with trio.move_on_after(_DYING + _ABORT_LIMIT), contextlib.suppress(TrikafkaError):
        async with trikafka.open_admin(**admin_settings(options)) as admin:
            await _until_killed()
            version = await _transaction_version(admin)
            found: _Waiting = {}

            async def look(part: Part) -> None:
                if (seen := await find_begun_part(admin, part)) is None:
                    left.discard(part)
                else:
                    found[part] = DetachedTransaction(part.transactional_id, *seen, version)

            with trio.move_on_after(_LOOK_LIMIT):
                await call_each(look, parts)
            failed = await _end(admin, found, commit=False, limit=_ABORT_LIMIT)
            left -= found.keys() - _undecided(failed).keys()
    _warn_of(left)


async def _transaction_version(admin: Admin) -> int:
    """Return the version of the transactions that producers make at this cluster."""
    found = (await admin.describe_features()).features.get("transaction.version")
    return 2 if found is not None and found.level >= 2 else 1


async def _until_killed() -> None:
    """Wait until Spark has killed the workers of the job, which may yet open transactions."""
    await trio.sleep(_DYING)


async def _left_by_the_dead(admin: Admin, waiting: _Waiting, unheard: list[str]) -> _Waiting:
    """Find the open transactions of tasks that have left no message, within a few seconds.

    Spark kills the Python workers of a failed job before they can abort, and readers would wait for
    the time-outs. A transaction with a note or begin of this write belongs to this write. Another
    open transaction is taken only if each task that succeeded still has its own transaction open.
    Otherwise a copy, or the next run, may have taken over, and the transaction may be theirs.
    """
    found: _Waiting = {}
    part, known = next(iter(waiting.items()))

    async def look(name: str) -> None:
        its = replace(part, transactional_id=name)
        # A BrokerResponseError means that the id has never had a transaction.
        if (whole := await find_complete_part(admin, its)) is not None:
            found[its] = whole.transaction
        elif (
            alone and (seen := (await admin.describe_transactions([name]))[name]).state == "Ongoing"
        ):
            found[its] = DetachedTransaction(
                name, seen.producer_id, seen.producer_epoch, known.version
            )
        elif (begun := await find_begun_part(admin, its)) is not None:
            found[its] = DetachedTransaction(name, *begun, known.version)

    with trio.move_on_after(_LOOK_LIMIT), contextlib.suppress(TrikafkaError):
        alone = not unheard or not await _not_open(admin, waiting)
        await call_each(look, unheard)
    return found


async def _replaced(admin: Admin, closed: dict[Part, TrikafkaError]) -> _Waiting:
    """Find the transactions of other attempts that have written the parts in ``closed``.

    Two attempts may finish at about the same time, and the one that Spark did not take may have
    fenced the other. Its transaction has the same rows.
    """

    async def look(part: Part) -> CompletePart | None:
        with trio.move_on_after(_LOOK_LIMIT):
            return await find_complete_part(admin, part)
        return None

    found, _ = await call_each(look, closed)
    return {part: whole.transaction for part, whole in found.items() if whole is not None}


async def _not_open(admin: Admin, waiting: _Waiting) -> dict[Part, TrikafkaError]:
    """Return the parts whose transactions are over, each with the error.

    The driver looks before the first commit: if one is over, none needs to be committed.
    """
    try:
        found = await admin.describe_transactions([part.transactional_id for part in waiting])
    except UnsupportedVersionError:
        return {}  # the service shows a transaction's state only when it is ended
    return {
        part: TransactionAbortableError(
            f"{transaction} is no longer open: {_state(found[part.transactional_id])}"
        )
        for part, transaction in waiting.items()
        if not is_open(transaction, found[part.transactional_id])
    }


def _state(found: TransactionDescription) -> str:
    return f"the coordinator has {found.state} of {found.producer_id}:{found.producer_epoch}"


async def _end(
    admin: Admin, waiting: _Waiting, *, commit: bool, limit: float
) -> dict[Part, TrikafkaError]:
    """End all transactions; return the parts that failed, each with its error."""
    until = trio.current_time() + limit

    async def end(part: Part) -> None:
        await admin.end_transaction(
            waiting[part], commit=commit, timeout=max(0.0, until - trio.current_time())
        )

    _, failed = await call_each(end, waiting)
    return failed


async def _uncommitted(
    admin: Admin, failed: dict[Part, TrikafkaError]
) -> dict[Part, TrikafkaError]:
    """Return the failed parts without a committed mark, and those whose mark cannot be read.

    A mark cannot be read, for example, while another transaction of the group is open.
    """
    marks, _ = await call_each(lambda part: part.committed(admin, timeout=_LOOK_LIMIT), failed)
    return {part: why for part, why in failed.items() if marks.get(part) is None}


def _undecided(failed: dict[Part, TrikafkaError]) -> dict[Part, TrikafkaError]:
    return {
        part: error
        for part, error in failed.items()
        if isinstance(error, trikafka.KafkaTimeoutError | ConnectionError)
    }


def _limit(options: WriteOptions) -> float:
    """Return the time limit for ending all transactions (seconds)."""
    return trikafka.AdminConfig(**admin_settings(options)).default_api_timeout


def _names(parts: Iterable[Part]) -> str:
    names = sorted(part.transactional_id for part in parts)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refusal(
    options: WriteOptions, waiting: _Waiting, lost: dict[Part, TrikafkaError], committed: int
) -> str:
    """Return the error's text: the state of the write, the cause, and what to do."""
    limit = options.settings.get("transaction_timeout_ms")
    if unknown := _undecided(lost):
        seen = (
            f"{committed} of {len(waiting)} parts of this write are committed, and the state of "
            f"{_names(unknown)} is unknown"
        )
    else:
        count = f"{committed} parts" if committed > 1 else f"{committed or 'no'} part"
        seen = (
            f"{count} of this write {'are' if committed > 1 else 'is'} committed, and "
            f"{_names(lost)} could not be committed"
        )
    return (
        f"{seen}: {next(iter(lost.values()))}. A write must commit within "
        f"kafka.transaction.timeout.ms ({limit} ms) of the first row of its first task, and no "
        "other write may use its transactionalId. Run the stream again, or the batch with the "
        "same exactlyOnceVersion: that run writes the missing parts."
    )
