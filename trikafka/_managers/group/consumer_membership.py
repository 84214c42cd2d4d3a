"""The membership manager of the consumer group protocol (KIP-848).

The broker assigns partitions, and each member follows its own target. Two tasks run side by side:
one sends heartbeats (:mod:`.consumer_heartbeat`), the other brings the owned partitions to the last
target in a response (:mod:`.target_reconciler`). The next heartbeat, sent at once, acknowledges
each step.
"""

from __future__ import annotations

from functools import partial

from ..._net.gather import with_background
from ..._state.consumer.subscription import Mode
from ..._wire.releases import explained_refusal
from ...error_codes import ErrorCode
from ...errors import (
    GroupIdNotFoundError,
    GroupProtocolMismatchError,
    TrikafkaError,
    UnsupportedVersionError,
)
from ...interfaces import ClusterSnapshot
from ..cluster.topic_ids import TopicIds
from .consumer_heartbeat import ConsumerHeartbeats
from .membership_base import MembershipBase, MembershipDependencies
from .target_reconciler import TargetReconciler, WakeFlag


class WrongGroupType(Exception):
    """The group is not one of this protocol, and cannot become one.

    ``known``: the coordinator may still have the member.
    """

    def __init__(self, error: TrikafkaError, *, known: bool) -> None:
        self.error = error
        self.known = known
        super().__init__(str(error))


class ConsumerMembership(MembershipBase):
    """The membership of a group by ConsumerGroupHeartbeat.

    With ``gives_way``, :meth:`run` raises :exc:`WrongGroupType` if the coordinator refuses the
    protocol to a member that joins. Without, that is an error for the user like any other.
    """

    def __init__(
        self, dependencies: MembershipDependencies, topic_ids: TopicIds, *, gives_way: bool = False
    ) -> None:
        super().__init__(dependencies)
        self._gives_way = gives_way
        #: True after the coordinator has refused the protocol to a member that it had accepted.
        self._cut_off = False
        self._report_due = WakeFlag()
        self._target = TargetReconciler(
            dependencies, topic_ids, self._report_due.set, lambda: self._heartbeats.send_full()
        )
        self._heartbeats = ConsumerHeartbeats(dependencies, self._report_due, self._target)

    def rejoin(self, why: str) -> None:
        """Have the coordinator repeat the assignment; the protocol has no other way to rejoin."""
        super().rejoin(why)
        self._heartbeats.send_full()
        self._target.wake()

    async def run(self) -> None:
        # The broker decides the session, so the poll interval is what the user gave (classic: at
        # least the session).
        self._poll_timer.limit_to(self._config.max_poll_interval_ms / 1000)
        await super().run()

    async def _generation(self, seen: ClusterSnapshot) -> None:
        self._target.start_over()
        try:
            await with_background(
                [partial(self._target.follow_target, seen)],
                partial(self._heartbeats.send_heartbeats, self.fenced),
            )
        except TrikafkaError as error:
            if not (self._member.identity.joined and self._is_refusal(error)):
                raise
            # The coordinator removed the member, and the group ended with that or became a classic
            # one. A new join may succeed. Or ``group.version`` was turned off, and the coordinator
            # keeps the member and its partitions until the session ends.
            error.retriable = True
            self._cut_off = error.code == ErrorCode.UNSUPPORTED_VERSION
            self.fenced(error)

    async def _enter_fatal(self, error: TrikafkaError) -> None:
        if self._gives_way and not self._member.identity.joined and self._is_refusal(error):
            known = self._cut_off and error.code == ErrorCode.UNSUPPORTED_VERSION
            raise WrongGroupType(error, known=known)
        await super()._enter_fatal(
            explained_refusal(error, "consumer", "; group_protocol='classic' needs neither")
        )

    def _is_refusal(self, error: TrikafkaError) -> bool:
        """Return whether the coordinator refuses the protocol, for this group or altogether.

        A broker whose feature ``group.version`` is off, as after an upgrade of its cluster, offers
        the request and refuses it.
        """
        # A pattern needs a newer version of the heartbeat.
        if isinstance(error, UnsupportedVersionError):
            return self._subscription.mode is not Mode.BROKER_PATTERN
        return (
            isinstance(error, GroupIdNotFoundError | GroupProtocolMismatchError)
            or error.code == ErrorCode.UNSUPPORTED_VERSION
        )

    async def _leave_group(self, *, closing: bool = False) -> None:
        chosen = self._config.group_membership_operation
        operation = chosen if closing else "default"
        # A close of a member that remains sends nothing.
        repeated = not closing and chosen != "remain_in_group"
        await self._heartbeats.leave(operation, self._why_leaving(closing), repeated=repeated)

    def _still_known(self) -> bool:
        return True

    def reset(self) -> None:
        super().reset()
        if self._heartbeats.in_group:
            self._heartbeats.outside()  # keeps its id, so that the next run leaves
