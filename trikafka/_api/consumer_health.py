"""Is the consumer working, and if not, why? What a liveness probe may ask: plain functions over what the parts know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import trio

from .._managers.fetch import Fetcher
from .._state.member import MemberState
from ..error_codes import ErrorCode
from ..errors import topic_missing
from ..types import Node, TopicPartition
from .consumer_parts import ConsumerParts


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """Whether a consumer works. ``ok`` is false when something has gone wrong that more waiting may not mend.

    ``reasons`` says what, one sentence each; ``state`` is the member's (``"unjoined"`` without a group); ``stalled`` holds the
    partitions without progress, each with the reason; ``connected`` are the brokers that there are connections to, ``unreachable``
    those that none can be made to, each with the cause (one of several is not yet a reason); ``error`` is what stopped the group's
    work, if anything did.

    ``last_heartbeat`` is how long ago (seconds) the last heartbeat was sent that the coordinator answered; ``None`` if there was
    none yet, and without a subscription in a group, when none is due. ``last_fetch`` is the same of fetches: how long ago the last
    response came that was about the partition too and had no error for it. A paused partition, and one of which enough is buffered,
    is not fetched; one that never was is not in it. A plugin in the seat of the fetch manager, or of the heartbeats, tells nothing
    of this.

    ``last_error`` is what something failed with last that has not worked since: connecting, heartbeats, fetching, looking up
    positions, auto commit. ``None`` while all of it works.

    ``throttled`` are the brokers that have the consumer wait now by a quota of theirs (KIP-219), each with how: no reason, for it
    works, but slowly.
    """

    ok: bool
    reasons: tuple[str, ...]
    state: str
    stalled: Mapping[TopicPartition, str]
    connected: tuple[Node, ...]
    unreachable: Mapping[Node, str]
    error: Exception | None
    last_heartbeat: float | None
    last_fetch: Mapping[TopicPartition, float]
    last_error: Exception | None
    throttled: Mapping[Node, str]


def consumer_health(parts: ConsumerParts, *, closed: bool) -> ConsumerHealth:
    """What :meth:`trikafka.Consumer.health` returns."""
    member, outages, now = parts.core.member, parts.brokers.outages, trio.current_time()
    stalled = parts.watchdog.stalled(now)
    unreachable = {node: f"since {now - outage.since:.0f} s: {outage.error}" for node, outage in outages.unreachable().items()}
    fatal = None if parts.group.membership is None else parts.group.membership.fatal
    reasons = list(_reasons(parts, unreachable, fatal, closed=closed))
    reasons += [f"{tp}: no progress: {why}" for tp, why in stalled.items()]
    return ConsumerHealth(
        not reasons,
        tuple(reasons),
        member.state.value,
        MappingProxyType(stalled),
        parts.brokers.connected(),
        MappingProxyType(unreachable),
        fatal,
        None if member.last_heartbeat is None or not parts.core.subscription.grouped else now - member.last_heartbeat,
        MappingProxyType(_last_fetches(parts, now)),
        next(_errors(parts, fatal), None),
        MappingProxyType(parts.brokers.throttles.now()),
    )


def _reasons(parts: ConsumerParts, unreachable: Mapping[Node, str], fatal: Exception | None, *, closed: bool) -> Iterator[str]:
    grouped, state = parts.core.subscription.grouped, parts.core.member.state
    if closed:
        yield "the consumer is closed"
    if fatal is not None:
        yield f"the group's work has stopped: {fatal}"
    if grouped and state is MemberState.STALE:
        yield "nothing was received for max_poll_interval_ms, so the member left the group; the next receive joins again"
    if grouped and state is MemberState.FENCED and fatal is None:
        yield "the group has fenced the member; the next receive joins again"
    if grouped:
        known = parts.metadata.snapshot.topics
        for topic in sorted(parts.core.subscription.topics):
            if (info := known.get(topic)) is not None and info.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                yield f"{topic_missing(topic, parts.metadata.snapshot.existing())} (it is subscribed to)"
    if parts.brokers.outages.all_away:
        yield "no broker of the cluster can be reached: " + "; ".join(unreachable.values())


def _last_fetches(parts: ConsumerParts, now: float) -> dict[TopicPartition, float]:
    fetcher = parts.manager("fetch")
    if not isinstance(fetcher, Fetcher):
        return {}
    fetched = {partition.tp: fetcher.last_fetch(partition)[0] for partition in parts.core.assignment}
    return {tp: now - at for tp, at in fetched.items() if at is not None}


def _errors(parts: ConsumerParts, fatal: Exception | None) -> Iterator[Exception]:
    """What has failed and not worked since, what is behind most of the others first."""
    assignment, fetcher = parts.core.assignment, parts.manager("fetch")
    found = [fatal, *(partition.error for partition in assignment.failed), parts.brokers.outages.cause]
    found.append(parts.core.member.heartbeat_error if parts.core.subscription.grouped else None)
    if isinstance(fetcher, Fetcher):
        found += [fetcher.last_error, *(fetcher.last_fetch(partition)[1] for partition in assignment)]
    found += [parts.positions.last_error, None if parts.group.auto_commit is None else parts.group.auto_commit.last_error]
    return (error for error in found if error is not None)
