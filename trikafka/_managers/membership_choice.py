"""``group_protocol="auto"``: membership by the consumer protocol (KIP-848) where the group's coordinator has it, else the classic.

Chosen when the first subscription has to be followed, and kept. Settings that only the classic protocol has are a choice, too.
"""

from __future__ import annotations

import logging

import trio

from .._net.retry import Retry
from .._state.subscription import Mode
from .._wire.extra_messages import ConsumerGroupHeartbeatRequest
from ..config import ConsumerConfig
from ..errors import TrikafkaError, UnsupportedVersionError
from .classic_membership import ClassicMembership
from .consumer_membership import ConsumerMembership, WrongGroupType
from .membership_base import GroupParts
from .target_reconciler import News

_log = logging.getLogger("trikafka.membership")
#: What the broker decides in the consumer protocol.
_CLASSIC_ONLY = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")


class MembershipChoice:
    """A membership manager that is one of two, as soon as it is known which."""

    def __init__(self, parts: GroupParts, consumer: ConsumerMembership, classic: ClassicMembership) -> None:
        self._parts, self._consumer, self._classic = parts, consumer, classic
        self._chosen: ConsumerMembership | ClassicMembership | None = classic if _wants_classic(parts.config) else None
        self._fatal: TrikafkaError | None = None
        self._patience = parts.poll_timer.limit  # of the classic protocol
        self._news = News()

    @property
    def fatal(self) -> TrikafkaError | None:
        """The error that stopped the group's work, until the user subscribes again."""
        if self._chosen is None:
            return self._fatal
        if self._chosen is self._classic and self._parts.subscription.mode is Mode.BROKER_PATTERN:
            return UnsupportedVersionError(
                "a SubscriptionPattern needs the consumer group protocol (KIP-848, Kafka 4.0 or newer), which is not in use"
            )
        return self._chosen.fatal

    def subscription_changed(self) -> None:
        """The user subscribed to something (else)."""
        self._fatal = None
        self._news.tell()
        if self._chosen is not None:
            self._chosen.subscription_changed()

    async def run(self) -> None:
        """Choose when there is a subscription, then do as the chosen one does."""
        self._fatal = None
        if self._chosen is None:
            self._choose(self._consumer if await self._offered() else self._classic)
        assert self._chosen is not None
        try:
            await self._chosen.run()
        except WrongGroupType as refusal:
            _log.info("group %s: going on by the classic protocol: %s", self._parts.config.group_id, refusal.error)
            self._parts.member.forget()
            self._parts.poll_timer.limit_to(self._patience)
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
        """Be out of the group."""
        self._fatal = None
        if self._chosen is not None:
            self._chosen.reset()

    def _choose(self, membership: ConsumerMembership | ClassicMembership) -> None:
        _log.debug("group %s: %s", self._parts.config.group_id, type(membership).__name__)
        assignor = self._parts.config.group_remote_assignor
        if membership is self._classic and assignor is not None:
            _log.warning(
                "group %s: group_remote_assignor=%r has no effect, for the group goes by the classic protocol;"
                " partition_assignment_strategy counts there",
                self._parts.config.group_id,
                assignor,
            )
        self._chosen = membership
        self._parts.wake()  # it may be that what is subscribed to needs the other

    async def _offered(self) -> bool:
        """Whether the coordinator has the consumer protocol; waits for a subscription before it asks."""
        retry = Retry(self._parts.config)
        while True:
            while not self._parts.subscription.grouped or self._fatal is not None:
                await self._news.wait()
                self._news.take()
            try:
                return await self._parts.requests.offers(ConsumerGroupHeartbeatRequest, self._parts.config.request_timeout)
            except TrikafkaError as error:
                self._parts.requests.recover(error)
                if not error.retriable:
                    self._fatal = error
                    self._parts.wake()
                    continue
                await retry.wait()


def _wants_classic(config: ConsumerConfig) -> bool:
    """Whether the settings are of the classic protocol alone."""
    return any(name in config.explicit for name in _CLASSIC_ONLY)
