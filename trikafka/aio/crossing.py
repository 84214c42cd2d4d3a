"""Calls over the border: from asyncio into Trio, and from Trio to asyncio.

Both wait for the end of the other side, whatever happens on their own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from ..errors import ClientFailedError, ConfigurationError, IllegalStateError
from .guest import Guest, resolve

T = TypeVar("T")

#: The nursery of the Trio task that waits for the running listener or handler. Calls that the
#: listener makes are its children there, so that trikafka recognizes them as calls of a listener.
_around: contextvars.ContextVar[trio.Nursery | None] = contextvars.ContextVar(
    "trikafka.aio around", default=None
)


class Wait:
    """The wait of an asyncio task for something on Trio's side that ends by :meth:`finish`."""

    __slots__ = ("_future", "done", "guest")

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.done = False
        self._future: asyncio.Future[None] | None = None

    def finish(self) -> None:
        """End the wait. Called on Trio's side."""
        self.done = True
        if self._future is not None and not self._future.done():
            resolve(self._future)

    async def until_done(self, cancel: Callable[[], None]) -> asyncio.CancelledError | None:
        """Wait until :meth:`finish`; a cancellation calls ``cancel`` and waits on.

        Returns:
            The cancellation, for the caller to raise.
        """
        # A cancelled task cancels the future that it awaits, so each round has a new one. Libraries
        # with scopes cancel a task again in each turn of the loop: then this goes round once a
        # turn, until Trio's side has ended.
        cancelled = None
        while not self.done:
            self._future = self.guest.loop.create_future()
            try:
                await self._future
            except asyncio.CancelledError as error:
                cancelled = error
                cancel()
                self.guest.wake()
        return cancelled


class Call(Generic[T]):
    """One call of an async function on Trio's side."""

    __slots__ = ("_error", "_function", "_scope", "_value", "_wait")

    def __init__(self, guest: Guest, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._scope = trio.CancelScope()
        self._wait = Wait(guest)
        self._value: list[T] = []
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Make the call. In a Trio task."""
        try:
            with self._scope:
                self._value.append(await self._function())
        except trio.Cancelled:  # of the guest, which ends
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._wait.finish()

    async def outcome(self) -> T:
        """Wait for the call and return its value. In an asyncio task."""
        if (cancelled := await self._wait.until_done(self._scope.cancel)) is not None:
            try:
                raise cancelled
            finally:
                del cancelled, self
        if self._value:
            return self._value[0]
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self
        raise trio.ClosedResourceError("the client was closed during the call")


async def cross(guest: Guest, function: Callable[[], Awaitable[T]]) -> T:
    """Call an async function on Trio's side, in a copy of the caller's context; return its value.

    When cancelled, cancels the function and waits for its end.
    """
    call = Call(guest, function)
    spawn(guest, call.run)
    return await call.outcome()


def spawn(guest: Guest, function: Callable[[], Awaitable[object]]) -> None:
    """Start a Trio task, as a child of the listener or handler that the caller runs in, if any."""
    nursery = _around.get()
    try:
        if nursery is None or nursery.cancel_scope.cancel_called:
            guest.nursery.start_soon(function)
        else:
            nursery.start_soon(function)
    except RuntimeError:  # the caller has outlived the listener or handler that started it
        guest.nursery.start_soon(function)
    guest.wake()


async def on_host(
    guest: Guest, what: str, function: Callable[..., object], *arguments: object
) -> Any:
    """Call the user's function in a task of asyncio, in a copy of this task's context.

    In a Trio task. ``what`` names the function in errors. When cancelled, cancels that task and
    waits for its end.
    """
    # The nursery holds the calls that the function makes on Trio's side. They end before it does,
    # since they belong to its task. The exception is kept, because a nursery would raise it in a
    # group.
    await trio.lowlevel.checkpoint_if_cancelled()
    task: asyncio.Task[Any] | None = None
    async with trio.open_nursery() as nursery:
        context = contextvars.copy_context()
        context.run(_around.set, nursery)
        sleeping = trio.lowlevel.current_task()
        asked = False

        def ended(_: object) -> None:
            trio.lowlevel.reschedule(sleeping)
            guest.wake()

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal asked
            asked = True
            assert task is not None
            task.cancel()
            return trio.lowlevel.Abort.FAILED

        task = guest.loop.create_task(_called(what, function, arguments), context=context)
        task.add_done_callback(ended)
        await trio.lowlevel.wait_task_rescheduled(abort)
    if not task.cancelled():
        return task.result()
    if asked:
        await trio.lowlevel.checkpoint_if_cancelled()
    raise IllegalStateError(
        f"{what} was cancelled, and not by trikafka: it awaited a cancelled task"
    )


async def _called(what: str, function: Callable[..., object], arguments: tuple[object, ...]) -> Any:
    result = function(*arguments)
    if not inspect.isawaitable(result):
        raise ConfigurationError(
            f"{what} must be an async function (async def): it returned {result!r:.100}"
        )
    return await result


# --- clients ------------------------------------------------------------------------------------


class Client:
    """What all clients have: the guest, and the call of the Trio client's methods."""

    def __init__(self, guest: Guest, client: Any) -> None:
        self._guest = guest
        self._client = client
        self._failure: BaseException | None = None  # of the background, once the client has ended

    def __repr__(self) -> str:
        return repr(self._client).replace("<trikafka.", "<trikafka.aio.", 1)

    def _failed(self, error: BaseException | None) -> None:
        """Record the failure that has ended the client in the background."""
        self._failure = error

    def _check(self) -> None:
        self._guest.check_loop()
        if self._failure is not None:
            raise ClientFailedError("the client has failed") from self._failure
        if self._guest.ending:
            raise trio.ClosedResourceError("this client is closed")
