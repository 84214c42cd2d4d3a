"""The membership manager of the consumer group protocol (KIP-848): the broker assigns, and each member brings that about by itself.

Two tasks beside each other: one sends heartbeats (:mod:`.consumer_heartbeat`), the other brings what is owned to the last target
that a response told (:mod:`.target_reconciler`), while heartbeats go on. What is done, the next heartbeat acknowledges, at once.
"""

from __future__ import annotations

from functools import partial

from .._net.gather import with_background
from .._state.cluster import ClusterSnapshot
from .._state.subscription import Mode
from ..error_codes import ErrorCode
from ..errors import GroupIdNotFoundError, GroupProtocolMismatchError, TrikafkaError, UnsupportedVersionError
from .consumer_heartbeat import ConsumerHeartbeats
from .membership_base import GroupParts, MembershipBase
from .target_reconciler import News, TargetReconciler
from .topic_ids import TopicIds


class WrongGroupType(Exception):
    """The group is not one of this protocol, and cannot become one."""

    def __init__(self, error: TrikafkaError) -> None:
        self.error = error
        super().__init__(str(error))


class ConsumerMembership(MembershipBase):
    """Keeps the consumer in its group by ConsumerGroupHeartbeat.

    ``gives_way``: :meth:`run` raises :exc:`WrongGroupType` where the coordinator refuses the protocol to a member that joins;
    without, that is the user's error like others.
    """

    def __init__(self, parts: GroupParts, topic_ids: TopicIds, *, gives_way: bool = False) -> None:
        super().__init__(parts)
        self._gives_way = gives_way
        self._to_say = News()
        self._target = TargetReconciler(parts, topic_ids, self._to_say.tell)
        self._heartbeats = ConsumerHeartbeats(parts, self._to_say, self._target)

    def rejoin(self, why: str) -> None:
        """Tell the coordinator what there is to tell, now: more cannot be asked of it."""
        super().rejoin(why)
        self._to_say.tell()
        self._target.look()

    async def run(self) -> None:
        # The session is the broker's to decide, and the poll interval is what the user gave (classic: at least the session).
        self._poll_timer.limit_to(self._config.max_poll_interval_ms / 1000)
        await super().run()

    async def _generation(self, seen: ClusterSnapshot) -> None:
        self._target.start_over()
        try:
            await with_background([partial(self._target.run, seen)], partial(self._heartbeats.run, self.fenced))
        except TrikafkaError as error:
            if not (self._member.identity.joined and self._is_refusal(error)):
                raise
            # Its coordinator let the member go, and the group ended with that, or it became a classic one: it may join anew.
            error.retriable = True
            self.fenced(error)

    async def _enter_fatal(self, error: TrikafkaError) -> None:
        if self._gives_way and not self._member.identity.joined and self._is_refusal(error):
            raise WrongGroupType(error)
        await super()._enter_fatal(_explained(error))

    def _is_refusal(self, error: TrikafkaError) -> bool:
        """Whether the coordinator does not take the protocol, in this group or at all.

        A broker whose feature ``group.version`` is off, as after an upgrade of its cluster, offers the request and refuses it.
        """
        if isinstance(error, UnsupportedVersionError):  # a pattern takes a newer version of it
            return self._subscription.mode is not Mode.BROKER_PATTERN
        return isinstance(error, GroupIdNotFoundError | GroupProtocolMismatchError) or error.code == ErrorCode.UNSUPPORTED_VERSION

    async def _leave_group(self, *, closing: bool = False) -> None:
        operation = self._config.group_membership_operation if closing else "default"
        await self._heartbeats.leave(operation, self._why_leaving(closing))

    def _still_known(self) -> bool:
        return True

    def reset(self) -> None:
        super().reset()
        if self._heartbeats.in_group:
            self._heartbeats.outside()  # with its id, so that the next run leaves


def _explained(error: TrikafkaError) -> TrikafkaError:
    """What a broker means that knows the protocol and does not speak it: Kafka 3.7 to 3.9, and a cluster that was not upgraded."""
    if error.code != ErrorCode.UNSUPPORTED_VERSION:
        return error
    explained = UnsupportedVersionError(
        "the brokers do not have the consumer group protocol (KIP-848): it needs Kafka 4.0 or newer and there the feature"
        " group.version; group_protocol='classic' needs neither"
    )
    explained.__cause__ = error
    return explained
