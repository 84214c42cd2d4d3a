"""The ``async with`` around a client, with errors that show the right line.

They are for programs that forget the block, or pass settings without names.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import trio

from ...config.secrets import holds_secret
from ...errors import ConfigurationError, IllegalStateError, NotOpenError

P = ParamSpec("P")
Client = TypeVar("Client")
#: The functions that trikafka.aio has, too.
_IN_ASYNCIO = ("open_admin", "open_consumer", "open_producer", "open_share_consumer")


def _check_runs_under_trio(call: str) -> None:
    """Raise :exc:`IllegalStateError` unless the calling task is one of Trio's."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        instead = (
            f"import trikafka.aio and use trikafka.aio.{call}()"
            if call in _IN_ASYNCIO
            else "run it in a thread: await asyncio.to_thread(trio.run, main)"
        )
        raise IllegalStateError(
            f"{call}() needs Trio, and no Trio runs here: start the program with trio.run(main); "
            f"in a program of asyncio, {instead}"
        ) from None


class Unopened:
    """An object for ``async with``: each use before that is an error that shows the right line.

    Attributes:
        opens: The name of the function that made this object.
        package: The package of that function.
    """

    __slots__ = ()
    package = "trikafka"
    opens: str

    if not TYPE_CHECKING:  # type checkers know of these mistakes by themselves

        def _advice(self) -> str:
            call = self.opens
            name = _name(self.opens)
            return (
                f"{call}() opens with a block, 'async with {self.package}.{call}(...) as {name}:'"
            )

        def __getattr__(self, name: str) -> NoReturn:
            # Python itself asks for private names. Anything but an AttributeError would count as a
            # yes.
            if name.startswith("_") or name == "opens":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise NotOpenError(
                f"{self._advice()}: before that there is no {_name(self.opens)}, and no "
                f"{name!r} of it"
            )

        def __aiter__(self) -> NoReturn:
            raise self._iterated("async for")

        def __iter__(self) -> NoReturn:
            raise self._iterated("for")

        def _iterated(self, by: str) -> IllegalStateError:
            name = _name(self.opens)
            if not name.endswith("consumer"):
                return IllegalStateError(f"{self._advice()}, not by {by!r}")
            return IllegalStateError(
                f"{self._advice()}: inside of it 'async for' goes over the {name}"
            )

        def __await__(self) -> NoReturn:
            raise IllegalStateError(f"{self._advice()}, not by 'await {self.opens}(...)'")

        def __enter__(self) -> NoReturn:
            raise IllegalStateError(f"{self._advice()}, not by 'with'")

        def __exit__(self, *_: object) -> None:
            """No-op: the block was never entered."""


class Opening(Unopened, AbstractAsyncContextManager[Client], Generic[Client]):
    """A client that ``async with`` will open; before that there is none."""

    __slots__ = ("_block", "_entered", "opens")

    def __init__(self, call: str, block: AbstractAsyncContextManager[Client]) -> None:
        self.opens = call
        self._block = block
        self._entered = False

    # Both return the coroutine rather than await it, so that tracebacks and stacks have no further
    # step. A Ctrl-C in such a step would leave the client open for ever.

    @trio.lowlevel.enable_ki_protection
    def __aenter__(self) -> Coroutine[Any, Any, Client]:
        if self._entered:
            raise IllegalStateError(
                f"a block of {self.opens}() can be entered once: call {self.opens}() again for "
                "another client"
            )
        _check_runs_under_trio(self.opens)
        self._entered = True
        return self._block.__aenter__()

    @trio.lowlevel.enable_ki_protection
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Coroutine[Any, Any, bool | None]:
        return self._block.__aexit__(kind, error, trace)


def opens(function: Callable[P, AsyncIterator[Client]]) -> Callable[P, Opening[Client]]:
    """Turn a generator that yields one open client into a function for ``async with``.

    As :func:`contextlib.asynccontextmanager`, but an object that is used without ``async with``
    raises an error with the right line.

    Args:
        function: An async generator function called ``open_...``. Everything after its only
            ``yield`` closes the client.
    """
    block = asynccontextmanager(function)
    by_name = all(
        one.kind is inspect.Parameter.VAR_KEYWORD
        for one in inspect.signature(function).parameters.values()
    )

    @wraps(function)
    def call(*args: P.args, **settings: P.kwargs) -> Opening[Client]:
        if by_name and args:
            raise ConfigurationError(_without_names(function.__name__, args))
        return Opening(function.__name__, block(*args, **settings))

    return call


def _name(call: str) -> str:
    return call.removeprefix("open_")


def _without_names(call: str, args: tuple[Any, ...]) -> str:
    shown = repr(args[0]) if isinstance(args[0], str) and not holds_secret(args[0]) else "..."
    return (
        f"{call}() takes settings by their names, such as "
        f"trikafka.{call}(bootstrap_servers={shown})"
    )
