"""The messages of the consumer group protocol (KIP-848): built and read here, sent by the membership manager. No I/O.

A heartbeat says what changed since the last one that was answered; after one that was not, everything.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Any

from .._state.member import Identity
from .._state.subscription import Mode, Subscription
from .._state.target_assignment import Part, Report
from .._wire.extra_messages import ConsumerGroupHeartbeatRequest
from ..config import ConsumerConfig

#: Member epochs that say something else than where a member is.
JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
#: The version of the heartbeat that knows patterns.
_PATTERNS = 1


def new_member_id() -> str:
    """An id for a member, which it keeps for its life (KIP-1082): Kafka's text of a random UUID."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass  # it would look like an option to Kafka's command line tools
    return text


@dataclass(frozen=True, slots=True)
class _Said:
    """What the coordinator knows of the member. ``None``: nothing."""

    names: list[str] | None = None
    pattern: str | None = None
    report: Report | None = None


class HeartbeatState:
    """What the coordinator knows of one member, and so what a heartbeat need not say again."""

    def __init__(self, config: ConsumerConfig, subscription: Subscription) -> None:
        self._config, self._subscription = config, subscription
        self._said = _Said()
        self._had_pattern = False  # the coordinator may have heard of one, and keep it as long as it hears of no other

    def never_sent(self) -> None:
        """The broker has no version of the heartbeat that carries the pattern: it has not heard of one."""
        self._had_pattern = False

    def forget(self) -> None:
        """Nobody knows what the coordinator has heard: the next heartbeat says everything."""
        self._said = _Said()

    def request(self, identity: Identity, report: Report) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat of a member: one that joins, unless ``identity`` is in the group. It counts as heard from now on."""
        said, now = self._said, self._now(report)
        everything, joins = said == _Said(), not identity.joined
        fields: dict[str, Any] = {}
        if everything:
            fields["rack_id"] = self._config.client_rack or None
            fields["rebalance_timeout_ms"] = int(self._config.max_poll_interval_ms)
            fields["server_assignor"] = self._config.group_remote_assignor
        if now.names != said.names:
            fields["subscribed_topic_names"] = now.names
        if now.pattern != (said.pattern or "") or (everything and self._had_pattern):
            fields["subscribed_topic_regex"] = now.pattern
            fields["min_version"] = _PATTERNS
            self._had_pattern = True
        if joins or report != said.report:
            owned = {} if joins else report.by_topic()
            part = ConsumerGroupHeartbeatRequest.TopicPartitions
            fields["topic_partitions"] = [part(topic_id=topic_id, partitions=numbers) for topic_id, numbers in owned.items()]
        self._said = now
        return ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=identity.member_id,
            member_epoch=identity.generation if identity.joined else JOIN,
            instance_id=identity.instance_id,
            **fields,
        )

    def _now(self, report: Report) -> _Said:
        pattern = self._subscription.broker_pattern
        names = sorted(self._subscription.topics) if self._subscription.mode is not Mode.BROKER_PATTERN else []
        return _Said(names, "" if pattern is None else pattern.pattern, report)


def leave_request(group: str, identity: Identity, epoch: int) -> ConsumerGroupHeartbeatRequest:
    """The last heartbeat of a member: for good (:data:`LEAVE`), or for a while."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=identity.member_id, member_epoch=epoch, instance_id=identity.instance_id
    )


def assigned(response: Any) -> list[Part] | None:
    """The assignment in a response; ``None``: as before."""
    if response.assignment is None:
        return None
    return [(topic.topic_id, number) for topic in response.assignment.topic_partitions for number in topic.partitions]
