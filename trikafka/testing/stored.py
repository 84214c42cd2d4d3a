"""The rules, quotas, users, tokens, features and voters of the scripted cluster. No messages."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_ANY, _MATCH, _LITERAL, _PREFIXED = 1, 2, 3, 4
_METADATA_VERSION = "metadata.version"
_DIRECTORIES = uuid.UUID("0dfb1ff3-5ef1-4e6f-9f2b-6d1a7c0b9e11")


class Rule(NamedTuple):
    """An access rule, with Kafka's numbers."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def matches(self, wanted: Any) -> bool:
        """Return whether a filter of a request matches."""
        return (
            wanted.resource_type_filter in (_ANY, self.resource_type)
            and self._has_name(wanted.resource_name_filter, wanted.pattern_type_filter)
            and wanted.principal_filter in (None, self.principal)
            and wanted.host_filter in (None, self.host)
            and wanted.operation in (_ANY, self.operation)
            and wanted.permission_type in (_ANY, self.permission_type)
        )

    def _has_name(self, name: str | None, pattern: int) -> bool:
        if name is None:
            return pattern in (_ANY, _MATCH, self.pattern_type)
        if pattern == _MATCH:
            literal = self.pattern_type == _LITERAL and self.resource_name in (name, "*")
            prefixed = self.pattern_type == _PREFIXED and name.startswith(self.resource_name)
            return literal or prefixed
        return name == self.resource_name and pattern in (_ANY, self.pattern_type)


#: What a quota is about: (kind, name or None for the default) of each part.
Entity = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class Security:
    """The stored rules, quotas, users and tokens."""

    rules: list[Rule] = field(default_factory=list)
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    #: By user and mechanism: (iterations, salt, salted password).
    users: dict[str, dict[int, tuple[int, bytes, bytes]]] = field(default_factory=dict)
    tokens: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


@dataclass(slots=True)
class Quorum:
    """The features and the voters. ``voters`` are the directories by node."""

    voters: dict[int, uuid.UUID] = field(default_factory=dict)
    unregistered: set[int] = field(default_factory=set)
    #: The level, the lowest and the highest one of each feature but ``transaction.version``.
    features: dict[str, tuple[int, int, int]] = field(
        default_factory=lambda: {_METADATA_VERSION: (20, 7, 30)}
    )
    epoch: int = 1


def directory_of(node_id: int) -> uuid.UUID:
    """Return the id of a node's log directory."""
    return uuid.uuid5(_DIRECTORIES, str(node_id))
