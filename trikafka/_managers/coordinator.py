"""The coordinator manager: which broker coordinates a group or a transactional id. It alone writes that cache.

Of each it is in one of four states (seed 001):

=====================  ========================================================================  ==========================
state                  meaning                                                                   comes after
=====================  ========================================================================  ==========================
DOWN                   the client is not open                                                    any
INITIALIZED            the client is open; nobody has needed this coordinator yet                DOWN
COORDINATOR_DISCOVERY  it is needed and not known: it is being looked up, or will be at the      INITIALIZED, STABLE
                       next use
STABLE                 it is known; its connection is made when it is used                       COORDINATOR_DISCOVERY
=====================  ========================================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

from kafka.protocol.metadata import FindCoordinatorRequest

from .._net.outages import Outages
from .._net.singleflight import SingleFlight, StartSoon
from ..errors import TrikafkaError, from_code
from ..interfaces import CoordinatorKind, MetadataManager
from ..types import Node

__all__ = ["CoordinatorKind", "CoordinatorState", "Coordinators"]


#: Told of a coordinator: of what it is one, where it is, or ``None``: it is not known any more.
Watch: TypeAlias = Callable[[CoordinatorKind, str, Node | None], object]


class CoordinatorState(Enum):
    """See the module."""

    DOWN = "down"
    INITIALIZED = "initialized"
    COORDINATOR_DISCOVERY = "coordinator discovery"
    STABLE = "stable"


class Coordinators:
    """Finds coordinators; calls for the same one at the same time share the request. ``watch`` is told of each change."""

    def __init__(
        self, metadata: MetadataManager, start_soon: StartSoon, outages: Outages, watch: Watch | None = None
    ) -> None:
        self._watch: Watch = watch if watch is not None else lambda kind, key, node: None
        self._metadata, self._start_soon, self._outages = metadata, start_soon, outages
        self._known: dict[tuple[CoordinatorKind, str], Node] = {}
        self._needed: set[tuple[CoordinatorKind, str]] = set()
        self._flights: dict[tuple[CoordinatorKind, str], SingleFlight[Node]] = {}

    def state(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> CoordinatorState:
        """Where the coordinator of ``key`` stands, in a client that is open."""
        if (kind, key) in self._known:
            return CoordinatorState.STABLE
        return CoordinatorState.COORDINATOR_DISCOVERY if (kind, key) in self._needed else CoordinatorState.INITIALIZED

    async def find(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        """The coordinator of ``key``. Raises a retriable error while there is none."""
        place = (kind, key)
        if (node := self._known.get(place)) is not None:
            return node
        self._needed.add(place)
        flight = self._flights.get(place)
        if flight is None:
            flight = self._flights[place] = SingleFlight(self._start_soon, lambda: self._look_up(key, kind))
        return await flight()

    def mark_unknown(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None:
        """The coordinator has moved or does not respond: look it up at the next use."""
        if self._known.pop((kind, key), None) is not None:
            self._watch(kind, key, None)

    async def _look_up(self, key: str, kind: CoordinatorKind) -> Node:
        what = f"{kind.name.lower()} {key!r}"
        try:
            response = await self._metadata.ask_any(
                lambda: FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key])
            )
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code:
                raise from_code(found.error_code, f"coordinator of {what}", operation="Describe")
            node = self._known[(kind, key)] = Node(found.node_id, found.host, found.port)
            self._outages.coordinator_found(what, node)
            self._watch(kind, key, node)
            return node
        except TrikafkaError as error:
            self._outages.coordinator_missing(what, error)
            raise
        finally:
            self._flights.pop((kind, key), None)
