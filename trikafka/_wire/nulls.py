"""Nulls where the schema has none: kafka-python's decoder lets them through, and who reads the message would fall over. No I/O."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: Of one kind of struct in one version: each field's name, whether it may be null, and the plan of what is in it.
_Plan = tuple[tuple[str, bool, Any], ...]


def check_nulls(message: Any, version: int) -> None:
    """Raise :exc:`ValueError` if a field is null that cannot be."""
    _check(message, _plan_of(type(message), version))  # type: ignore[arg-type]  # mypy doubts that a class is hashable


@lru_cache(maxsize=1024)
def _plan_of(kind: Any, version: int) -> _Plan:
    return _plan(kind.fields, version)


def _plan(fields: Any, version: int) -> _Plan:
    known = [(name, field) for name, field in fields.items() if field.for_version_q(version)]
    return tuple(
        (name, field.nullable_for_version_q(version), _plan_inside(field, version))
        for name, field in known
        if not field.tagged_field_q(version) and (field.is_array() or field.is_struct_array() or field.type_str == "string")
    )


def _plan_inside(field: Any, version: int) -> _Plan | None:
    return _plan(field.fields, version) if field.is_struct_array() else None


def _check(message: Any, plan: _Plan) -> None:
    for name, nullable, inside in plan:
        value = getattr(message, name)
        if value is None:
            if not nullable:
                raise ValueError(f"{name} is null")
        elif inside:
            for item in value:
                _check(item, inside)
