"""The text of ``docs/reference.md``, from docstrings, signatures and settings of public names."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trikafka.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    Setting,
    settings_of,
)
from trikafka.config.describe import default, sentence, unit_and_limits
from trikafka.errors import BrokerResponseError, from_code

CLIENTS = {
    "Every client": ClientConfig,
    "Consumer": ConsumerConfig,
    "Producer": ProducerConfig,
    "Admin": AdminConfig,
}
#: Public names that are neither functions nor classes.
_OBJECTS = {
    "hookimpl": "Marks a function of a plugin as a hook: `@trikafka.hookimpl`. See "
    "[plugins.md](plugins.md)."
}
#: An entry of a section of a docstring: a name (perhaps with its type) and a text.
_ENTRY = re.compile(r" {4}(\*{0,2}\w[\w., /()|\[\]]*?): (.+)$")
_ROLE = re.compile(r":(?:\w+:)?\w+:`~?([^`]+)`")


def page(made: str, public: Mapping[str, Any]) -> str:
    """Return the whole page for these public names."""
    classes = {name: thing for name, thing in public.items() if isinstance(thing, type)}
    functions = {name: thing for name, thing in public.items() if name not in classes}
    errors = {name: cls for name, cls in classes.items() if issubclass(cls, BaseException)}
    settings = {
        name
        for name, cls in classes.items()
        if name.endswith("Settings") or issubclass(cls, ClientConfig)
    }
    values = {name: cls for name, cls in classes.items() if _is_value(cls)}
    big = {name: cls for name, cls in classes.items() if name not in {*errors, *settings, *values}}
    parts = [
        "# Reference",
        f"<!-- {made} -->",
        "Settings, the public interface and the errors of `trikafka`. In Python: "
        "`help(trikafka.open_consumer)`.",
        *_settings(),
        "## Functions",
        *_each(functions, _function),
        "## Clients and what they hand out",
        *_each(big, _class),
        "## Values",
        *_each(values, _value),
        "## Errors",
        *_errors(errors),
    ]
    return "\n\n".join(parts) + "\n"


# --- settings -------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield "## Settings"
    yield (
        "Keywords of `open_consumer`, `open_producer` and `open_admin`; wrong ones are a "
        "`ConfigurationError` before any I/O."
        " `from_properties` takes Java's names. Types for annotations: `**settings: "
        "Unpack[ConsumerSettings]`."
    )
    for title, config in CLIENTS.items():
        common = {} if config is ClientConfig else settings_of(ClientConfig)
        own = [one for name, one in settings_of(config).items() if name not in common]
        yield f"### {title}"
        if own:
            yield "\n".join(
                [
                    *_head("setting", "meaning", "default", "unit, limits", "Java's name"),
                    *map(_row, own),
                ]
            )
        else:
            yield "Those of every client."


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def _row(one: Setting) -> str:
    java = f"`{one.java}`" if one.java else ""
    cells = [
        f"`{one.name}`<br>`{one.annotation}`",
        sentence(one),
        f"`{default(one)}`",
        unit_and_limits(one),
        java,
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# --- functions and classes ------------------------------------------------------------------------


def _each(things: Mapping[str, Any], tell: Callable[[str, Any], Iterator[str]]) -> Iterator[str]:
    for name in sorted(things, key=str.lower):
        yield from tell(name, things[name])


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"### {name}"
    if name in _OBJECTS:
        yield _OBJECTS[name]
    else:
        yield _code(_call(f"trikafka.{name}", function))
        yield _doc(function)


def _class(name: str, cls: type) -> Iterator[str]:
    yield f"### {name}"
    yield _doc(cls)
    for member, thing in _members(cls).items():
        if isinstance(thing, property):
            returned = inspect.get_annotations(thing.fget).get("return") if thing.fget else None
            yield f"#### {name}.{member}" + (f": `{_Annotation(returned)!r}`" if returned else "")
        else:
            yield f"#### {name}.{member}()"
            yield _code(_call(member, _plain(thing)))
        yield _doc(_plain(thing))


def _value(name: str, cls: type) -> Iterator[str]:
    yield f"### {name}"
    yield _code(
        ", ".join(f"{name}.{one.name}" for one in cls)
        if issubclass(cls, enum.Enum)
        else _fields(name, cls)
    )
    yield _doc(cls)


def _errors(errors: Mapping[str, type]) -> Iterator[str]:
    yield (
        "Every error is a `TrikafkaError`. *Tried again*: a call does so by itself within its "
        "limit (the error's `retriable`)."
    )
    lines = _head("error", "is also a", "meaning", "tried again", "the broker's codes")
    for name in sorted(errors):
        bases = ", ".join(
            f"`{base.__name__}`" for base in errors[name].__bases__ if base is not Exception
        )
        known = [one for one in _CODES if type(one) is errors[name]]
        again = (
            "yes"
            if getattr(errors[name], "retriable", False)
            or (known and all(one.retriable for one in known))
            else ""
        )
        codes = ", ".join(one.name for one in known)
        if errors[name] is BrokerResponseError:
            again, codes = "some", "all others"
        first = _doc(errors[name]).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{name}` | {bases} | {first} | {again} | {codes} |")
    yield "\n".join(lines)


#: An error for each code that a response may have.
_CODES = [
    error for error in map(from_code, (-1, *range(1, 300))) if not error.name.startswith("ERROR_")
]


def _is_value(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or issubclass(cls, tuple | enum.Enum)


def _members(cls: type) -> dict[str, Any]:
    """Return trikafka's own public members with a docstring, in the order of their definition."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "trikafka":
            found |= {name: thing for name, thing in vars(base).items() if not name.startswith("_")}
    return {
        name: thing for name, thing in found.items() if _plain(thing).__doc__ and _is_member(thing)
    }


