"""The routes of the admin client's requests, and the parts of a call about several things.

A request goes to any broker, to the controller, to one broker by its number, to every broker, to
the leaders of partitions, or to the coordinators of groups or transactional ids. Each method here
makes one attempt; :func:`run_call` repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import trio

from ..._net.deadlines import RunningCall
from ..._net.gather import all_of
from ...error_codes import ErrorCode
from ...errors import (
    AdminErrors,
    DamagedResponseError,
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TrikafkaError,
    combined,
    from_code,
)
from ...errors.groups import decisive, with_others
from ...interfaces import BrokerAccess, CoordinatorKind, CoordinatorManager, MetadataManager
from ...types import Node, TopicPartition
from .places import Refuse, apart, at_coordinators, at_leaders

K = TypeVar("K")
V = TypeVar("V")
#: The broker for one request: any, the controller, or the one with this number.
Place: TypeAlias = Literal["any", "controller"] | int
#: Makes the request about some of the keys: those of one broker.
Build: TypeAlias = Callable[[list[K]], Any]
#: Takes in the response about some of the keys; raises the error of a part of them, if any.
Read: TypeAlias = Callable[[Any, list[K]], None]
_NO_ANSWER = (RequestTimedOutError, KafkaConnectionError, DamagedResponseError)


class Routing:
    """The ways of one admin client's requests to the brokers."""

    def __init__(
        self, brokers: BrokerAccess, metadata: MetadataManager, coordinators: CoordinatorManager
    ) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._coordinators = coordinators

    async def request(self, call: RunningCall, place: Place, request: Any) -> Any:
        """Send a request to one broker; return the response.

        Raises:
            TrikafkaError: The cluster has no live broker of this number.
        """
        if place == "any":
            return await call.step(_name(request), lambda: self._metadata.ask_any(lambda: request))
        return await self._at(call, await self._node(call, place), request)

    async def change(
        self,
        call: RunningCall,
        place: Literal["controller"] | int,
        request: Any,
        parts: Parts[K, V],
        keys: Iterable[K],
    ) -> Any:
        """Send a request that changes ``keys``; return the response.

        Without a response, the parts remember that the change may have been made.
        """
        return await self._at(
            call, await self._node(call, place), request, lambda error: parts.doubt(keys, error)
        )

    async def every_broker(
        self,
        call: RunningCall,
        parts: Parts[int, V],
        build: Callable[[], Any],
        read: Callable[[Any], V],
    ) -> None:
        """Send a request to each live broker. The parts are the brokers' numbers."""
        # Each attempt asks all brokers. What a broker lists are the groups, or transactional ids,
        # that it coordinates. Those of a broker that failed may have moved since the attempt
        # before, to a broker that had responded already.
        seen = await call.step("look up the brokers", self._metadata.refresh)
        parts.restart(sorted(seen.nodes))

        async def ask(node: Node) -> None:
            try:
                parts.done(node.node_id, read(await self._at(call, node, build())))
            except TrikafkaError as error:
                if error.retriable:
                    parts.failed(node.node_id, error)
                else:
                    parts.refuse([node.node_id], error)

        await all_of([partial(ask, node) for node in seen.nodes.values()])
        parts.check(parts.left, _name(build()))

    async def each_broker(
        self,
        call: RunningCall,
        places: Mapping[Place, list[K]],
        parts: Parts[K, V],
        build: Build[K],
        read: Read[K],
    ) -> None:
        """Send to each of these brokers a request about its own keys.

        If a broker cannot be asked at all, only its own parts fail.
        """

        async def ask(place: Place, keys: list[K]) -> None:
            read(await self.request(call, place, build(keys)), keys)

        if not places:
            await trio.lowlevel.checkpoint()
        await all_of(
            [
                partial(apart, keys, parts.refuse, partial(ask, place, keys))
                for place, keys in places.items()
            ]
        )

    async def leaders(
        self,
        call: RunningCall,
        parts: Parts[TopicPartition, V],
        build: Build[TopicPartition],
        read: Read[TopicPartition],
    ) -> None:
        """Send to the leaders of the partitions that are left a request about their own.

        A partition without a leader fails.
        """

        async def ask(node: Node, keys: list[TopicPartition]) -> None:
            read(await self._at(call, node, build(keys)), keys)

        await at_leaders(call, self._metadata, parts.left, ask, parts.failed, parts.refuse)

    async def lacking(
        self, call: RunningCall, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, TrikafkaError]:
        """Return the errors of the partitions that their topics do not have.

        Topics that do not exist are left to the broker that is asked about them.
        """
        if not (wanted := list(partitions)):
            return {}
        topics = {tp.topic for tp in wanted}
        seen = await call.step("look up the topics", lambda: self._metadata.refresh(topics))
        errors: dict[TopicPartition, TrikafkaError] = {}
        for tp in filter(seen.lacks, wanted):
            try:
                seen.leader(tp)
            except TrikafkaError as error:
                error.retriable = False  # the metadata is fresh, so waiting would not help
                errors[tp] = error
        return errors

    async def coordinators(
        self,
        call: RunningCall,
        kind: CoordinatorKind,
        keys: list[str],
        build: Build[str],
        read: Read[str],
        *,
        refuse: Refuse[str] | None = None,
        doubt: Refuse[str] | None = None,
    ) -> None:
        """Send to the coordinators of groups or transactional ids a request about their own.

        Args:
            call: The call.
            kind: The kind of coordinator.
            keys: The groups or transactional ids.
            build: Makes a request.
            read: Takes in a response.
            refuse: Takes the error of keys that cannot be asked for, so that the others are.
            doubt: Takes the error of a request that was sent and got no response, with its keys.
        """

        async def ask(node: Node, names: list[str]) -> None:
            unsure = None if doubt is None else partial(doubt, names)
            read(await self._at(call, node, build(names), unsure), names)

        await at_coordinators(call, self._coordinators, kind, keys, ask, refuse)

    async def controller(self, call: RunningCall) -> Node:
        """Return the broker that takes the controller's requests.

        Raises:
            BrokerResponseError: A retriable error while there is none.
        """
        seen = self._metadata.snapshot
        if call.attempts > 1 or seen.controller_node is None:
            seen = await call.step("find the controller", self._metadata.refresh)
        node = seen.controller_node
        if node is None:
            raise from_code(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
        return node

    async def broker(self, call: RunningCall, node_id: int) -> Node:
        """Return the broker with this number.

        Raises:
            TrikafkaError: The cluster has no live broker of this number. It is not retried, and it
                is no ConfigurationError: the broker may be down.
        """
        seen = self._metadata.snapshot
        if node_id not in seen.nodes:
            seen = await call.step("look up the brokers", self._metadata.refresh)
        if node_id not in seen.nodes:
            known = ", ".join(map(str, sorted(seen.nodes)))
            raise TrikafkaError(f"the cluster has no live broker {node_id}; it has {known}")
        return seen.nodes[node_id]

    async def _node(self, call: RunningCall, place: Literal["controller"] | int) -> Node:
        if place == "controller":
            return await self.controller(call)
        return await self.broker(call, place)

    async def _at(
        self,
        call: RunningCall,
        node: Node,
        request: Any,
        doubt: Callable[[TrikafkaError], None] | None = None,
    ) -> Any:
        sent = False

        async def send() -> Any:
            nonlocal sent
            connection = await self._brokers.connection(node)
            sent = True
            return await connection.request(request)

        try:
            return await call.step(f"{_name(request)} to {node}", send)
        except _NO_ANSWER as error:
            # A broker that was never reached has changed nothing.
            if sent and doubt is not None:
                doubt(error)
            raise


class Parts(Generic[K, V]):
    """The parts of a call about several things, over all of its attempts.

    A part is left, done or failed. Only what is left is requested again.
    """

    # A failure that may pass leaves its part in `left`. The attempt notes all outcomes of a
    # response first and calls check() then, so that one part's passing failure does not lose the
    # others' results. An error that clients otherwise retry for a while, such as an unknown topic,
    # is final in a change: the thing to change will not appear by waiting. A look-up is patient: a
    # new topic may not be known to the broker that was asked.

    def __init__(self, keys: Iterable[K], *, patient: bool = False) -> None:
        self._order = list(dict.fromkeys(keys))
        self._left = dict.fromkeys(self._order)
        self._patient = patient
        self._passing: dict[K, TrikafkaError] = {}
        self._checked: dict[K, TrikafkaError] = {}  # what passed in the last attempt
        self._doubts: dict[K, TrikafkaError] = {}
        self._refused: set[K] = set()
        self.results: dict[K, V] = {}
        self.failures: dict[K, TrikafkaError] = {}

    @property
    def left(self) -> list[K]:
        """The parts that are neither done nor have failed."""
        return list(self._left)

    def restart(self, keys: Iterable[K]) -> None:
        """Begin again with these parts, in a call whose attempts each ask for all that there is."""
        self._order = list(dict.fromkeys(keys))
        self._left = dict.fromkeys(self._order)
        self._refused.clear()
        self.results.clear()
        self.failures.clear()

    def add(self, key: K) -> None:
        """Add a part that a response names, in a call about all that there is."""
        if key not in self._left and key not in self.results and key not in self.failures:
            self._order.append(key)
            self._left[key] = None

    def doubt(self, keys: Iterable[K], error: TrikafkaError) -> None:
        """Record that an attempt got no response, and may have been carried out."""
        self._doubts.update(dict.fromkeys(keys, error))

    def done(self, key: K, result: V) -> None:
        """Record the result of a part."""
        if key in self._left:
            del self._left[key]
            self.results[key] = result

    def failed(self, key: K, error: TrikafkaError, *, made_before: ErrorCode | None = None) -> None:
        """Record the failure of a part. One that may pass leaves the part to be repeated.

        ``made_before`` is the code by which a broker refuses a change that was made before. The
        error then says if an earlier attempt may have made it.
        """
        if error.code == ErrorCode.REQUEST_TIMED_OUT:  # the broker goes on with it
            self._doubts[key] = error
        if made_before is not None and error.code == made_before and key in self._doubts:
            # As with Java's client the error stays one: another client may have made the change.
            again = "an attempt before this one got no response and may have done it"
            error.args = (f"{error.args[0]}; {again}", *error.args[1:])
            error.__cause__ = self._doubts[key]
        if error.retriable and (self._patient or math.isinf(error.patience)):
            self._passing[key] = error
        elif key in self._left:
            del self._left[key]
            self.failures[key] = error

    def refuse(self, keys: Iterable[K], error: TrikafkaError) -> None:
        """Fail parts that cannot be asked for at all, such as those of an unknown broker."""
        for key in keys:
            if key in self._left:
                del self._left[key]
                self.failures[key] = error
                self._refused.add(key)

    def check(self, keys: Iterable[K], name: str) -> None:
        """Raise the error of a part that may pass, or that a response left out ``keys``."""
        passing = {key: error for key, error in self._passing.items() if key in self._left}
        self._checked = passing
        self._passing = {}
        if passing:
            # The call's patience with one part must not end the wait for another one, and a look-up
            # that one part needs must not be forgotten for another one.
            raise max(passing.values(), key=lambda each: (each.patience, each.refresh_metadata))
        if missing := [key for key in keys if key in self._left]:
            raise DamagedResponseError(
                f"the response to {name} leaves out {missing[0]!s}, which was asked for"
            )

    def fail_rest(self, error: TrikafkaError) -> None:
        """Fail all parts that are left. Raise the error itself if it says nothing of a part."""
        own = self._own_errors(error)
        if not self.results and not self.failures and not own:
            raise error
        if isinstance(error, KafkaTimeoutError) and not own:
            # The last error of the call is that of one part: each of the others has its own.
            own = {
                key: error if each is error.last_error else _late(error, each)
                for key, each in self._own_errors(error.last_error).items()
            }
        self.failures.update({key: own.get(key, error) for key in self._left})
        self._left.clear()

    def _own_errors(self, error: BaseException | None) -> dict[K, TrikafkaError]:
        """Return the parts' errors in the last attempt, if this one is among them."""
        return self._checked if any(each is error for each in self._checked.values()) else {}

    def finish(self) -> dict[K, V]:
        """Return the results in the order of the keys.

        Raises:
            AdminErrors: Some parts failed. If the call is about one thing, its error is raised,
                with itself in ``failures``. An error that says nothing about the parts is raised
                alone, if all failed by such errors.
        """
        results = {key: self.results[key] for key in self._order if key in self.results}
        failures = {key: self.failures[key] for key in self._order if key in self.failures}
        if not failures:
            return results
        if len(self._order) == 1:
            (error,) = failures.values()
            raise error if error.failures else combined(failures)
        if not results and self._refused.issuperset(failures):
            errors = list(failures.values())
            raise with_others(decisive(errors), errors)
        raise AdminErrors.of(failures, results)


def _late(error: KafkaTimeoutError, reason: TrikafkaError) -> KafkaTimeoutError:
    """Return the timeout of a call for a part that failed for another reason."""
    own = KafkaTimeoutError(error.call, error.limit, error.attempts, reason)
    own.__cause__ = reason
    return own


def _name(request: Any) -> str:
    return str(request.name).removesuffix("Request")
