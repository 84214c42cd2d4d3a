"""Calls over the border: from asyncio into Trio, and from Trio to asyncio.

Both wait for the end of the other side, whatever happens on their own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import trio

from ..errors import ClientFailedError, IllegalStateError
from ..tasks.callbacks import NotAsyncError
from ..toolkit import Caller, calling_for, calling_for_host
from .guest import Guest, resolve

T = TypeVar("T")

#: The Trio task that waits for the running listener or handler: trikafka recognizes the calls of a
#: listener by it. Tasks that the listener starts inherit it.
_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar(
    "trikafka.aio caller", default=None
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
        if self._future is not None:
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

    __slots__ = ("_caller", "_error", "_function", "_scope", "_task", "_value", "_wait")

    def __init__(self, guest: Guest, function: Callable[[], Awaitable[T]]) -> None:
        self._caller = _caller.get()
        self._task = asyncio.current_task()
        self._function = function
        self._scope = trio.CancelScope()
        self._wait = Wait(guest)
        self._value: list[T] = []
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Make the call. In a Trio task."""
        try:
            inside = nullcontext() if self._caller is None else calling_for(self._caller)
            with self._scope, inside, calling_for_host(self._task):
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
    if guest.ending:
        raise trio.ClosedResourceError("this client is closed")
    call = Call(guest, function)
    guest.nursery.start_soon(call.run)
    guest.wake()
    return await call.outcome()


async def on_host(
    guest: Guest, what: str, function: Callable[..., object], *arguments: object
) -> Any:
    """Call the user's function in a task of asyncio, in a copy of this task's context.

    In a Trio task. ``what`` names the function in errors. When cancelled, cancels that task and
    waits for its end.
    """
    # The function runs in a turn of asyncio's loop, never in Trio's tick, in which libraries would
    # learn from sniffio that Trio runs. A task factory may run a task's first step at once (eager
    # tasks). So with a factory, the task is made in the next turn.
    await trio.lowlevel.checkpoint_if_cancelled()
    loop = guest.loop
    if loop.is_closed():
        raise IllegalStateError(f"the event loop of {what} was closed")
    task: asyncio.Task[Any] | None = None
    starting: asyncio.Handle | None = None
    failed: Exception | None = None  # of a task factory
    asked = False
    abandoned = False
    sleeping = trio.lowlevel.current_task()
    caller = Caller()
    context = contextvars.copy_context()
    context.run(_caller.set, caller)

    def start() -> None:
        nonlocal task, failed
        called = _called(what, function, arguments)
        try:
            # Not by the argument ``context``: a task factory need not know it.
            task = context.run(loop.create_task, called)
        except Exception as error:
            called.close()
            failed = error
            loop.call_soon(ended, None)
        else:
            task.add_done_callback(ended)

    def ended(_: object) -> None:
        if not abandoned:
            trio.lowlevel.reschedule(sleeping)
            guest.wake()

    def abort(_: object) -> trio.lowlevel.Abort:
        nonlocal asked, abandoned
        asked = True
        if loop.is_closed():  # no turn comes in which the task could end
            abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED
        if task is not None:
            task.cancel()
        elif failed is None:
            assert starting is not None
            starting.cancel()
            return trio.lowlevel.Abort.SUCCEEDED
        return trio.lowlevel.Abort.FAILED

    if loop.get_task_factory() is None:
        start()
    else:
        starting = loop.call_soon(start)
    try:
        await trio.lowlevel.wait_task_rescheduled(abort)
    finally:
        caller.end()
    if failed is not None:
        raise failed
    assert task is not None
    if not task.cancelled():
        return task.result()
    if asked:
        await trio.lowlevel.checkpoint_if_cancelled()
    raise IllegalStateError(
        f"{what} was cancelled, and not by trikafka: it awaited a cancelled task"
    )


class AsyncioHost:
    """The asyncio program of a guest: trikafka calls the user's functions in it.

    See :func:`trikafka.toolkit.set_host`.
    """

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def current_task(self) -> asyncio.Task[Any] | None:
        """Return asyncio's running task."""
        return asyncio.current_task()

    async def run(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call a function that calls async deserializers."""
        await on_host(self._guest, "an async deserializer", function)

    async def let_others_run(self) -> None:
        """Let other tasks of asyncio run."""
        await asyncio.sleep(0)


async def _called(what: str, function: Callable[..., object], arguments: tuple[object, ...]) -> Any:
    result = function(*arguments)
    if not inspect.isawaitable(result):
        raise NotAsyncError(
            f"{what} must be an async function (async def): it returned {result!r:.100}"
        )
    return await result


# --- clients ------------------------------------------------------------------------------------


class Client:
    """The part that clients and streams share: the guest, and the object on Trio's side."""

    def __init__(self, guest: Guest, client: Any) -> None:
        self._guest = guest
        self._client = client
        self._failure: BaseException | None = None  # of the background, once the client has ended
        self._last: Mapping[str, Any] = {}  # the reports of a client that has ended, by method

    def __repr__(self) -> str:
        return repr(self._client).replace("<trikafka.", "<trikafka.aio.", 1)

    def __reduce__(self) -> NoReturn:
        """Refuse copies, as :class:`trikafka.Consumer` and the like do."""
        raise TypeError(
            f"trikafka.aio.{type(self).__name__} has connections and tasks, and cannot be copied "
            "or pickled: open a client in each process"
        )

    def _failed(self, error: BaseException | None) -> None:
        """Record the failure that has ended the client in the background."""
        self._failure = error

    def _reported(self, last: Mapping[str, Any]) -> None:
        """Set the mapping that has the client's last reports after its end."""
        self._last = last

    def _has_ended(self) -> bool:
        """Return whether the client has ended, with its guest or by a failure."""
        return self._failure is not None or self._guest.ending

    def _check(self) -> None:
        self._guest.check_loop()
        if self._failure is not None:
            raise ClientFailedError("the client has failed") from self._failure
        if self._guest.ending:
            raise trio.ClosedResourceError("this client is closed")


class OpenedClient(Client):
    """A client that its user opens, and that ends with its block."""

    if not TYPE_CHECKING:  # type checkers know of a wrong name by themselves

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse a name that the client does not have, with the hint of Trio's client."""
            if name.startswith("_") and not hasattr(type(self), name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            type(self._client).__getattr__(self, name)

    @property
    def is_closed(self) -> bool:
        """True once closing has begun, or the client has failed: no more calls are possible."""
        return bool(self._client.is_closed or self._has_ended())