def _is_member(thing: Any) -> bool:
    return isinstance(thing, property | classmethod | staticmethod) or inspect.isfunction(thing)


def _plain(thing: Any) -> Any:
    return thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing


class _Annotation:
    """An annotation whose representation is its source text, without quotes."""

    def __init__(self, text: object) -> None:
        self._text = text if isinstance(text, str) else inspect.formatannotation(text)

    def __repr__(self) -> str:
        return self._text


def _call(name: str, function: Any) -> str:
    """Return the text of a call, with its result."""
    inner = inspect.unwrap(function)
    signature = inspect.signature(inner)
    returned = (
        ""
        if signature.return_annotation is inspect.Signature.empty
        else repr(_Annotation(signature.return_annotation))
    )
    how = ""
    if inspect.isasyncgenfunction(inner):
        how = "async for ... in "
        if inner is not function:  # @asynccontextmanager
            how, returned = (
                "async with ",
                re.sub(r"^Async(?:Iterator|Generator)\[(.*?)(?:, None)?\]$", r"\1", returned),
            )
    elif inspect.iscoroutinefunction(inner):
        how = "await "
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    shown = [
        "*" if one is None else str(one) for one in _with_star([_shown(one) for one in parameters])
    ]
    back = f" -> {returned}" if returned else ""
    line = f"{how}{name}({', '.join(shown)}){back}"
    return (
        line
        if len(line) <= 110
        else "\n".join([f"{how}{name}(", *(f"    {one}," for one in shown), f"){back}"])
    )


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is inspect.Parameter.empty:
        return parameter
    return parameter.replace(annotation=_Annotation(parameter.annotation))


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter | None]:
    """Yield the parameters, with ``None`` for the bare star before keyword-only ones."""
    starred = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            yield None
        starred = starred or one.kind in (one.VAR_POSITIONAL, one.KEYWORD_ONLY)
        yield one


def _fields(name: str, cls: type) -> str:
    """Return the text of the construction of a value, which shows its fields."""
    types = inspect.get_annotations(cls)  # a NamedTuple has them nowhere else
    shown = []
    for one in inspect.signature(cls).parameters.values():
        kind = types.get(one.name, one.annotation)
        shown.append(str(_shown(one.replace(annotation=getattr(kind, "__forward_arg__", kind)))))
    line = f"{name}({', '.join(shown)})"
    return (
        line
        if len(line) <= 110
        else "\n".join([f"{name}(", *(f"    {one}," for one in shown), ")"])
    )


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _doc(thing: Any) -> str:
    """Return the docstring as Markdown.

    For a function with settings, the list of settings and the call are left out: the page shows
    them elsewhere.
    """
    text, settings, _ = (inspect.getdoc(thing) or "").partition(
        "\n\nSettings, all of them keywords:"
    )
    text = text.partition("\n\n")[2] if settings else text
    return _ROLE.sub(r"`\1`", _lists(text)).replace("``", "`")


#: The sections of Google's style whose entries are a name, a colon and a text.
_NAMED = ("Args:", "Attributes:", "Raises:", "Yields:")


def _lists(text: str) -> str:
    """Return a docstring with the entries of ``Args:`` and ``Raises:`` as lists of Markdown."""
    lines: list[str] = []
    named = False
    for line in text.split("\n"):
        if line in (*_NAMED, "Returns:"):
            named = line in _NAMED
            lines += [f"**{line[:-1]}**", ""] if named else ["**Returns**", ""]
        elif named and (entry := _ENTRY.match(line)):
            lines.append(f"* `{entry[1]}`: {entry[2]}")
        elif line.startswith("    ") and lines and lines[-1] != "":
            lines.append(f"  {line.strip()}" if named else line.strip())
        else:
            named = named and (not line or line.startswith(" "))
            lines.append(
                line.removeprefix("    ") if line.startswith("    ") and not named else line
            )
    return "\n".join(lines)
