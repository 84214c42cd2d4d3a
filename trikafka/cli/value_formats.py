"""Formats of keys and values that plugins offer (hook ``trikafka_value_format``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

from .progress import warn
from .record_lines import VALUE_FORMATS
from .suggesting import COMMAND_PLUGINS


class PluginFormat:
    """A plugin's decoder. A value that it cannot decode is printed as text."""

    def __init__(self, name: str, decode: Callable[[bytes], object]) -> None:
        self.name = name
        self._decode = decode
        self._warned = False

    def __call__(self, data: bytes) -> tuple[bool, object]:
        """Return whether the bytes could be decoded, and the value; warn at the first failure."""
        try:
            value = self._decode(data)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError("the function is async, and has to be plain")
            return True, value
        except Exception as error:  # any error of the plugin: a topic may have other values, too
            if not self._warned:
                self._warned = True
                warn(f"{self.name}: {error!r}; such keys and values are printed as text")
            return False, None


class ValueFormatType(click.ParamType):  # type: ignore[type-arg]
    """The name of a format: trikafka's own, or a plugin's."""

    name = "format"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | PluginFormat:
        if isinstance(value, PluginFormat) or value in VALUE_FORMATS:
            return value  # type: ignore[no-any-return]
        decode = _find(value)
        if decode is None:
            near = get_close_matches(value.lower(), VALUE_FORMATS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            own = ", ".join(map(repr, VALUE_FORMATS))
            self.fail(
                f"{value!r} is none of {own}, and no installed plugin offers it{hint}", param, ctx
            )
        return PluginFormat(value, decode)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(VALUE_FORMATS)}|...]"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in VALUE_FORMATS if name.startswith(incomplete)]


def _find(name: str) -> Callable[[bytes], object] | None:
    """Return a plugin's decoder for a name; ``None`` if no plugin has one.

    Raises:
        PluginError: The plugin returned something that cannot be called with bytes.
    """
    from ..errors import PluginError
    from ..hooks import check_takes, first_answer, load_plugins

    # A plugin that cannot be loaded is no error here, because it may offer only other things.
    others = []
    for point in entry_points(group=COMMAND_PLUGINS):
        try:
            thing = point.load()
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            warn(f"the plugin of the command {point.name!r} ({point.value}) does not load: {why}")
            continue
        if not isinstance(thing, click.Command):
            others.append(thing)
    found = first_answer(load_plugins(others), "trikafka_value_format", name=name)
    if found is None:
        return None
    plugin, decode = found
    if not callable(decode):
        raise PluginError(
            f"plugin {plugin}: trikafka_value_format returned {decode!r}, which cannot be called"
        )
    who = f"plugin {plugin}: the function of trikafka_value_format for {name!r}"
    check_takes(decode, (b"",), PluginError, who)
    return decode  # type: ignore[no-any-return]
