"""Texts that callers pass: members of a string enum, and texts that cannot be sent."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from .secrets import Secret

Value = TypeVar("Value")


def plain_text(value: Value) -> Value:
    """Return ``value`` as a plain string, if it is a member of a string enum.

    A member of ``class Topics(str, Enum)`` is a string, but ``str()`` returns its own name. The
    messages encode their texts by ``str()``. So ``group_id=Groups.BILLING`` would silently be a
    group that is called ``Groups.BILLING``.
    """
    text: Any = value
    if isinstance(value, str) and type(value) not in (str, Secret):
        text = str.__str__(value)
    return text  # type: ignore[no-any-return]


def in_place_of(kind: type, given: object) -> str:
    """Return a wrong argument as an error shows it where a ``kind`` is wanted.

    Other clients have classes with the same names, such as ``OffsetAndMetadata``. So the module of
    such a class is named, too.
    """
    same_name = type(given).__name__ == kind.__name__
    return f"{given!r} of the module {type(given).__module__}" if same_name else repr(given)


class PlainTexts:
    """A frozen dataclass whose texts are plain: see :func:`plain_text`."""

    __slots__ = ()

    def _make_plain(self) -> None:
        """Make the texts plain, while the object is made."""
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, each.name)
            if (text := plain_text(given)) is not given:
                object.__setattr__(self, each.name, text)


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode the text; it cannot encode half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
