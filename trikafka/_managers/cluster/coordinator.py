"""The coordinator manager: which broker coordinates a group or a transactional id.

Nothing else writes the cache of coordinators. Each coordinator is in one of four states, as in
Kafka's design of a consumer thread:

* DOWN: the client is not open. Follows any state.
* INITIALIZED: the client is open, and nothing has needed this coordinator yet. Follows DOWN.
* COORDINATOR_DISCOVERY: the coordinator is needed and not known; it is being looked up, or will be
  at its next use. Follows INITIALIZED and STABLE.
* STABLE: the coordinator is known; its connection is made at its next use. Follows
  COORDINATOR_DISCOVERY.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import TypeAlias

import trio
from kafka.protocol.metadata import FindCoordinatorRequest

from ..._net.addresses import impossible, is_possible
from ..._net.outages import Outages
from ..._net.singleflight import SingleFlight, StartSoon
from ...errors import TrikafkaError, from_code
from ...interfaces import CoordinatorKind, MetadataManager
from ...types import Node

__all__ = ["CoordinatorKind", "CoordinatorState", "Coordinators"]


#: Seconds between two look-ups of the broker that has taken over from a silent coordinator.
_LOOK_AGAIN = 1.0
#: The number of coordinators that are remembered. An admin client may be asked about group after
#: group for weeks; it looks a forgotten coordinator up again.
MOST = 10_000
#: Called with the kind, the key and the node; ``None``: the coordinator is no longer known.
Watch: TypeAlias = Callable[[CoordinatorKind, str, Node | None], object]


class CoordinatorState(Enum):
    """The states of a coordinator; see the module."""

    DOWN = "down"
    INITIALIZED = "initialized"
    COORDINATOR_DISCOVERY = "coordinator discovery"
    STABLE = "stable"


class Coordinators:
    """The known coordinators. Concurrent look-ups of the same one share a request.

    Args:
        metadata: Sends the look-ups to any broker.
        start_soon: Starts a task in the client's nursery.
        outages: Reports the brokers that fall silent.
        watch: Called with each change of a coordinator.
        leave: Called with the old coordinator when another broker has taken over from it.
    """

    def __init__(
        self,
        metadata: MetadataManager,
        start_soon: StartSoon,
        outages: Outages,
        watch: Watch | None = None,
        leave: Callable[[Node], object] = lambda node: None,
    ) -> None:
        self._watch: Watch = watch if watch is not None else lambda kind, key, node: None
        self._metadata = metadata
        self._start_soon = start_soon
        self._outages = outages
        self._known: dict[tuple[CoordinatorKind, str], Node] = {}
        # All that were asked for, known or not.
        self._needed: dict[tuple[CoordinatorKind, str], None] = {}
        self._flights: dict[tuple[CoordinatorKind, str], SingleFlight[Node]] = {}
        self._leave = leave
        # The silent brokers for which a task is looking for a successor.
        self._doubted: set[int] = set()
        outages.when_silent(self._doubt)

    def state(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> CoordinatorState:
        """Return the state of the coordinator of ``key``, in a client that is open."""
        if (kind, key) in self._known:
            return CoordinatorState.STABLE
        return (
            CoordinatorState.COORDINATOR_DISCOVERY
            if (kind, key) in self._needed
            else CoordinatorState.INITIALIZED
        )

    async def find(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Node:
        """Return the coordinator of ``key``; look it up if it is not known.

        Cancelling the caller does not cancel a look-up that others share.

        Raises:
            TrikafkaError: The look-up failed. The error is retriable while there is no coordinator.
        """
        place = (kind, key)
        if (node := self._known.get(place)) is not None:
            return node
        self._need(place)
        return await self._found(key, kind)

    # A walk over a few groups more than MOST would find none of them if the oldest were forgotten:
    # each look-up would forget the very coordinator that the walk needs next.
    def _need(self, place: tuple[CoordinatorKind, str]) -> None:
        """Remember that this coordinator is needed; forget any one of too many."""
        if place not in self._needed and len(self._needed) >= MOST:
            kind, key = next(islice(self._needed, random.randrange(MOST), None))
            del self._needed[kind, key]
            self.mark_unknown(key, kind)
        self._needed[place] = None

    async def look_again(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None:
        """Look up the coordinator of ``key`` even if it is known. Raises as :meth:`find`.

        If another broker has taken over, the connections to the old one are closed.
        """
        before = self._known.get((kind, key))
        now = await self._found(key, kind)
        if before is not None and before.node_id != now.node_id:
            self._leave(before)

    async def _found(self, key: str, kind: CoordinatorKind) -> Node:
        flight = self._flights.get((kind, key))
        if flight is None:
            flight = self._flights[kind, key] = SingleFlight(
                self._start_soon, lambda: self._look_up(key, kind)
            )
        return await flight()

    def _doubt(self, node: Node) -> None:
        """Look for the successors of a silent broker as coordinators."""
        # A silent coordinator may be frozen, and its groups may have moved. It cannot be asked, so
        # others are (FindCoordinator is answered by any broker), once a second until it responds
        # again or coordinates nothing more. The known coordinator stays in the cache meanwhile: a
        # broker that is merely slow is still the coordinator, and each request of the group would
        # otherwise begin with a look-up. Once a response names another broker, `look_again` closes
        # the connections to the old one, so that requests in flight there fail and are repeated at
        # the new one.
        if node.node_id not in self._doubted and self._places_at(node):
            self._doubted.add(node.node_id)
            self._start_soon(self._replace, node)

    async def _replace(self, node: Node) -> None:
        """Ask other brokers until the silent one responds again or coordinates nothing any more."""
        try:
            while self._outages.is_away(node) and (places := self._places_at(node)):
                for kind, key in places:
                    with suppress(TrikafkaError):  # there may be no coordinator yet
                        await self.look_again(key, kind)
                await trio.sleep(_LOOK_AGAIN)
        finally:
            self._doubted.discard(node.node_id)

    def _places_at(self, node: Node) -> list[tuple[CoordinatorKind, str]]:
        return [place for place, known in self._known.items() if known.node_id == node.node_id]

    def mark_unknown(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> None:
        """Forget a coordinator that has moved or is silent: the next use looks it up."""
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
            before = self._known.get((kind, key))
            node = Node(found.node_id, found.host, found.port)
            if not is_possible(node):
                raise impossible(node, f"the coordinator of {what}")
            self._need((kind, key))
            self._known[(kind, key)] = node
            self._outages.coordinator_found(what, node)
            if node != before:
                self._watch(kind, key, node)
            if self._outages.is_away(node):
                self._doubt(node)
            return node
        except TrikafkaError as error:
            self._outages.coordinator_missing(what, error)
            raise
        finally:
            self._flights.pop((kind, key), None)
