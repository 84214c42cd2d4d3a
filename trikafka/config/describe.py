"""A setting in words, for ``help()``, editors and ``docs/reference.md``."""

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
    """What a number counts and may be, such as ``bytes, at least 1``; empty for what is none."""
    words = [] if setting.unit is None else [_UNITS.get(setting.unit, setting.unit)]
    words += [] if setting.least is None else [f"at least {setting.least:g}"]
    if setting.most is not None:
        words.append(f"at most {_POWERS.get(int(setting.most), f'{setting.most:g}')}{' bytes' if str in setting.kinds else ''}")
    return ", ".join(words)


def default(setting: Setting) -> str:
    """The default as it is written in Python."""
    value = setting.default
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000 and math.isfinite(value):
        return f"{value:_}"
    return repr(value).replace("'", '"')


def sentence(setting: Setting) -> str:
    """What it is for."""
    return f"{setting.doc[0].upper()}{setting.doc[1:]}."


def describe(setting: Setting) -> str:
    """Its sentence, its unit and limits, and Java's name where it is another one."""
    more = unit_and_limits(setting)
    java = "" if setting.java in (None, setting.name.replace("_", ".")) else f" Java's name: {setting.java}."
    return f"{sentence(setting)}{f' In {more}.' if setting.unit else f' {more.capitalize()}.' if more else ''}{java}"


def documented(cls: type) -> Callable[[Function], Function]:
    """Have the docstring of a function that takes the settings of ``cls`` as keywords tell each of them, for ``help()``.

    It begins with how such a function is called, which is not by ``await``.
    """

    def add(function: Function) -> Function:
        text = inspect.getdoc(function)
        if text is not None:  # it is under python -OO
            use = f"async with trikafka.{function.__name__}(...) as {function.__name__.removeprefix('open_')}:"
            lines = [f"    {s.name}: {s.annotation} = {default(s)}\n        {describe(s)}" for s in settings_of(cls).values()]
            function.__doc__ = "\n".join([use, "", text, "", "Settings, all of them keywords:", "", *lines])
        return function

    return add
