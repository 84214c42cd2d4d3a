"""The brokers for the admin client's requests: coordinators and partition leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeAlias, TypeVar

import trio

from ..._net.deadlines import RunningCall
from ..._net.gather import all_of
from ...errors import TrikafkaError
from ...interfaces import CoordinatorKind, CoordinatorManager, MetadataManager
from ...types import Node, TopicPartition

K = TypeVar("K")
#: Records an error of these keys that no retry can fix.
Refuse: TypeAlias = Callable[[list[K], TrikafkaError], None]
AskCoordinator: TypeAlias = Callable[[Node, list[str]], Awaitable[None]]
AskLeader: TypeAlias = Callable[[Node, list[TopicPartition]], Awaitable[None]]


async def at_coordinators(
    call: RunningCall,
    coordinators: CoordinatorManager,
    kind: CoordinatorKind,
    keys: list[str],
    ask: AskCoordinator,
    refuse: Refuse[str] | None = None,
) -> None:
    """Find the coordinators of ``keys``, and send each one a request about its keys.

    If a coordinator is not found, the others still get their requests. The error is raised
    afterwards, unless ``refuse`` records it.

    Args:
        call: The admin client's call.
        coordinators: Finds the coordinators.
        kind: The kind of the keys: groups or transactional ids.
        keys: The keys.
        ask: Sends the request about some keys to a broker.
        refuse: Records an error that no retry can fix; ``None``: it is raised.

    Raises:
        TrikafkaError: A look-up or a request failed.
    """
    places: dict[Node, list[str]] = defaultdict(list)
    lost: list[TrikafkaError] = []

    async def find(key: str) -> None:
        places[
            await call.step("find the coordinator", lambda: coordinators.find(key, kind))
        ].append(key)

    async def try_to_find(key: str) -> None:
        try:
            await apart([key], refuse, partial(find, key))
        except TrikafkaError as error:
            lost.append(error)

    async def fail(error: TrikafkaError) -> None:
        raise error

    if not keys:
        await trio.lowlevel.checkpoint()
        return
    await all_of([partial(try_to_find, key) for key in keys])
    works = [
        partial(apart, names, refuse, partial(ask, node, names)) for node, names in places.items()
    ]
    await all_of([*works, *(partial(fail, error) for error in lost)])


async def apart(
    keys: list[K], refuse: Refuse[K] | None, work: Callable[[], Awaitable[None]]
) -> None:
    """Run ``work``; pass an error that no retry can fix to ``refuse`` instead of raising it."""
    try:
        await work()
    except TrikafkaError as error:
        if refuse is None or error.retriable:
            raise
        refuse(keys, error)


async def at_leaders(
    call: RunningCall,
    metadata: MetadataManager,
    partitions: Iterable[TopicPartition],
    ask: AskLeader,
    failed: Callable[[TopicPartition, TrikafkaError], None],
    refuse: Refuse[TopicPartition],
) -> None:
    """Find the leaders of partitions, and send each one a request about its partitions.

    Args:
        call: The admin client's call.
        metadata: Knows the leaders.
        partitions: The partitions.
        ask: Sends the request about some partitions to a broker.
        failed: Records the error of a partition without a leader.
        refuse: Records an error of a leader's request that no retry can fix.

    Raises:
        TrikafkaError: A request failed with an error that a retry may fix.
    """
    wanted = list(partitions)
    places, leaderless = _by_leader(metadata, wanted)
    if leaderless:
        # All topics, and not only those without a leader: the new snapshot may have only the topics
        # that were requested.
        topics = {tp.topic for tp in wanted}
        await call.step("look up the leaders", lambda: metadata.refresh(topics))
        places, leaderless = _by_leader(metadata, wanted)
    for tp, error in leaderless.items():
        if metadata.snapshot.lacks(tp):  # the metadata is fresh, so waiting would not help
            error.retriable = False
        failed(tp, error)
    if not places:
        await trio.lowlevel.checkpoint()
    await all_of(
        [partial(apart, parts, refuse, partial(ask, node, parts)) for node, parts in places.items()]
    )


def _by_leader(
    metadata: MetadataManager, wanted: list[TopicPartition]
) -> tuple[dict[Node, list[TopicPartition]], dict[TopicPartition, TrikafkaError]]:
    places: dict[Node, list[TopicPartition]] = defaultdict(list)
    leaderless: dict[TopicPartition, TrikafkaError] = {}
    for tp in wanted:
        try:
            places[metadata.snapshot.leader(tp)].append(tp)
        except TrikafkaError as error:
            leaderless[tp] = error
    return places, leaderless
