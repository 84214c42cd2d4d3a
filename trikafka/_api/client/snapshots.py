"""The mappings that ``statistics()`` and ``health()`` return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ...types import Node

Key = TypeVar("Key")
Value = TypeVar("Value")


# A program writes such a value as JSON for its monitoring: json.dumps(dataclasses.asdict(health),
# default=str). Keys that are partitions and brokers prevent that: json calls ``default`` for values
# only, and asdict turns a Node into a dictionary, which cannot be a key. For a subclass of dict,
# asdict calls the class with pairs of keys and values. Nothing else here does: `copy`, `pickle` and
# the modules that make these values pass a mapping, or set each item. So pairs have text for their
# keys afterwards, and all other copies have the keys of the original.
class ByKey(dict[Key, Value]):
    """A dictionary by partition or broker; in ``dataclasses.asdict`` its keys become text."""

    __slots__ = ()

    def __init__(self, items: Mapping[Key, Value] | Iterable[tuple[Any, Value]] = ()) -> None:
        if isinstance(items, Mapping):
            super().__init__(items)
        else:
            super().__init__((_name(key), value) for key, value in items)  # type: ignore[misc]


def _name(key: Any) -> str:
    return str(Node(**key) if isinstance(key, dict) else key)
