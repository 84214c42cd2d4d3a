"""The declaration of settings and the checks of their values.

This module declares no setting itself. Each setting is a field of a class in ``clients.py``. Its
annotation defines the allowed values (a ``Literal`` where there are few), and :func:`setting` the
default, the limits and the description. The checks here, :func:`trikafka.from_properties`, the
typed keywords of ``open_*``, ``help()`` and ``docs/settings.md`` all derive from that declaration.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ConfigurationError
from .secrets import SecretBytes
from .text import is_utf8
from .whole import is_number

Value = TypeVar("Value")
#: The largest size or time that the protocol can represent.
INT32 = 2**31 - 1
#: The most bytes of a text in the protocol. A broker closes the connection on a longer one, without
#: a reason.
LONGEST_TEXT = 2**15 - 1
#: Java's name is trikafka's name with dots instead of underscores, and its own word for OAuth.
_DOTTED = "(dotted)"


def setting(
    default: Value,
    doc: str,
    *,
    least: float | None = None,
    most: float | None = None,
    unit: str | None = None,
    java: str | None = _DOTTED,
    empty: bool = True,
    secret: bool = False,
) -> Value:
    """Declare a setting as a field of a client's class.

    Args:
        default: The default value.
        doc: The description, as a phrase without a capital and full stop.
        least: The smallest number.
        most: The largest number, or the most bytes of a text.
        unit: The unit, if the name does not show it.
        java: The name in Java's client; ``None`` if it has none. By default trikafka's name with
            dots.
        empty: False if an empty text is not allowed.
        secret: True if the value must never be shown.
    """
    known = {
        "doc": doc,
        "least": least,
        "most": most,
        "unit": unit,
        "java": java,
        "empty": empty,
        "secret": secret,
    }
    value: Value = field(default=default, metadata=known, repr=not secret)
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting.

    ``kinds`` are the types that it accepts. ``choices`` are its values, where there are few.
    """

    name: str
    annotation: str
    default: Any
    doc: str
    unit: str | None
    java: str | None
    least: float | None
    most: float | None
    kinds: tuple[type, ...]
    choices: tuple[object, ...] | None
    optional: bool
    empty: bool
    secret: bool

    @property
    def number(self) -> bool:
        """True if the setting is a time or a count."""
        return float in self.kinds or (int in self.kinds and self.choices is None)

    def check(self, value: object) -> None:
        """Check a value of this setting.

        Raises:
            ConfigurationError: ``value`` is not valid.
        """
        if value is None and self.optional:
            return
        if self.secret:
            wrong = self._wrong_secret(value)
            if wrong:
                value = None  # an error tracker records the locals of a traceback's frames
                raise ConfigurationError(f"{self.name} must {wrong}")
        elif self.choices is not None:
            # 1.0 == 1, but a float is not a valid number of replicas. An array of NumPy compares
            # with each choice by its elements, and the result has no truth value.
            if (
                not isinstance(value, str | int)
                or isinstance(value, bool)
                or (value not in self.choices)
            ):
                raise ConfigurationError(
                    f"{self.name} must be one of {', '.join(map(repr, self.choices))}, not "
                    f"{value!r}"
                )
        elif bool in self.kinds:
            if not isinstance(value, bool):
                raise ConfigurationError(f"{self.name} must be True or False, not {value!r}")
        elif self.number:
            self._check_number(value)
        elif Callable in self.kinds and callable(value):  # type: ignore[comparison-overlap]
            return
        elif str in self.kinds and Sequence not in self.kinds:
            self._check_text(value)
        elif Sequence in self.kinds and str in self.kinds:
            if not isinstance(value, Sequence):
                raise ConfigurationError(
                    f"{self.name} must be text or a sequence of texts, not {_shown(value)}"
                )
        elif Sequence in self.kinds:
            if isinstance(value, str | bytes) or not isinstance(value, Sequence):
                raise ConfigurationError(f"{self.name} must be a sequence, not {_shown(value)}")
        elif Callable in self.kinds:  # type: ignore[comparison-overlap]
            if not isinstance(value, self.kinds):
                raise ConfigurationError(
                    f"{self.name} must be a function or None, not {_shown(value)}"
                )
        elif Sequence not in self.kinds and not isinstance(value, self.kinds):
            raise ConfigurationError(
                f"{self.name} must be a {self.kinds[0].__name__} or None, not {_shown(value)}"
            )

    def _wrong_secret(self, value: object) -> str:
        """Return the fault of a value that must not be shown; empty if there is none."""
        kind = _kind(value)
        if Callable in self.kinds:  # type: ignore[comparison-overlap]
            # The Python clients' providers of tokens are objects; dir() runs no property of one.
            method = "; give its method token" if "token" in dir(value) else ""
            return "" if callable(value) else f"be a function or None, not {kind}{method}"
        if str not in self.kinds:
            return (
                ""
                if isinstance(value, self.kinds)
                else f"be a {self.kinds[0].__name__} or None, not {kind}"
            )
        if not isinstance(value, str):
            return f"be text{' or None' if self.optional else ''}, not {kind}"
        if not value and not self.empty:
            return "not be empty text; leave it out instead"
        return (
            "" if is_utf8(value) else "be text that UTF-8 can carry: it holds half a surrogate pair"
        )

    def _check_number(self, value: object) -> None:
        if not is_number(value) or value != value:
            raise ConfigurationError(f"{self.name} must be a number, not {value!r}")
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ConfigurationError(
                f"{self.name} is an integer of {value.bit_length()} bits, too large to count with"
            )
        if float not in self.kinds and not isinstance(value, int):
            raise ConfigurationError(f"{self.name} must be a whole number, not {value!r}")
        low = self.least is not None and value < self.least
        high = self.most is not None and value > self.most
        if low or high:
            limits = [f"at least {self.least:g}"] if self.least is not None else []
            limits += [f"at most {self.most}"] if self.most is not None else []
            raise ConfigurationError(f"{self.name} must be {' and '.join(limits)}, not {value!r}")

    def _check_text(self, value: object) -> None:
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{self.name} must be text{' or None' if self.optional else ''}, not "
                f"{_shown(value)}"
            )
        if not value and not self.empty:
            raise ConfigurationError(f"{self.name} must not be empty text; leave it out instead")
        if not is_utf8(value):
            raise ConfigurationError(
                f"{self.name} must be text that UTF-8 can carry, not {value!r}"
            )
        if self.most is not None and (size := len(value.encode())) > self.most:
            raise ConfigurationError(f"{self.name} must have at most {self.most} bytes, not {size}")


