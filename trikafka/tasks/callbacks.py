"""Checks of the async functions that a program passes, before a call and at the first one."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any

from ..errors import ConfigurationError
from ..hooks import signature_of


class NotAsyncError(ConfigurationError):
    """A function that should be async did its work without an awaitable.

    No record is the reason, and no record should be handled again.
    """


def check_async(what: str, function: object, *arguments: str) -> None:
    """Raise :exc:`ConfigurationError` if the result of ``function`` surely cannot be awaited.

    Also checks that it takes these ``arguments``. A plain function may return an awaitable (a
    ``partial``, a ``lambda``): only the call shows that, see :func:`awaitable`. But one that
    returns nothing would do its work for a record before that call is refused.
    """
    called_with = ", ".join(arguments)
    if inspect.iscoroutine(function):
        name = function.__qualname__
        function.close()  # or Python warns that it was never awaited
        raise ConfigurationError(
            f"{what} must be an async function, not what its call returns: give {name} and not "
            f"{name}(...)"
        )
    if not callable(function):
        raise ConfigurationError(
            f"{what} must be an async function, called with ({called_with}), not {function!r}"
        )
    if (instead := _no_awaitable(function)) is not None:
        raise ConfigurationError(f"{what} must be an async function (async def), but {instead}")
    if (signature := signature_of(function, follow_wrapped=True)) is None:
        return  # written in C, for example: the call will show
    try:
        signature.bind(*(object() for _ in arguments))
    except TypeError as error:
        raise ConfigurationError(
            f"{what} is called with ({called_with}), which {_name(function)}{signature} does not "
            f"take: {error}"
        ) from None


def _no_awaitable(function: object) -> str | None:
    """Return why the result of a call surely cannot be awaited; ``None`` if it may be awaited.

    A function without a ``return`` of a value returns ``None``. A value may be an awaitable,
    whatever an annotation says. A decorator's function counts as it is, and not the function that
    it wraps.
    """
    name = _name(function)
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = inspect.getattr_static(type(function), "__call__", None)
    if inspect.ismethod(function):
        function = function.__func__
    if not inspect.isfunction(function):
        return None
    is_wrapper = hasattr(function, "__wrapped__")
    if is_wrapper:  # functools.wraps() has given it the name of what it wraps
        name = f"the decorator of {_name(function)}"
    if inspect.isasyncgenfunction(function):
        return f"{name} has a yield, which makes it an async generator"
    flags = function.__code__.co_flags
    if flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE):
        return None
    # The bytecode alone shows before a call whether a value is returned: annotations may be missing
    # or wrong, and the source may not be there. Where an instruction is not known, as in a later
    # Python, the function counts as one that returns a value.
    returns = []
    before = None
    for step in dis.get_instructions(function):
        if step.opname == "RETURN_CONST":  # Python 3.12 and 3.13
            returns.append(step.argval is None)
        elif step.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            # A jump to it may bring another value.
            returns.append(is_none and not step.is_jump_target)
        before = step
    if not returns or not all(returns):
        return None
    return f"{name} {'' if is_wrapper else 'is a plain function that '}returns nothing"


def awaitable(what: str, function: object, result: Any) -> Awaitable[object]:
    """Return the result of a call of ``function``, for the caller to await.

    Raises :exc:`NotAsyncError` if it cannot be awaited.
    """
    if inspect.isawaitable(result):
        return result
    raise NotAsyncError(
        f"{what} must be an async function (async def), but {_name(function)} returned "
        f"{result!r:.100}"
    )


async def called(what: str, function: Callable[..., Any], *arguments: object) -> None:
    """Call the user's ``function``, and await it.

    Raises:
        NotAsyncError: The function returned no awaitable, or ended with a coroutine that was never
            awaited: then the work that the program believes to be done has not even begun.
    """
    result = await awaitable(what, function, function(*arguments))
    if type(result) is CoroutineType:
        name = result.__qualname__
        result.close()  # or Python warns that it was never awaited
        raise NotAsyncError(
            f"{what} returned a coroutine that was never awaited: write 'await {name}(...)' in "
            f"{_name(function)}"
        )


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
