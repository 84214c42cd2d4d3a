"""The health of a consumer, for probes and alerts: plain functions over its parts."""

# The rule behind ``ok``: it is false if more waiting may not help, and true while the state will
# probably pass by itself.
#
# So these are no reasons: one unreachable broker of several, since its partitions may move to
# another one; a rebalance; a quota; another program's open transaction. These are: a partition, a
# commit or the place in the group that has made no progress for stall_warning_ms (the watchdog
# finds that); a refusal by the group; a fatal error; a member that left because nothing was
# received; a cluster without any reachable broker. Each cause has one sentence, so that the log of
# a probe does not repeat an outage for each partition.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import trio

from ..._managers.consumer.fetch import Fetcher
from ..._state.consumer.assignment import AssignedPartition
from ..._state.group.member import MemberState
from ...error_codes import ErrorCode
from ...errors import topic_missing
from ...types import MetricsPush, Node, TopicPartition
from ..client.snapshots import ByKey
from .parts import ConsumerParts
from .watchdog import GROUP, CommittedRecords


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The health of a consumer.

    Attributes:
        ok: False when something is wrong that more waiting may not fix.
        reasons: What is wrong, one sentence each.
        state: The member's state; ``"unjoined"`` without a group.
        stalled: Partitions without progress, with the reason.
        connected: Brokers with a connection.
        unreachable: Brokers that cannot be reached, with the cause. Not a reason while another
            broker responds.
        error: The error that stopped the group's work, or that delays it until the next attempt.
        last_heartbeat: Seconds since the member sent the last heartbeat that the coordinator has
            answered. ``None`` before the first one, and without a subscription.
        last_fetch: Seconds since the last successful fetch, by partition. Partitions that were
            never fetched are missing. A partition is not fetched while it is paused, or has enough
            records in the buffer. Empty for a plugin's fetch manager.
        last_error: The error of something that does not work now: connecting, heartbeats, fetching,
            looking up positions, auto commit. ``None`` while all of it works.
        throttled: Brokers whose quota makes the consumer wait now (KIP-219), with details. Not a
            reason: the consumer works, but slowly.
        metrics_push: The pushes of metrics (KIP-714), with the last failure and its time; ``None``
            if they are switched off. Not a reason: the consumer works without them.
        behind_transactions: Partitions in which an open transaction has kept a read_committed
            consumer from newer records for ``stall_warning_ms``, with details. Not a reason: the
            transaction of another program is the cause, and a restart of this one is no cure.
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
    metrics_push: MetricsPush | None = None
    behind_transactions: Mapping[TopicPartition, str] = field(default_factory=dict)


def consumer_health(parts: ConsumerParts, *, closed: bool) -> ConsumerHealth:
    """Return the health of a consumer, for :meth:`trikafka.Consumer.health`."""
    member = parts.core.member
    outages = parts.brokers.outages
    now = trio.current_time()
    standing = parts.watchdog.stalled(now)
    stalled = {
        each.key.tp: each.reason for each in standing if isinstance(each.key, AssignedPartition)
    }
    behind = {
        each.key.partition.tp: f"for {now - each.since:.0f} s: {each.reason}"
        for each in standing
        if isinstance(each.key, CommittedRecords)
    }
    held = parts.streams.held(now)
    unreachable = outages.described()
    fatal = None if parts.group.membership is None else parts.group.membership.fatal
    stopped_by = fatal or (member.hindrance if member.next_attempt > -math.inf else None)
    reasons = list(_reasons(parts, unreachable, fatal, closed=closed))
    # A stall whose cause has a sentence of its own is left out.
    for each in standing:
        if isinstance(each.key, CommittedRecords):
            continue
        if isinstance(each.key, AssignedPartition) and each.key.tp in held:
            continue
        if each.key == GROUP and fatal is not None:
            continue
        reasons.append(f"{each.name}: no progress: {each.reason}")
    reasons += [f"{tp}: no progress: {why}" for tp, why in held.items()]
    return ConsumerHealth(
        not reasons,
        tuple(reasons),
        member.state.value,
        ByKey(stalled | held),
        parts.brokers.connected(),
        ByKey(unreachable),
        stopped_by,
        None
        if member.last_heartbeat is None or not parts.core.subscription.grouped
        else now - member.last_heartbeat,
        ByKey(_last_fetches(parts, now)),
        next(_errors(parts, fatal), None),
        ByKey(parts.brokers.throttles.now()),
        parts.telemetry.statistics(),
        ByKey(behind),
    )


def _reasons(
    parts: ConsumerParts, unreachable: Mapping[Node, str], fatal: Exception | None, *, closed: bool
) -> Iterator[str]:
    grouped = parts.core.subscription.grouped
    state = parts.core.member.state
    if closed:
        yield "the consumer is closed"
    if fatal is not None:
        yield f"the group's work has stopped: {fatal}"
    elif grouped and (hindrance := parts.core.member.hindrance) is not None:
        left = parts.core.member.next_attempt - trio.current_time()
        then = f"; the next attempt is in {left:.0f} s" if left > 0 else ""
        what = (
            "the member's heartbeats fail"
            if state is MemberState.STABLE
            else "the member is not in its group"
        )
        yield f"{what}: {hindrance}{then}"
    if grouped and (left_out := parts.core.member.left_out):
        yield (
            f"this member leads the group and assigns nothing to {', '.join(left_out[:3])}, whose "
            "subscriptions cannot be read"
        )
    if grouped and state is MemberState.STALE:
        if stuck := parts.core.poll_timer.stuck:
            held = (
                f"the handlers of all streams in use ({stuck}) have held their records for "
                "max_poll_interval_ms"
            )
            yield f"{held}, so the member left the group; it joins again when one of them returns"
        else:
            yield (
                "nothing was received for max_poll_interval_ms, so the member left the group; the "
                "next receive joins again"
            )
    if grouped and state is MemberState.FENCED and fatal is None:
        yield "the group has fenced the member; the next receive joins again"
    if grouped:
        known = parts.metadata.snapshot.topics
        for topic in sorted(parts.core.subscription.topics):
            if (
                info := known.get(topic)
            ) is not None and info.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                yield (
                    f"{topic_missing(topic, parts.metadata.snapshot.existing())} (it is "
                    "subscribed to)"
                )
    if parts.brokers.outages.all_away:
        yield "no broker of the cluster can be reached: " + "; ".join(unreachable.values())


def _last_fetches(parts: ConsumerParts, now: float) -> dict[TopicPartition, float]:
    fetcher = parts.manager("fetch")
    if not isinstance(fetcher, Fetcher):
        return {}
    fetched = {
        partition.tp: fetcher.last_fetch(partition)[0] for partition in parts.core.assignment
    }
    return {tp: now - at for tp, at in fetched.items() if at is not None}


def _errors(parts: ConsumerParts, fatal: Exception | None) -> Iterator[Exception]:
    """Yield the errors of everything that does not work now, the likeliest root cause first."""
    assignment = parts.core.assignment
    fetcher = parts.manager("fetch")
    found = [
        fatal,
        parts.core.member.hindrance,
        *(partition.error for partition in assignment.failed),
        parts.brokers.outages.cause,
    ]
    found.append(parts.core.member.heartbeat_error if parts.core.subscription.grouped else None)
    if isinstance(fetcher, Fetcher):
        found += [
            fetcher.last_error,
            *(fetcher.last_fetch(partition)[1] for partition in assignment),
        ]
    found += [
        parts.positions.last_error,
        None if parts.group.auto_commit is None else parts.group.auto_commit.last_error,
    ]
    return (error for error in found if error is not None)
