"""The life of a member of the consumer protocol (KIP-848) as a state machine.

The rules and promises are those of ``test_member_machine``. Targets change while listeners run,
heartbeats are lost, epochs are fenced, and the user stays away. Revocations come before
assignments, ``lost`` exactly when the member is out of its group, and each partition alternates.
Once calm, the member has its share and reads it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_member_machine import SETTINGS, Life, Play, ToldIn

from trikafka.errors import ErrorCode

#: There is one state for both here: a new target may come at any time, and what goes and what comes
#: is one reconciliation.
TOLD_IN: ToldIn = {
    "assigned": {"reconciling"},
    "revoked": {"reconciling", "leaving"},
    "lost": {"fenced", "stale"},
}
SETTLED: dict[str, Any] = {
    "group_id": "g",
    "group_protocol": "consumer",
    "max_poll_interval_ms": 10_000,
    "auto_commit_interval_ms": 1_000,
    "metadata_max_age_ms": 3_000,
}
#: Of the scripted coordinator, in seconds.
TIMES: dict[str, Any] = {"consumer_session_timeout": 6, "consumer_heartbeat_interval": 0.5}
FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
BEAT = "ConsumerGroupHeartbeat"


class ConsumerLife(Life):
    """Events of the consumer protocol."""

    @initialize(
        assignor=st.sampled_from([None, "range", "uniform"]),
        instance_id=st.sampled_from([None, "i"]),
    )
    def begin(self, assignor: str | None, instance_id: str | None) -> None:
        play = Play(SETTLED | {"group_remote_assignor": assignor}, TOLD_IN, TIMES)
        play.mine["group_instance_id"] = instance_id
        self.begin_with(play)

    @rule()
    def the_group_forgets_the_member(self) -> None:
        async def step(play: Play) -> None:
            group, mine = play.cluster.group("g"), play.consumer.statistics().member_id
            if group is not None and group.modern is not None and mine in group.modern.members:
                group.modern.remove(mine)

        self.then(step)

    @rule(
        code=st.sampled_from(
            [
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
            ]
        )
    )
    def a_response_is_an_error(self, code: int) -> None:
        async def step(play: Play) -> None:
            # Not to who leaves: that it was unknown then, and its group_instance_id is still held,
            # no coordinator says.
            play.cluster.fail(
                BEAT, code, 1, where=lambda request: code not in FENCED or request.member_epoch >= 0
            )

        self.then(step)

    @rule(api=st.sampled_from([BEAT, "OffsetCommit", "OffsetFetch"]))
    def a_connection_breaks(self, api: Any) -> None:
        async def step(play: Play) -> None:
            play.cluster.drop(api, 1)

        self.then(step)

    @rule(code=st.sampled_from([ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID]))
    def a_commit_is_refused(self, code: int) -> None:
        async def step(play: Play) -> None:
            play.cluster.fail("OffsetCommit", code, 1)

        self.then(step)


ConsumerLife.TestCase.settings = SETTINGS
TestConsumerLife = ConsumerLife.TestCase
