"""``run_queue``: the worker of a share group, with concurrent handlers, retries and rejections."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from .. import Delivery, Record, ShareConsumer, open_share_consumer
from ..config import ShareConsumerConfig, settings_of
from ..config.whole import is_whole
from ..errors import (
    ConfigurationError,
    CorruptRecordError,
    DeserializationError,
    IllegalStateError,
    LockLostError,
)
from ..errors.cut_off import await_user_call
from ..errors.groups import members, outlined
from ..toolkit import backoff, interrupts_unwrapped
from .callbacks import called, check_async
from .handling import RetryPolicy, is_fatal, is_not_the_records
from .run_tasks import check_retry, check_stop_on
from .signals import stop_on_signal
from .tracebacks import Tracebacks

_log = logging.getLogger("trikafka.tasks")

#: The arguments beside the settings, for suggestions.
_ARGUMENTS = ("concurrency", "retry", "reject_after", "stop_on")
#: Arguments of :func:`run_tasks` that a share group has no use for, and what there is instead.
_ONLY_OF_RUN_TASKS = {
    "dead_letter": (
        ": the brokers write dead letters, if the group has errors.deadletterqueue.topic.name"
    ),
    "batches": ": open_share_consumer() has batches()",
    "producer": "",
    "prepare": "",
    "task_timeout_ms": "",
}


async def run_queue(
    handler: Callable[[Delivery[Any, Any]], Awaitable[object]],
    *topics: str,
    group_id: str,
    concurrency: int = 1,
    retry: RetryPolicy | None = None,
    reject_after: int | None = None,
    stop_on: Collection[signal.Signals] = (),
    **settings: Any,
) -> None:
    """Call ``await handler(delivery)`` for each record of a share group, until cancelled.

    A delivery is accepted once the handler returns, unless the handler itself has called
    ``release()`` or ``reject()``. While it runs, the record's lock is renewed. A handler whose lock
    is lost is cancelled, which a warning reports.

    An exception of the handler releases the record, with a warning, whatever the handler has called
    before: the group delivers it again, to any member. From the delivery ``reject_after`` on it is
    rejected instead. Without that setting the group's own limit (``share.delivery.count.limit``, 5
    by default) decides. An error that every record would cause (a client or a stream that the
    program has closed, no permission) releases the record and ends the run. If such an error can
    pass by itself, name its class in ``retry``.

    On a signal of ``stop_on`` the worker takes no more records, waits for the handlers (at most
    ``close_timeout_ms``), acknowledges, and leaves the group. A record that waits for its next
    attempt is released.

    Args:
        handler: An async function of a :class:`Delivery`.
        topics: Names of topics.
        group_id: The share group.
        concurrency: The number of records that are handled at once.
        retry: The handler's errors to retry at once, and how often, before they count.
        reject_after: The delivery of a record that is its last one, counted from 1.
        stop_on: Signals that end the run in order. Only for a run in the main thread.
        settings: Those of :func:`open_share_consumer`. Unless given, ``acquire`` is ``"records"``
            and ``max_in_flight`` twice the concurrency, so that no worker hoards records.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        TrikafkaError: The member cannot go on.

    When cancelled, handlers are cut off, and their records are released within a second.
    """
    given = queue_settings(handler, topics, concurrency, retry, reject_after, stop_on, settings)
    async with open_share_consumer(*topics, group_id=group_id, **given) as queue:
        await QueueRun(queue, handler, retry, reject_after).run(concurrency, tuple(stop_on))


def queue_settings(
    handler: object,
    topics: Sequence[object],
    concurrency: int,
    retry: RetryPolicy | None,
    reject_after: int | None,
    stop_on: Collection[signal.Signals],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Check the arguments of a run; return the settings of its share consumer."""
    check_async("handler", handler, "delivery")
    for name, value in (("concurrency", concurrency), ("reject_after", reject_after)):
        if value is None and name == "reject_after":
            continue
        if not is_whole(value, 1):
            raise ConfigurationError(f"{name} must be a whole number from 1, not {value!r}")
    check_retry(retry)
    check_stop_on(stop_on)
    if not topics:
        raise ConfigurationError(
            "run_queue() needs the names of topics: "
            "trikafka.run_queue(handler, 'jobs', group_id='workers', ...)"
        )
    _check_names(settings)
    return {"acquire": "records", "max_in_flight": 2 * concurrency, **settings}


def _check_names(settings: Mapping[str, Any]) -> None:
    """Raise :exc:`ConfigurationError` for an unknown name: the error names this function."""
    known = settings_of(ShareConsumerConfig)
    if all(name in known for name in settings):
        return
    for name, instead in _ONLY_OF_RUN_TASKS.items():
        if name in settings:
            raise ConfigurationError(f"run_queue() has no {name}=, as run_tasks() has{instead}")
    # Raises for the unknown name, with a suggestion.
    ShareConsumerConfig.build({**settings, "group_id": "g"}, "run_queue()", _ARGUMENTS)


