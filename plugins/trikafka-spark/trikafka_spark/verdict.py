"""The driver's verdict on a write that is exactly once: it commits what all tasks have left open, or aborts it.

Each task's transaction is one of its own, so the coordinators end them one by one: there is no moment at which all become visible
together. But none is committed before all tasks have succeeded and all transactions have been seen to be open still.

What a driver that dies in between leaves behind, the next run of the write finds: the mark of a part that was committed is there,
and a part that was not is open, or aborted, and is written again by a task that opens the same transactional id.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

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

from .parts import Part, Written, admin_settings, find_whole, is_open
from .write_options import WriteOptions

#: Transactions that are ended at the same time, and what each adds (seconds) to the time that all have: 4 ms were measured.
_AT_ONCE, _EACH = 64, 0.02
#: The longest (seconds) that aborting takes: what is not aborted then, its time-out will abort, or the next run.
_ABORT_LIMIT = 15.0
#: And that a look at the mark of a part takes which was not committed as it should.
_LOOK_LIMIT = 5.0
_log = logging.getLogger("trikafka.spark")
T = TypeVar("T")
_Waiting = dict[Part, DetachedTransaction]


def commit(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the transactions of all tasks. Raises :exc:`trikafka.TransactionError` if that is not so of all of them in the end."""
    if waiting := _waiting(messages, every=True):
        trio.run(_commit, options, waiting)


def abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort those that are open still. Raises nothing: what is committed stays so, and what cannot be reached ends by itself."""
    if waiting := _waiting(messages, every=False):
        trio.run(_abort, options, waiting, _unheard(messages))


def _waiting(messages: Sequence[WriterCommitMessage | None], *, every: bool) -> _Waiting:
    found: _Waiting = {}
    for number, message in enumerate(messages):
        if not isinstance(message, Written):
            if not every:
                continue  # None: its task has failed
            raise TrikafkaError(f"task {number} of this write has left {message!r} for the driver, so nothing of it is committed")
        if message.part is not None and message.transaction is not None:
            found[message.part] = message.transaction
    return found


async def _commit(options: WriteOptions, waiting: _Waiting) -> None:
    async with trikafka.open_admin(**admin_settings(options)) as admin:
        closed = await _not_open(admin, waiting)
        waiting |= (replaced := await _replaced(admin, closed))
        if lost := await _uncommitted(admin, {part: why for part, why in closed.items() if part not in replaced}):
            raise TransactionAbortableError(_refusal(options, waiting, lost, 0))
        failed = await _end(admin, waiting, commit=True, limit=_limit(options) + _EACH * len(waiting))
        failed = await _end_replaced(options, admin, waiting, failed)
        if not failed:
            return
        # The coordinator refuses what is over, and an attempt may have been heard that had no response: the mark knows.
        lost = await _uncommitted(admin, failed)
    if lost:
        kind = TransactionUndecidedError if _undecided(lost) else TransactionAbortableError
        raise kind(_refusal(options, waiting, lost, len(waiting) - len(lost))) from next(iter(lost.values()))


async def _end_replaced(
    options: WriteOptions, admin: Admin, waiting: _Waiting, failed: dict[Part, TrikafkaError]
) -> dict[Part, TrikafkaError]:
    """A copy may have become whole since the driver looked: the part is in its transaction, and the others are committed."""
    unknown = _undecided(failed)
    replaced = await _replaced(admin, {part: why for part, why in failed.items() if part not in unknown})
    waiting |= replaced
    again = await _end(admin, replaced, commit=True, limit=_limit(options))
    return {part: why for part, why in failed.items() if part not in replaced} | again


def _unheard(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """The transactional ids of the tasks that have left no message, as those of the others: with the task's number at the end."""
    for number, message in enumerate(messages):
        if isinstance(message, Written) and message.part is not None:
            begin = message.part.transactional_id.removesuffix(str(number))
            return [f"{begin}{other}" for other, left in enumerate(messages) if not isinstance(left, Written)]
    return []


async def _abort(options: WriteOptions, waiting: _Waiting, unheard: list[str]) -> None:
    try:
        async with trikafka.open_admin(**admin_settings(options)) as admin:
            with trio.move_on_after(_LOOK_LIMIT), contextlib.suppress(TrikafkaError):
                waiting |= await _replaced(admin, await _not_open(admin, waiting))
            every = waiting | await _left_by_the_dead(admin, waiting, unheard)
            failed = await _end(admin, every, commit=False, limit=min(_ABORT_LIMIT, _limit(options)))
    except TrikafkaError as error:
        failed = dict.fromkeys(waiting, error)
    if _undecided(failed):
        names = _names(_undecided(failed))
        _log.warning("a failed write is not wholly aborted yet; kafka.transaction.timeout.ms will, or the next run: %s", names)


