"""The messages of the consumer group protocol (KIP-848), built and read without I/O.

The membership manager sends them. A heartbeat reports what changed since the last answered one;
after an unanswered one, everything.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Any

from ..._state.consumer.subscription import Mode, Subscription
from ..._state.group.member import MemberIdentity
from ..._state.group.target_assignment import Part, Report
from ..._wire.extra_messages import ConsumerGroupHeartbeatRequest
from ...config import ConsumerConfig
from ...errors import DamagedResponseError

#: Member epochs with a special meaning.
JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
#: The first version of the heartbeat with patterns.
_PATTERNS = 1


def new_member_id() -> str:
    """Return an id that a member keeps for its life (KIP-1082): Kafka's text of a random UUID."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith(
        "-"
    ):
        pass  # such an id would look like an option to Kafka's command line tools
    return text


@dataclass(frozen=True, slots=True)
class _Said:
    """The fields that the coordinator knows of the member; ``None`` means unknown."""

    names: list[str] | None = None
    pattern: str | None = None
    report: Report | None = None


class HeartbeatState:
    """The coordinator's knowledge of one member, which a heartbeat need not repeat."""

    def __init__(self, config: ConsumerConfig, subscription: Subscription) -> None:
        self._config = config
        self._subscription = subscription
        self._said = _Said()
        # True if the coordinator may know a pattern. It keeps that until it gets another one.
        self._had_pattern = False

    def never_sent(self) -> None:
        """Record that the coordinator knows no pattern.

        Its broker has no version of the heartbeat that carries one.
        """
        self._had_pattern = False

    def forget(self) -> None:
        """Report everything with the next heartbeat: the coordinator's knowledge is uncertain."""
        self._said = _Said()

    def request(self, identity: MemberIdentity, report: Report) -> ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat of a member; it joins unless ``identity`` is in the group.

        The content counts as known to the coordinator from now on.
        """
        said = self._said
        now = self._now(report)
        everything = said == _Said()
        joins = not identity.joined
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
            fields["topic_partitions"] = [
                part(topic_id=topic_id, partitions=numbers) for topic_id, numbers in owned.items()
            ]
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
        names = (
            sorted(self._subscription.topics)
            if self._subscription.mode is not Mode.BROKER_PATTERN
            else []
        )
        return _Said(names, "" if pattern is None else pattern.pattern, report)


def leave_request(
    group: str, identity: MemberIdentity, epoch: int
) -> ConsumerGroupHeartbeatRequest:
    """Return the last heartbeat of a member: permanent (:data:`LEAVE`), or for a while."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=identity.member_id,
        member_epoch=epoch,
        instance_id=identity.instance_id,
    )


def assigned(response: Any) -> list[Part] | None:
    """Return the assignment in a response; ``None``: as before. Raises :exc:`DamagedResponseError`.

    A partition that is named twice appears once.
    """
    if response.assignment is None:
        return None
    found: dict[Part, None] = {}
    for topic in response.assignment.topic_partitions:
        for number in topic.partitions:
            # The id of no topic, which is all zeros, is decoded as None.
            if topic.topic_id is None or number < 0:
                raise DamagedResponseError(
                    f"the coordinator assigned partition {number} of the topic with id "
                    f"{topic.topic_id}"
                )
            found[topic.topic_id, number] = None
    return list(found)
