"""Descriptions of settings for ``help()``, editors and ``docs/settings.md``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

from .setting import INT32, Setting, settings_of

Function = TypeVar("Function", bound=Callable[..., Any])
_UNITS = {"ms": "milliseconds"}
_POWERS = {INT32: "2**31 - 1", 2**63 - 1: "2**63 - 1"}


def unit_and_limits(setting: Setting) -> str:
    """Return the unit and limits of a number, such as ``bytes, at least 1``.

    Settings without a unit or limit have an empty description.
    """
    words = [] if setting.unit is None else [_UNITS.get(setting.unit, setting.unit)]
    words += [] if setting.least is None else [f"at least {setting.least:g}"]
    if setting.most is not None:
        most = _POWERS.get(int(setting.most), f"{setting.most:g}")
        words.append(f"at most {most}{' bytes' if str in setting.kinds else ''}")
    return ", ".join(words)


def default(setting: Setting) -> str:
    """Return the default value as Python source."""
    value = setting.default
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) >= 10_000
        and math.isfinite(value)
    ):
        return f"{value:_}"
    return repr(value).replace("'", '"')


def sentence(setting: Setting) -> str:
    """Return the setting's meaning as a sentence."""
    return f"{setting.doc[0].upper()}{setting.doc[1:]}."


def describe(setting: Setting) -> str:
    """Return the sentence, the unit, the limits, and Java's name where it differs."""
    more = unit_and_limits(setting)
    if more:
        more = f" In {more}." if setting.unit else f" {more.capitalize()}."
    java = (
        ""
        if setting.java in (None, setting.name.replace("_", "."))
        else f" Java's name: {setting.java}."
    )
    return f"{sentence(setting)}{more}{java}"


def documented(cls: type) -> Callable[[Function], Function]:
    """Return a decorator that appends the settings of ``cls`` to a function's docstring.

    The docstring then begins with the form of the call, which is ``async with`` and not ``await``.
    """

    def add(function: Function) -> Function:
        text = inspect.getdoc(function)
        if text is not None:  # None under python -OO
            use = (
                f"async with trikafka.{function.__name__}(...) as "
                f"{function.__name__.removeprefix('open_')}:"
            )
            lines = [
                f"    {s.name}: {s.annotation} = {default(s)}\n        {describe(s)}"
                for s in settings_of(cls).values()
            ]
            function.__doc__ = "\n".join(
                [use, "", text, "", "Settings, all of them keywords:", "", *lines]
            )
        return function

    return add
