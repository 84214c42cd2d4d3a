"""The frame around every client: its background tasks, its end, and its errors.

The body of the user's ``async with`` runs inside the nursery of the client's tasks. An exception of
the body is raised unchanged. The failure of a background task is raised as one
:exc:`ClientFailedError`. The client is closed in order on every way out, and no task is left.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Protocol, TypeVar

import trio

from ..._net.interrupts import interrupt_in, interrupts_unwrapped
from ..._net.singleflight import ClientClosed
from ...config import ClientConfig
from ...errors import ClientFailedError, IllegalStateError
from ...errors.groups import outlined, unwrapped

_log = logging.getLogger("trikafka")

#: The time that a cancelled exit may still take (seconds): to leave the group, or to send what is
#: in flight.
CANCELLED_CLOSE_LIMIT = 1.0
#: Tasks that run so long after their cancellation are logged (seconds).
_LATE = 5.0


class _Watch:
    """A task outside of a shield that notices a cancellation, until the ``with`` block ends.

    The task goes on waiting after the cancellation: a ``Cancelled`` raised here would replace the
    exception of the work or of the user's block. So only the end of the block ends it, and Ctrl-C
    must not come between: the nursery of the task would wait for ever.
    """

    def __init__(self) -> None:
        self.ended = False
        self._task: trio.lowlevel.Task | None = None

    @trio.lowlevel.enable_ki_protection
    async def run(self, cancelled: Callable[[object], trio.lowlevel.Abort]) -> None:
        if not self.ended:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(cancelled)

    def __enter__(self) -> None: ...

    @trio.lowlevel.enable_ki_protection
    def __exit__(self, *_: object) -> None:
        self.ended = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)


async def run_shielded(
    scope: trio.CancelScope,
    work: Callable[[], Awaitable[object]],
    hurried: Callable[[], object] = lambda: None,
) -> None:
    """Run ``work`` in ``scope``, whose shield protects it from surrounding cancellations.

    After such a cancellation ``work`` has ``CANCELLED_CLOSE_LIMIT`` seconds at most, even if
    ``scope`` has a later deadline, and ``hurried`` is called. The cancellation is not raised here
    but at the next checkpoint after the shield. So an exception that is leaving a block stays the
    same exception.
    """
    failure: BaseException | None = None
    watch = _Watch()

    def hurry(raise_cancel: object) -> trio.lowlevel.Abort:
        if not watch.ended:
            scope.deadline = min(scope.deadline, trio.current_time() + CANCELLED_CLOSE_LIMIT)
            hurried()
        return trio.lowlevel.Abort.FAILED  # go on waiting for the end of the work

    async with trio.open_nursery() as nursery:
        with watch:
            nursery.start_soon(watch.run, hurry)
            try:
                with scope:
                    await work()
            except BaseException as error:
                failure = error
    if failure is not None:
        try:
            raise failure
        finally:
            del failure


class Exit(Enum):
    """The ways in which the body of ``async with`` may end."""

    CLEAN = "clean"
    FAILED = "failed"
    CANCELLED = "cancelled"


def check_run(token: trio.lowlevel.TrioToken, thread: int | None = None) -> None:
    """Raise :exc:`IllegalStateError` in another Trio run than that of ``token``, a client's.

    Trio's own error there would be an ``AssertionError``, or a task would be scheduled in the wrong
    run. With the ``thread`` of the run, this also raises in other threads: only the thread of the
    run may change a client's state and wake its tasks. In that thread but outside of Trio, this
    raises nothing: calls that need Trio fail there by themselves.
    """
    try:
        here = trio.lowlevel.current_trio_token()
    except RuntimeError:
        if thread is not None and thread != threading.get_ident():
            raise IllegalStateError(
                "this client belongs to the thread that opened it, and was called in another one: "
                "there, call its methods by trio.from_thread.run_sync(method, ...), and async ones "
                "by trio.from_thread.run(method, ...)"
            ) from None
        return
    if here is not token:
        raise IllegalStateError(
            "this client was opened in another trio.run(), and works only there: open a client in "
            "each run, or call this one by trio.from_thread.run(..., trio_token=token), with the "
            "trio.lowlevel.current_trio_token() of its run"
        )


class Service:
    """The background tasks of one client.

    A task that fails ends the client, with its error as the cause. A cancelled scope around the
    client cancels the body but not these tasks: leaving in order needs them.
    """

    def __init__(self, body: trio.CancelScope) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self._body = body
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._ready = trio.Event()
        self._ended = trio.Event()
        self.closing = trio.CancelScope(shield=True)
        self.failure: Exception | None = None
        # A Ctrl-C that Python has raised in a background task.
        self.interrupt: BaseException | None = None
        self._on_failure: Callable[[Exception], None] = lambda error: None
        self._on_hurry: Callable[[float], None] = lambda deadline: None

    def __enter__(self) -> Service:
        return self

    def check(self) -> None:
        """Raise :exc:`IllegalStateError` in another run or thread than the client's."""
        check_run(self._token, self._thread)

    # A Ctrl-C before the stop would leave the block waiting for the host for ever.
    @trio.lowlevel.enable_ki_protection
    def __exit__(self, *_: object) -> None:
        self.stop()

    @trio.lowlevel.enable_ki_protection
    async def host(self) -> None:
        """Hold the nursery of the background tasks until :meth:`stop`."""
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._ready.set()
                    await trio.sleep_forever()
        finally:
            self._nursery = None
            self._ended.set()

    async def watch_end(self) -> None:
        """Log the tasks that go on after :meth:`stop`, because the client's block waits for them.

        Such a task is a plugin's, with a shielded scope or without a checkpoint.
        """
        with trio.CancelScope(shield=True), trio.move_on_after(_LATE):
            await self._ended.wait()
        if (nursery := self._nursery) is not None:
            _log.warning(
                "the client is closed, and waits for tasks that have not ended %g s after they "
                "were cancelled: %s",
                _LATE,
                ", ".join(sorted(task.name for task in nursery.child_tasks)),
            )

    async def ready(self) -> None:
        """Wait until tasks can be started.

        ``nursery.start`` cannot serve here. In a scope that is already cancelled it would wait for
        ever: it leaves a started task to its cancellation, and this task is shielded from that.
        """
        with trio.CancelScope(shield=True):
            await self._ready.wait()

    def stop(self) -> None:
        """Cancel all background tasks, later ones included."""
        self._scope.cancel()

    def start_soon(
        self,
        async_fn: Callable[..., Awaitable[object]],
        *args: object,
        blame: Callable[[Exception], Exception] = lambda error: error,
        name: str | None = None,
    ) -> None:
        """Start a background task; its error ends the ``async with`` block.

        Raises :exc:`ClientClosed` after the end. ``blame`` turns the task's error into the one that
        ends the client. The task has the ``name``, or that of ``async_fn``.
        """
        if self._nursery is None:
            raise ClientClosed("the client was closed")
        try:
            self._nursery.start_soon(self._guard, async_fn, args, blame, name=name or async_fn)
        except RuntimeError as error:  # the last task has just ended
            raise ClientClosed("the client was closed") from error

    # Ctrl-C belongs to the user's task, which waits for these tasks or soon will.
    @trio.lowlevel.enable_ki_protection
    async def _guard(
        self,
        async_fn: Callable[..., Awaitable[object]],
        args: tuple[object, ...],
        blame: Callable[[Exception], Exception],
    ) -> None:
        try:
            await async_fn(*args)
        except ClientClosed:
            pass  # the task has nothing left to do
        except Exception as error:
            self._stopped_by(_blamed(unwrapped(error), blame))
        except BaseExceptionGroup as group:
            cancelled, rest = group.split(trio.Cancelled)
            if rest is not None:
                self._stopped_by(interrupt_in(rest) or _blamed(unwrapped(rest), blame))
            if cancelled is not None:
                raise cancelled from None
        except (trio.Cancelled, GeneratorExit):
            raise
        # Ctrl-C, ``sys.exit`` in a function of the user, or another error that is no Exception,
        # such as that of ``pytest.fail()``. The nursery would put it into a group with the errors
        # that follow from it, and it might be lost there.
        except BaseException as interrupt:
            self._stopped_by(interrupt)

    def _stopped_by(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self.interrupt = self.interrupt or error
            self._body.cancel()
            self.hurry()

    def when_failed(self, callback: Callable[[Exception], None]) -> None:
        """Call ``callback`` with the failure that ends the client."""
        self._on_failure = callback

    def fail(self, error: Exception) -> None:
        """End the ``async with`` block with ``error`` as the cause; the first failure counts."""
        if self.failure is None:
            self.failure = error
            _log.debug("a background task failed", exc_info=error)
            self._body.cancel()
            self.hurry()
            self._on_failure(error)

    def when_hurried(self, shorten: Callable[[float], None]) -> None:
        """Call ``shorten`` with the new deadline when a close under way must end sooner."""
        self._on_hurry = shorten

    def hurry(self) -> None:
        """Limit a close under way to ``CANCELLED_CLOSE_LIMIT`` seconds.

        After a failure or a cancellation the response that the close waits for may never come.
        """
        self.closing.deadline = min(
            self.closing.deadline, trio.current_time() + CANCELLED_CLOSE_LIMIT
        )
        self._on_hurry(self.closing.deadline)


def _blamed(error: BaseException, blame: Callable[[Exception], Exception]) -> BaseException:
    return blame(error) if isinstance(error, Exception) else error


class Closing(Protocol):
    """The part of a client that the frame uses."""

    async def _finish(self, how: Exit) -> None:
        """Leave in order, within the limit.

        Runs shielded, after the body has ended. May be called twice.
        """


Client = TypeVar("Client", bound=Closing)


# What is shielded here, and from what
# ------------------------------------
#
# Three parts run inside one ``async with``: the body (the user's code), the background tasks, and
# the close. A cancellation from outside must end the body at once and must reach neither of the
# others: without heartbeats and connections a consumer could not commit or leave its group, and
# without senders a producer could not flush.
#
# 1. The background tasks are children of ``Service.host``, whose scope is shielded. They end by
#    ``stop`` alone. ``_guard`` catches their errors, so no nursery raises these in a group.
# 2. The body runs in ``body``, a scope of its own, not shielded. A failing background task cancels
#    just that (``Service.fail``); a close under way is shortened, but not cancelled.
# 3. The close runs in ``service.closing``, shielded, with the deadline close_timeout_ms. A scope
#    around that is cancelled before or during the close shortens it to a second (``hurry``): the
#    shield bounds how long the program is kept, it does not promise that everything is done.
#
# No exception is raised while the nursery is open: a nursery would wrap the body's exception in a
# group. ``error`` keeps it, and the very same object is raised below, after all tasks have ended.
# What is raised, by rank: Ctrl-C or SystemExit wherever Python raised it; then the body's own
# exception; then the background failure, as ClientFailedError. The others are logged or added as
# notes, so none is lost.
@asynccontextmanager
async def run_client(
    config: ClientConfig, start: Callable[[Service], Awaitable[Client]]
) -> AsyncIterator[Client]:
    """Open a client with ``start``, run the body with it, and close it on every way out."""
    error: BaseException | None = None
    body = trio.CancelScope()
    service = Service(body)
    try:
        async with trio.open_nursery() as nursery:
            with service:
                nursery.start_soon(service.host)
                await service.ready()
                client: Client | None = None
                try:
                    with body:
                        client = await _started(start, service)
                        yield client
                except BaseException as failed:
                    error = failed
                try:
                    if client is not None:
                        await _close(client, config, error, service)
                except BaseException as failed:
                    if (interrupt := interrupt_in(failed)) is not None:
                        service.interrupt = service.interrupt or interrupt
                    elif service.failure is None:
                        error = failed if error is None else _with(error, failed)
                    else:
                        _log.debug(
                            "a client that had failed could not be closed in order", exc_info=failed
                        )
            nursery.start_soon(service.watch_end)
    # The body's exception is kept above: this is Ctrl-C between the steps, or the outer scope.
    except BaseException as failed:
        if (interrupt := interrupt_in(failed)) is None:
            raise
        service.interrupt = service.interrupt or interrupt
    if service.interrupt is not None:
        raise service.interrupt
    if error is not None and service.failure is not None:
        _log.error("the client failed in the background", exc_info=service.failure)
    if error is None and service.failure is not None:
        text = outlined(service.failure) or repr(service.failure)
        raise ClientFailedError(f"the client failed in the background: {text}") from service.failure
    if error is not None:
        try:
            raise error
        finally:
            del error, service


async def _started(start: Callable[[Service], Awaitable[Client]], service: Service) -> Client:
    """Start the client.

    A Ctrl-C in it is raised as it is, not in the group of a nursery whose task met it.
    """
    with interrupts_unwrapped():
        return await start(service)


async def _close(
    client: Closing, config: ClientConfig, error: BaseException | None, service: Service
) -> None:
    how = (
        Exit.CLEAN
        if error is None
        else Exit.FAILED
        if isinstance(error, Exception)
        else Exit.CANCELLED
    )
    if error is None and service.failure is not None:
        how = Exit.FAILED  # the body was cut short: its records may not be processed
    if service.interrupt is not None or (
        isinstance(error, BaseExceptionGroup) and error.split(trio.Cancelled)[0] is not None
    ):
        how = Exit.CANCELLED
    limit = config.close_timeout_ms / 1000
    if how is Exit.CANCELLED:
        limit = min(limit, CANCELLED_CLOSE_LIMIT)
    service.closing.deadline = trio.current_time() + limit  # a later failure shortens it
    await run_shielded(service.closing, lambda: client._finish(how), service.hurry)


def _with(error: BaseException, failed: BaseException) -> BaseException:
    """Return the body's exception, with a note about the error of the close."""
    if isinstance(failed, Exception):
        text = "".join(traceback.format_exception(failed, chain=False)).rstrip()
        error.add_note(f"When the client was closed after this, something else failed:\n{text}")
        _log.error("closing failed too, after an exception of the program", exc_info=failed)
    return error
