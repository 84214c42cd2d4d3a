"""The check whether a value fits an annotation of a contract.

As deep as an error about a plugin needs.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from ...hooks import missing_members


def matches(value: object, hint: Any) -> bool:
    """Return whether ``value`` fits ``hint``.

    A hint that cannot be checked fits anything, and ``None`` as a promise does, too.
    """
    if hint is Any or hint is None or hint is type(None) or isinstance(hint, TypeVar):
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(value is None if one is type(None) else matches(value, one) for one in arguments)
    if origin is not None:
        if not isinstance(origin, type) or not isinstance(value, origin):
            return not isinstance(origin, type)
        if issubclass(origin, Mapping) and isinstance(value, Mapping):
            return all(
                matches(key, arguments[0]) and matches(one, arguments[1])
                for key, one in value.items()
            )
        return True
    if getattr(hint, "_is_protocol", False):
        return not missing_members(value, hint)
    return isinstance(value, hint) if isinstance(hint, type) else True


def describe(hint: Any) -> str:
    """Return the annotation in the notation of the source."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(map(describe, arguments))
    if origin is not None:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(map(describe, arguments))}]"
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))
