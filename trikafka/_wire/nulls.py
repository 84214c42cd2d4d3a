"""The check for nulls where the schema has none. No I/O.

kafka-python's decoder accepts them, and code that reads the message would fail.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: The plan of one kind of struct in one version: each field's name, whether it may be null, and the
#: plan of the struct in it.
_Plan = tuple[tuple[str, bool, Any], ...]
#: The types of single values that the decoder may return as null. Numbers and ids are never null.
_MAY_COME_AS_NULL = ("string", "bytes", "records")


def check_nulls(message: Any, version: int) -> None:
    """Raise :exc:`ValueError` if a field is null that must not be."""
    # The ignore: mypy doubts that a class is hashable.
    _check(message, _plan_of(type(message), version))  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _plan_of(kind: Any, version: int) -> _Plan:
    return _plan(kind.fields, version)


def _plan(fields: Any, version: int) -> _Plan:
    known = [(name, field) for name, field in fields.items() if field.for_version_q(version)]
    return tuple(
        # A tagged field that the broker left out is None if the schema has no other default.
        (
            name,
            field.tagged_field_q(version) or field.nullable_for_version_q(version),
            _plan_inside(field, version),
        )
        for name, field in known
        if _has_inside(field) or field.is_array() or field.type_str in _MAY_COME_AS_NULL
    )


def _has_inside(field: Any) -> bool:
    return bool(field.is_struct() or field.is_struct_array())


def _plan_inside(field: Any, version: int) -> _Plan | None:
    return _plan(field.fields, version) if _has_inside(field) else None


def _check(message: Any, plan: _Plan) -> None:
    for name, nullable, inside in plan:
        value = getattr(message, name)
        if value is None:
            if not nullable:
                raise ValueError(f"{name} is null")
        elif inside:
            for item in value if isinstance(value, list) else (value,):
                _check(item, inside)
