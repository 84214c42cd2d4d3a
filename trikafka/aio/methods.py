"""Methods of asyncio's clients, made from those of Trio's: same signature, same documentation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from .crossing import Client, cross

P = ParamSpec("P")
T = TypeVar("T")


def crossing(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that awaits a method of the Trio client on Trio's side."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._check()
        return await cross(self._guest, partial(method, self._client, *args, **kwargs))

    return call


def direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls a method of the Trio client that is not a coroutine function."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._check()
        try:
            return method(self._client, *args, **kwargs)
        finally:
            self._guest.wake()

    return call


def ending(
    method: Callable[Concatenate[Any, P], Awaitable[None]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, None]]:
    """Return a method as :func:`crossing` does. It is a no-op after the end of the client."""

    @wraps(method)
    async def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self._has_ended():
            self._check()
            await cross(self._guest, partial(method, self._client, *args, **kwargs))

    return call


def report(method: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a method that describes the client.

    After the end of the client it returns the Trio client's last report.
    """

    @wraps(method)
    def call(self: Client, /) -> T:
        if method.__name__ in self._last:
            last: T = self._last[method.__name__]
            return last
        self._guest.check_loop()
        return method(self._client)

    return call