async def _left_by_the_dead(admin: Admin, waiting: _Waiting, unheard: list[str]) -> _Waiting:
    """Find the open transactions of tasks that have left no message, for a few seconds.

    Spark kills the Python workers of a job that has failed, before they can abort, and readers would wait for the time-out. Where
    there is this write's own note of one, it is this write's. The others are only if nobody has taken the write over: those that
    succeeded must have theirs still. If one has not, nobody can tell whether a copy or the next run has fenced it, and they are left.
    """
    found: _Waiting = {}
    part, known = next(iter(waiting.items()))

    async def look(name: str) -> None:
        its = replace(part, transactional_id=name)
        with contextlib.suppress(TrikafkaError):  # BrokerResponseError: it has never had a transaction
            if (whole := await find_whole(admin, its)) is not None:
                found[its] = whole.transaction
            elif alone and (seen := (await admin.describe_transactions([name]))[name]).state == "Ongoing":
                found[its] = DetachedTransaction(name, seen.producer_id, seen.producer_epoch, known.version)

    with trio.move_on_after(_LOOK_LIMIT), contextlib.suppress(TrikafkaError):
        alone = not unheard or not await _not_open(admin, waiting)
        await _side_by_side(look, unheard)
    return found


async def _replaced(admin: Admin, closed: dict[Part, TrikafkaError]) -> _Waiting:
    """Another attempt of this write may have written the part, too, and fenced the one whose message Spark has taken: it was as
    quick as that one. Its transaction has the same rows."""
    found: _Waiting = {}

    async def look(part: Part) -> None:
        with trio.move_on_after(_LOOK_LIMIT), contextlib.suppress(TrikafkaError):
            if (whole := await find_whole(admin, part)) is not None:
                found[part] = whole.transaction

    await _side_by_side(look, closed)
    return found


async def _not_open(admin: Admin, waiting: _Waiting) -> dict[Part, TrikafkaError]:
    """Those whose transaction is over before the first is committed: then none has to be."""
    try:
        found = await admin.describe_transactions([each.transactional_id for each in waiting.values()])
    except UnsupportedVersionError:
        return {}  # before Kafka 3.0: each is told apart only by its end
    return {
        part: TransactionAbortableError(f"{transaction} is not open any more: {_state(found[part.transactional_id])}")
        for part, transaction in waiting.items()
        if not is_open(transaction, found[part.transactional_id])
    }


def _state(found: TransactionDescription) -> str:
    return f"the coordinator has {found.state} of {found.producer_id}:{found.producer_epoch}"


async def _end(admin: Admin, waiting: _Waiting, *, commit: bool, limit: float) -> dict[Part, TrikafkaError]:
    """End all; returns those that could not be ended so, and why."""
    failed: dict[Part, TrikafkaError] = {}
    until = trio.current_time() + limit

    async def end(part: Part) -> None:
        try:
            await admin.end_transaction(waiting[part], commit=commit, timeout=max(0.0, until - trio.current_time()))
        except TrikafkaError as error:
            failed[part] = error

    await _side_by_side(end, waiting)
    return failed


async def _uncommitted(admin: Admin, failed: dict[Part, TrikafkaError]) -> dict[Part, TrikafkaError]:
    """Those of them whose mark is not there, or cannot be read: while another transaction has it, say."""
    left = dict(failed)

    async def look(part: Part) -> None:
        with contextlib.suppress(TrikafkaError):
            if await part.is_committed(admin, timeout=_LOOK_LIMIT):
                del left[part]

    await _side_by_side(look, failed)
    return left


async def _side_by_side(work: Callable[[T], Awaitable[None]], things: Iterable[T]) -> None:
    limiter = trio.CapacityLimiter(_AT_ONCE)

    async def one(thing: T) -> None:
        async with limiter:
            await work(thing)

    async with trio.open_nursery() as nursery:
        for thing in things:
            nursery.start_soon(one, thing)


def _undecided(failed: dict[Part, TrikafkaError]) -> dict[Part, TrikafkaError]:
    return {part: error for part, error in failed.items() if isinstance(error, trikafka.KafkaTimeoutError | ConnectionError)}


def _limit(options: WriteOptions) -> float:
    """How long (seconds) the end of all transactions may take."""
    return trikafka.AdminConfig(**admin_settings(options)).default_api_timeout


def _names(failed: dict[Part, TrikafkaError]) -> str:
    names = sorted(part.transactional_id for part in failed)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _refusal(options: WriteOptions, waiting: _Waiting, lost: dict[Part, TrikafkaError], committed: int) -> str:
    """What there is to see, why, and what to do."""
    limit, unknown = options.settings.get("transaction_timeout_ms"), _undecided(lost)
    if unknown:
        seen = f"{committed} of {len(waiting)} parts of this write are committed, and of {_names(unknown)} it is not known"
    else:
        seen = f"{committed or 'no'} part{'s' * (committed > 1)} of this write {'are' if committed > 1 else 'is'} committed"
        seen += f", and {_names(lost)} could not be"
    return (
        f"{seen}: {next(iter(lost.values()))}. From the first row of its first task to its commit a write has"
        f" kafka.transaction.timeout.ms ({limit} ms), and no other write may have its transactionalId."
        " Run the stream, or the batch with its exactlyOnceVersion, again: it writes what is missing."
    )
