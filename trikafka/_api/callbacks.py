"""The async functions that a program hands over: what is wrong with one, seen before it is called or at its first call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from ..errors import ConfigurationError


class NotAsyncError(ConfigurationError):
    """A function that was to be async did its work without: no record is the reason, and none is to be handed out again."""


def check_async(what: str, function: object, *arguments: str) -> None:
    """Raise :exc:`ConfigurationError` if ``function`` surely cannot be awaited when it is called with these ``arguments``.

    A plain function may return something to await (a ``partial``, a ``lambda``): only the call tells, see :func:`awaitable`.
    """
    called_with = ", ".join(arguments)
    if inspect.iscoroutine(function):
        name = function.__qualname__
        function.close()  # else Python warns, too, that it was never awaited
        raise ConfigurationError(f"{what} must be an async function, not what its call returns: give {name} and not {name}(...)")
    if not callable(function):
        raise ConfigurationError(f"{what} must be an async function, called with ({called_with}), not {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, say: its call tells
    try:
        signature.bind(*(object() for _ in arguments))
    except TypeError as error:
        raise ConfigurationError(
            f"{what} is called with ({called_with}), which {_name(function)}{signature} does not take: {error}"
        ) from None


def awaitable(what: str, function: object, result: Any) -> Awaitable[object]:
    """What a call of ``function`` has returned, to be awaited. Raises :exc:`NotAsyncError` if it cannot be."""
    if inspect.isawaitable(result):
        return result
    raise NotAsyncError(f"{what} must be an async function (async def), and {_name(function)} is none: it returned {result!r:.100}")


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
