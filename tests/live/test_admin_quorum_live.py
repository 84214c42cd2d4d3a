"""The voters of a real metadata quorum: one is removed and added again (KIP-853)."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

import trio
from cluster_waits import PATIENT
from trikafka_broker.pytest_plugin import MakeKafkaCluster

import trikafka

#: Seconds for all changes, on a busy machine.
LIMIT = 400


async def changed(
    change: Callable[[], Awaitable[object]], is_there: Callable[[], Awaitable[bool]]
) -> None:
    """Ask for a change until it is there.

    An election, or a controller that lags behind, refuses it for some time. And a request without
    an answer may have done it, so that the next one finds nothing to change.
    """
    while True:
        try:
            if await is_there():
                return
            await change()
        except (trikafka.BrokerResponseError, trikafka.KafkaTimeoutError):
            await trio.sleep(0.2)


async def test_a_voter_is_removed_and_added(make_kafka_cluster: MakeKafkaCluster) -> None:
    cluster = await trio.to_thread.run_sync(
        lambda: make_kafka_cluster(brokers=2, properties=PATIENT)
    )
    with trio.fail_after(LIMIT):
        async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:

            async def voters() -> set[int]:
                return {each.node_id for each in (await admin.describe_metadata_quorum()).voters}

            async def is_dynamic() -> bool:
                known = await admin.describe_metadata_quorum()
                return all(each.directory_id is not None for each in known.voters)

            # The quorum of the properties has voters that cannot change.
            assert not await is_dynamic()
            await changed(lambda: admin.update_features({"kraft.version": 1}), is_dynamic)
            before = await admin.describe_metadata_quorum()
            voter = next(each for each in before.voters if each.node_id != before.leader_id)
            number, directory = voter.node_id, voter.directory_id
            assert directory is not None

            async def is_gone() -> bool:
                return await voters() == {0, 1} - {number}

            async def is_back() -> bool:
                return await voters() == {0, 1}

            await changed(lambda: admin.remove_raft_voter(number, directory), is_gone)
            said = await trio.to_thread.run_sync(
                lambda: cluster.run_tool(
                    "org.apache.kafka.tools.MetadataQuorumCommand",
                    *("--bootstrap-server", cluster.bootstrap_servers, "describe", "--status"),
                    timeout=240,
                )
            )
            found = re.search(r"^CurrentVoters:\s+(.*)$", said.stdout, re.MULTILINE)
            assert found is not None
            assert [each["id"] for each in json.loads(found[1])] == [1 - number]
            endpoints = before.endpoints[number]
            await changed(lambda: admin.add_raft_voter(number, directory, endpoints), is_back)
            after = await admin.describe_metadata_quorum()
            assert after.endpoints[number] == endpoints
            assert {each.directory_id for each in after.voters} == {
                each.directory_id for each in before.voters
            }
