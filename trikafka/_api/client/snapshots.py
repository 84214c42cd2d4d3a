"""The values that ``statistics()`` and ``health()`` return."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Self, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value", covariant=True)


# A program writes such a value as JSON for its monitoring: json.dumps(dataclasses.asdict(health),
# default=str). Keys that are partitions and brokers prevent that. asdict turns a Node that is a key
# into a dictionary, which is no key, and json calls ``default`` for values only. asdict copies a
# value that is no dict, list or tuple by copy.deepcopy. So the mapping decides there what it
# becomes.
class ByKey(Mapping[Key, Value]):
    """A mapping that cannot be changed; in ``dataclasses.asdict`` its keys become text."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[Key, Value]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: Key) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    def __deepcopy__(self, memo: dict[int, object]) -> dict[str, Value]:
        return {str(key): copy.deepcopy(value, memo) for key, value in self._items.items()}


class Snapshot:
    """A frozen value, which is its own copy."""

    __slots__ = ()

    # Without this, a deep copy would have text for the keys of its mappings.
    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self
