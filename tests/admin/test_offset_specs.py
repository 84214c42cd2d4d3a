"""``list_offsets`` of places beside the first and the last offset, tiered storage among them."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock as Clock

from trikafka import OffsetSpec, TopicPartition, UnsupportedVersionError, open_admin
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
OLDEST = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}


def admin_of(cluster: ScriptedCluster) -> Any:
    return open_admin(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial)


async def offset_of(admin: Any, spec: OffsetSpec) -> int | None:
    found = (await admin.list_offsets({T0: spec}))[T0]
    return None if found is None else found.offset


async def test_places_of_tiers_are_found(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, admin_of(cluster) as admin:
        cluster.append("t", 0, [b"1", b"2", b"3", b"4"])
        assert await offset_of(admin, OffsetSpec.LATEST_TIERED) is None
        cluster.tier("t", 0, 2)
        assert await offset_of(admin, OffsetSpec.EARLIEST) == 0
        assert await offset_of(admin, OffsetSpec.EARLIEST_LOCAL) == 2
        assert await offset_of(admin, OffsetSpec.LATEST_TIERED) == 1
        assert await offset_of(admin, OffsetSpec.EARLIEST_PENDING_UPLOAD) == 2
        assert await offset_of(admin, OffsetSpec.LATEST) == 4


async def test_greatest_timestamp_is_found(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, admin_of(cluster) as admin:
        assert await offset_of(admin, OffsetSpec.MAX_TIMESTAMP) is None
        cluster.append("t", 0, [b"1", b"2"])
        assert await offset_of(admin, OffsetSpec.MAX_TIMESTAMP) in (0, 1)


@pytest.mark.parametrize(("spec", "oldest"), OLDEST.items())
async def test_older_broker_is_not_asked(
    autojump_clock: Clock, spec: OffsetSpec, oldest: int
) -> None:
    """It would take the place for a time, and find the first offset."""
    offered = {"ListOffsets": (1, oldest - 1)}
    async with (
        ScriptedCluster(topics={"t": 1}, api_versions=offered) as cluster,
        admin_of(cluster) as admin,
    ):
        says = rf"trikafka {oldest} to"
        with pytest.raises(UnsupportedVersionError, match=says):
            await admin.list_offsets({T0: spec})
        assert cluster.requests("ListOffsets") == []
