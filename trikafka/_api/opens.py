"""How a client is opened: by ``async with``. Who forgets that, or gives settings without their names, is shown the right line."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar

import trio

from ..config.secrets import holds_secret
from ..errors import ConfigurationError, IllegalStateError, NotOpenError

P = ParamSpec("P")
Client = TypeVar("Client")


class Opening(AbstractAsyncContextManager[Client], Generic[Client]):
    """A client that ``async with`` opens. There is none before."""

    __slots__ = ("_block", "_call")

    def __init__(self, call: str, block: AbstractAsyncContextManager[Client]) -> None:
        self._call, self._block = call, block

    @property
    def opens(self) -> str:
        """The function that has made it."""
        return self._call

    # Both hand on what is to be awaited, so that no traceback and no stack has a step more. A Ctrl-C in the step between would
    # leave the client open for ever.

    @trio.lowlevel.enable_ki_protection
    def __aenter__(self) -> Coroutine[Any, Any, Client]:
        return self._block.__aenter__()

    @trio.lowlevel.enable_ki_protection
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Coroutine[Any, Any, bool | None]:
        return self._block.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers know of these mistakes by themselves

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # Python itself asks for such, and takes any answer but this for a yes
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise NotOpenError(f"{_advice(self._call)}: before that there is no {_name(self._call)}, and no {name!r} of it")

        def __aiter__(self) -> NoReturn:
            raise IllegalStateError(f"{_advice(self._call)}: inside of it 'async for' goes over the {_name(self._call)}")

        def __await__(self) -> NoReturn:
            raise IllegalStateError(f"{_advice(self._call)}, not by 'await {self._call}(...)'")

        def __enter__(self) -> NoReturn:
            raise IllegalStateError(f"{_advice(self._call)}, not by 'with'")

        def __exit__(self, *_: object) -> None:
            """It was not entered."""


def opens(function: Callable[P, AsyncIterator[Client]]) -> Callable[P, Opening[Client]]:
    """Make of a generator that yields an open client, once, what ``async with`` opens it by."""
    block = asynccontextmanager(function)
    by_name = all(one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(function).parameters.values())

    @wraps(function)
    def call(*args: P.args, **settings: P.kwargs) -> Opening[Client]:
        if by_name and args:
            raise ConfigurationError(_without_names(function.__name__, args))
        return Opening(function.__name__, block(*args, **settings))

    return call


def _name(call: str) -> str:
    return call.removeprefix("open_")


def _advice(call: str) -> str:
    return f"{call}() opens with a block, 'async with trikafka.{call}(...) as {_name(call)}:'"


def _without_names(call: str, args: tuple[Any, ...]) -> str:
    shown = repr(args[0]) if isinstance(args[0], str) and not holds_secret(args[0]) else "..."
    return f"{call}() takes settings by their names, such as trikafka.{call}(bootstrap_servers={shown})"