def _shown(value: object) -> str:
    """Return a value of the wrong type if it is short and no secret, else its type."""
    return repr(value) if isinstance(value, str | int | float | NoneType) else _kind(value)


def _kind(value: object) -> str:
    """Return the name of a value's type as the program knows it."""
    return "bytes" if isinstance(value, SecretBytes) else type(value).__name__


@cache
def settings_of(cls: type) -> dict[str, Setting]:
    """Return all settings of a client's class by name, in order of declaration."""
    hints = get_type_hints(cls)
    found = {}
    for f in fields(cls):
        kinds, choices, optional = _values(hints[f.name])
        known = dict(f.metadata)
        if known["java"] == _DOTTED:
            known["java"] = f.name.replace("_", ".").replace("sasl.oauth.", "sasl.oauthbearer.")
        known["unit"] = known["unit"] or (
            "ms" if f.name.endswith("_ms") else "bytes" if f.name.endswith("_bytes") else None
        )
        found[f.name] = Setting(
            f.name, f"{f.type}", f.default, kinds=kinds, choices=choices, optional=optional, **known
        )
    return found


def _values(hint: Any) -> tuple[tuple[type, ...], tuple[object, ...] | None, bool]:
    """Return an annotation's types, its values if there are few, and whether it has ``None``."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    rest = [part for part in parts if part is not NoneType]
    choices = tuple(
        value for part in rest if get_origin(part) is Literal for value in get_args(part)
    )
    open_ended = [get_origin(part) or part for part in rest if get_origin(part) is not Literal]
    kinds = open_ended or [type(value) for value in choices]
    return tuple(kinds), None if open_ended else choices, len(rest) < len(parts)


#: Names that users try first, with the setting that each one means. No similarity finds it.
_MEANT = MappingProxyType(
    {
        **dict.fromkeys(("brokers", "hosts", "server", "servers"), "bootstrap_servers"),
        **dict.fromkeys(("consumer_group", "group_name"), "group_id"),
        "auto_commit": "enable_auto_commit",
        "deserializer": "value_deserializer",
    }
)


def nearest(name: str, known: Iterable[str], least: float) -> str | None:
    """Return the known name that a wrong one is probably meant for.

    That is the one name that begins with it, for the unit at the end may be missing, or else the
    most similar one, if the similarity is at ``least`` this (of 1).
    """
    known = list(known)
    longer = [one for one in known if one.startswith((f"{name}_", f"{name}."))]
    if len(longer) == 1:
        return longer[0]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=least)), None)


def unknown(
    names: Sequence[str],
    known: Iterable[str],
    where: str,
    hint: Callable[[str], str] = lambda name: "",
) -> ConfigurationError:
    """Return the error for unknown names of settings.

    The error adds the advice that ``hint`` has for a name, or else the nearest known name.
    """
    known = list(known)

    def advice(name: str) -> str:
        if name.replace(".", "_") in ("key_serializer", "value_serializer"):
            return "keys and values are bytes: encode before send"
        meant = _MEANT.get(name)
        near = (
            meant
            if meant in known
            else nearest(name, known, 0.6) or nearest(name.lower(), known, 0.6)
        )
        return hint(name) or (f"did you mean {near!r}?" if near else "")

    if len(names) == 1:
        hinted = advice(names[0])
        return ConfigurationError(
            f"unknown setting {names[0]!r} for {where}" + (f"; {hinted}" if hinted else "")
        )
    each = [f"{name!r} ({hinted})" if (hinted := advice(name)) else repr(name) for name in names]
    return ConfigurationError(f"unknown settings for {where}: {', '.join(each)}")
