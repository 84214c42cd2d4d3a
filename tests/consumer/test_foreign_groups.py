"""The id of a group of another kind: the error says so."""

from __future__ import annotations

from typing import Any

import pytest
from consuming import cluster_of, member_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka.error_codes import ErrorCode
from trikafka.errors import GroupIdNotFoundError, GroupProtocolMismatchError


async def test_a_share_groups_id_is_explained(autojump_clock: Clock) -> None:
    """A broker refuses the classic protocol as it refuses an assignor that others lack."""
    async with cluster_of(records=1) as cluster:
        cluster.fail("JoinGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        async with member_of(cluster, group_protocol="classic") as consumer:
            with pytest.raises(
                GroupProtocolMismatchError, match=r"a share group.*another group_id"
            ):
                await consumer.receive()


@pytest.mark.parametrize("kind", ["consumer", "share"])
async def test_another_kinds_id_is_explained(autojump_clock: Clock, kind: str) -> None:
    async with cluster_of(records=1) as cluster:
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
        }
        if kind == "consumer":
            cluster.fail("ConsumerGroupHeartbeat", ErrorCode.GROUP_ID_NOT_FOUND)
            opened: Any = trikafka.open_consumer("t", group_protocol="consumer", **given)
        else:
            cluster.fail("ShareGroupHeartbeat", ErrorCode.GROUP_ID_NOT_FOUND)
            opened = trikafka.open_share_consumer("t", **given)
        async with opened as client:
            with pytest.raises(GroupIdNotFoundError, match="of another kind: choose another"):
                await client.receive()
