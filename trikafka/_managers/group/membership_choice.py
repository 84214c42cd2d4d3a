"""The membership for ``group_protocol="auto"``: the consumer protocol if possible, else classic.

The consumer protocol (KIP-848) is used where the group's coordinator has it. The choice is made
when there is a subscription to follow, and kept. A setting that only the classic protocol has is a
choice, too.
"""

from __future__ import annotations

import logging

import trio

from ..._net import reasons
from ..._state.consumer.subscription import Mode
from ..._wire.extra_messages import ConsumerGroupHeartbeatRequest
from ...errors import TrikafkaError, UnsupportedVersionError
from ...errors.refusals import may_be_lifted
from .classic_membership import ClassicMembership
from .consumer_membership import ConsumerMembership, WrongGroupType
from .join_attempts import JoinAttempts
from .membership_base import MembershipDependencies
from .target_reconciler import WakeFlag

_log = logging.getLogger("trikafka.membership")
#: Settings of the classic protocol; the broker decides these in the consumer protocol.
_CLASSIC_ONLY = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")


class MembershipChoice:
    """A membership manager that delegates to that of the chosen protocol."""

    def __init__(
        self,
        dependencies: MembershipDependencies,
        consumer: ConsumerMembership,
        classic: ClassicMembership,
        *,
        only_classic: bool = False,
    ) -> None:
        assert dependencies.config.group_id is not None
        self._dependencies = dependencies
        self._consumer = consumer
        self._classic = classic
        self._chosen: ConsumerMembership | ClassicMembership | None = None
        self._attempts = JoinAttempts(
            dependencies.config,
            dependencies.config.group_id,
            dependencies.member,
            dependencies.requests.refused_until,
        )
        self._fatal: TrikafkaError | None = None
        if only_classic or not dependencies.config.explicit.isdisjoint(_CLASSIC_ONLY):
            self._choose(classic)
        # The poll interval of the classic protocol.
        self._patience = dependencies.poll_timer.limit
        self._wake_flag = WakeFlag()
        self._reason = reasons.WaitContext()

    @property
    def reason(self) -> reasons.WaitContext:
        """The reason for which the task that joins and follows the group waits."""
        return self._reason if self._chosen is None else self._chosen.reason

    @property
    def fatal(self) -> TrikafkaError | None:
        """The error that stopped the group's work, until the user subscribes again."""
        if self._chosen is None:
            return self._fatal
        if (
            self._chosen is self._classic
            and self._dependencies.subscription.mode is Mode.BROKER_PATTERN
        ):
            return UnsupportedVersionError(
                "a SubscriptionPattern needs the consumer group protocol (KIP-848, Kafka 4.0 or "
                "newer), which is not in use"
            )
        return self._chosen.fatal

    def subscription_changed(self) -> None:
        """Follow the new subscription; errors that stopped the last one are forgotten."""
        self._fatal = None
        self._dependencies.member.unhindered()
        self._wake_flag.set()
        if self._chosen is not None:
            self._chosen.subscription_changed()

    async def run(self) -> None:
        """Choose when there is a subscription, then run the chosen membership."""
        reasons.adopt(self._reason)
        self._fatal = None
        if self._chosen is None:
            self._choose(self._consumer if await self._offered() else self._classic)
        assert self._chosen is not None
        try:
            await self._chosen.run()
        except WrongGroupType as refusal:
            _log.info(
                "group %s: going on by the classic protocol: %s",
                self._dependencies.config.group_id,
                refusal.error,
            )
            # By its id the coordinator recognizes the member, which keeps its partitions. With
            # another id the partitions would have no member until its session ends (45 s).
            self._dependencies.member.forget(keep_id=refusal.known)
            self._dependencies.poll_timer.limit_to(self._patience)
            self._choose(self._classic)
            await self._classic.run()

    def rejoin(self, why: str) -> None:
        """Join again soon."""
        if self._chosen is not None:
            self._chosen.rejoin(why)

    async def leave(self, *, closing: bool = False) -> None:
        """Leave the group."""
        if self._chosen is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._chosen.leave(closing=closing)

    def reset(self) -> None:
        """Mark the member as out of the group."""
        self._fatal = None
        self._dependencies.member.unhindered()
        if self._chosen is not None:
            self._chosen.reset()

    def _choose(self, membership: ConsumerMembership | ClassicMembership) -> None:
        _log.debug("group %s: %s", self._dependencies.config.group_id, type(membership).__name__)
        assignor = self._dependencies.config.group_remote_assignor
        if membership is self._classic and assignor is not None:
            _log.warning(
                "group %s: group_remote_assignor=%r has no effect, because the group uses the "
                "classic protocol; set partition_assignment_strategy for it",
                self._dependencies.config.group_id,
                assignor,
            )
        self._chosen = membership
        # The subscription may need the other protocol. A waiting receive then raises that error.
        self._dependencies.wake()

    async def _offered(self) -> bool:
        """Wait for a subscription; return whether the coordinator has the consumer protocol."""
        self._attempts.forget()
        while True:
            while not self._dependencies.subscription.grouped or self._fatal is not None:
                await self._wake_flag.wait()
                self._wake_flag.clear()
            try:
                return await self._dependencies.requests.offers(
                    ConsumerGroupHeartbeatRequest, self._dependencies.config.request_timeout
                )
            except TrikafkaError as error:
                self._dependencies.requests.recover(error)
                reasons.failed(error)
                if error.retriable:
                    await trio.sleep(self._attempts.failed(error))
                elif may_be_lifted(error):
                    next_attempt = self._attempts.refused_by(error)
                    self._dependencies.wake()
                    self._wake_flag.clear()
                    await self._wake_flag.wait(next_attempt)
                else:
                    self._fatal = error
                    self._dependencies.wake()