class QueueRun:
    """One run: the tasks, and whether it is being stopped."""

    def __init__(
        self,
        queue: ShareConsumer[Any, Any],
        handler: Callable[[Delivery[Any, Any]], Awaitable[object]],
        retry: RetryPolicy | None,
        reject_after: int | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._retry = retry
        self._reject_after = reject_after
        self._stopped = trio.Event()
        self._error: Exception | None = None
        self._receives: set[trio.CancelScope] = set()
        self._handlers = trio.CancelScope()
        self._tracebacks = Tracebacks()

    async def run(self, concurrency: int, stop_on: tuple[signal.Signals, ...]) -> None:
        """Run the workers until they are stopped or one fails; raise what failed."""
        with self._handlers, interrupts_unwrapped():
            async with trio.open_nursery() as nursery:
                if stop_on:
                    nursery.start_soon(stop_on_signal, stop_on, self.stop)
                async with trio.open_nursery() as workers:
                    for _ in range(concurrency):
                        workers.start_soon(self._work)
                nursery.cancel_scope.cancel()
        if self._handlers.cancelled_caught:
            _log.warning(
                "handlers did not end within close_timeout_ms: they were cancelled, and their "
                "records are released"
            )
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Take no more records; give the handlers at work the time of a close."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        for scope in self._receives:
            scope.cancel()
        self._handlers.deadline = trio.current_time() + self._queue.config.close_timeout_ms / 1000

    async def _work(self) -> None:
        try:
            while not self._stopped.is_set():
                delivery = await self._receive()
                if delivery is not None:
                    await self._handle(delivery)
        except Exception as error:
            # The others finish what they have in hand.
            self._error = self._error or error
            self.stop()

    async def _receive(self) -> Delivery[Any, Any] | None:
        with trio.CancelScope() as scope:
            self._receives.add(scope)
            try:
                return await self._queue.receive()
            except CorruptRecordError as error:  # says what becomes of its records
                _log.warning("records cannot be read, and no handler gets them: %s", error)
            except DeserializationError as error:
                _log.warning(
                    "a record is released, because it cannot be deserialized; the group delivers "
                    "it again, unless this was its last delivery (share.delivery.count.limit): %s",
                    error,
                )
            finally:
                self._receives.discard(scope)
        return None

    async def _handle(self, delivery: Delivery[Any, Any]) -> None:
        try:
            async with delivery:
                try:
                    await self._attempt(delivery)
                except Exception as error:
                    # Leaving the block with it releases the record, and ends the run. To go on
                    # would use up the deliveries of every record.
                    if any(map(_ends_the_run, members(error))):
                        raise
                    self._failed(delivery, error)
        except LockLostError as error:
            _log.warning("the handler of %r was cut off: %s", delivery, error)

    async def _attempt(self, delivery: Delivery[Any, Any]) -> None:
        async def call() -> None:
            await called("handler", self._handler, delivery)

        failures = 0
        while True:
            try:
                await await_user_call(f"the handler of {delivery!r}", call, _log)
                return
            except Exception as error:
                # What the failed attempt acknowledged must not count: not for the next attempt, nor
                # if the pause before it is cut off.
                delivery.retract()
                failures += 1
                policy = self._retry
                # A handler with a nursery raises a group, which is judged by its members.
                if (
                    policy is None
                    or any(map(is_fatal, members(error)))
                    or not (
                        isinstance(error, policy.on)
                        or all(isinstance(member, policy.on) for member in members(error))
                    )
                    or failures >= policy.attempts
                ):
                    raise
                delay = backoff(failures, policy.backoff_ms, policy.backoff_max_ms)
                if not await self._pause(delay):
                    # Not rejected, even as the last delivery: the record has attempts left.
                    with suppress(IllegalStateError):  # the handler has outlasted its time
                        delivery.release()
                    _log.info(
                        "no next attempt at %r, as the run stops: it is %s",
                        delivery,
                        _released(delivery),
                    )
                    return
            except BaseException:  # the handler is cut off
                delivery.retract()
                raise

    async def _pause(self, seconds: float) -> bool:
        """Wait, at most until the run stops; return whether to go on."""
        with trio.move_on_after(seconds):
            await self._stopped.wait()
        return not self._stopped.is_set()

    def _failed(self, delivery: Delivery[Any, Any], error: Exception) -> None:
        rejects = self._reject_after is not None and delivery.delivery_count >= self._reject_after
        what = "rejected" if rejects else _released(delivery)
        try:
            if rejects:
                delivery.reject()
            else:
                delivery.release()
        except IllegalStateError:
            # The handler acknowledged, outlasted its time, and failed then.
            what = "acknowledged already"
        for member in members(error):
            if _takes_a_record(member):
                member.add_note(
                    "a handler of run_queue gets a delivery, not a record: use delivery.record"
                )
        others = self._tracebacks.others_until_due(error, trio.current_time())
        more = f" ({others} more failed there since the last traceback)" if others else ""
        _log.warning(
            "the handler failed at %r, which is %s: %s: %s%s",
            delivery,
            what,
            type(error).__name__,
            outlined(error),
            more,
            exc_info=None if others is None else error,
        )


def _released(delivery: Delivery[Any, Any]) -> str:
    """Return what becomes of a released delivery, for the log.

    The broker archives a record that is released at its last delivery. The group's limit, which
    this client need not know nor be allowed to read, is at least 2.
    """
    if delivery.delivery_count < 2:
        return "released"
    return "released, or archived if this reaches the group's share.delivery.count.limit"


def _takes_a_record(member: BaseException) -> bool:
    """Return whether the handler looked for an attribute of a record at the delivery.

    So does a handler that was written for :func:`run_tasks`.
    """
    # Objects of the program are not touched: their attributes may be properties that do anything.
    return (
        isinstance(member, AttributeError)
        and type(member.obj).__name__ == "Delivery"
        and type(member.obj).__module__.startswith("trikafka.")
        and hasattr(Record, member.name or "")
    )


def _ends_the_run(member: BaseException) -> bool:
    """Return whether every record would meet this error of a handler."""
    # No client raises BrokenResourceError: a peer of the handler's has closed a connection, as it
    # may do with each record. A standard socket says so by an OSError, which ends no run either.
    if isinstance(member, trio.BrokenResourceError):
        return False
    return is_fatal(member) or is_not_the_records(member)
