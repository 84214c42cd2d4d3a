"""Each call of the admin client ends at its one deadline, and leaves nothing behind."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio
import trio.testing

import trikafka
from trikafka import Admin, ConfigResource, NewTopic, OffsetSpec, TopicPartition
from trikafka.testing import ScriptedCluster

TP = TopicPartition("t", 0)
DIRECTORY = "MvDxzVmcRsaTz33bUuRU6A"
#: The arguments of each call that asks a broker.
CALLS: dict[str, tuple[Any, ...]] = {
    "abort_transaction": (TP, 0),
    "add_raft_voter": (1, DIRECTORY, [trikafka.VoterEndpoint("C", "h", 1)]),
    "alter_client_quotas": ({trikafka.QuotaEntity(user="a"): {"q": 1}},),
    "alter_configs": ({ConfigResource("topic", "t"): {"a": 1}},),
    "alter_group_offsets": ("g", {TP: 1}),
    "alter_user_scram_credentials": ({"a": trikafka.ScramRemoval()},),
    "client_instance_id": (),
    "create_acls": ([trikafka.AclBinding("User:a", "read", "topic", "t")],),
    "create_delegation_token": (),
    "create_partitions": ({"t": 2},),
    "create_topics": ({"u": NewTopic()},),
    "delete_acls": ([trikafka.AclFilter()],),
    "delete_group_offsets": ("g", [TP]),
    "delete_groups": (["g"],),
    "delete_records": ({TP: 0},),
    "delete_topics": (["t"],),
    "describe_acls": (),
    "describe_client_quotas": (),
    "describe_cluster": (),
    "describe_configs": ([ConfigResource("topic", "t")],),
    "describe_delegation_tokens": (),
    "describe_features": (),
    "describe_groups": (["g"],),
    "describe_metadata_quorum": (),
    "describe_producers": ([TP],),
    "describe_transactions": (["x"],),
    "describe_user_scram_credentials": (),
    "expire_delegation_token": (b"x",),
    "fence_producers": (["x", "y"],),
    "find_hanging_transactions": (),
    "force_terminate_transaction": ("x",),
    "list_config_resources": (),
    "list_group_offsets": ("g",),
    "list_groups": (),
    "list_offsets": ({TP: OffsetSpec.LATEST},),
    "list_topics": (),
    "list_transactions": (),
    "remove_raft_voter": (1, DIRECTORY),
    "renew_delegation_token": (b"x",),
    "topic_configs": (["t"],),
    "unregister_broker": (1,),
    "unregister_controller": (1,),
    "update_features": ({"metadata.version": 21},),
}


@pytest.mark.parametrize("name", CALLS)
async def test_call_ends_at_its_deadline(autojump_clock: trio.testing.MockClock, name: str) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        async with trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin:
            for node in (0, 1):
                cluster.freeze(node)
            began = trio.current_time()
            with pytest.raises(trikafka.KafkaTimeoutError, match=name):
                await getattr(admin, name)(*CALLS[name], timeout=3)
            assert trio.current_time() - began == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_call_ends_at_once(
    autojump_clock: trio.testing.MockClock, name: str
) -> None:
    async with ScriptedCluster(nodes=2, topics={"t": 1}) as cluster:
        cluster.offer("GetTelemetrySubscriptions", (0, 0))
        async with trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin:
            for node in (0, 1):
                cluster.freeze(node)
            with trio.move_on_after(1) as scope:
                await getattr(admin, name)(*CALLS[name])
            assert scope.cancelled_caught


def test_every_call_has_a_timeout() -> None:
    for name, thing in vars(Admin).items():
        if inspect.iscoroutinefunction(thing) and not name.startswith("_"):
            assert "timeout" in inspect.signature(thing).parameters, name
