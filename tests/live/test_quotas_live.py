"""A producer with a quota of 1,000 bytes a second at a real broker (KIP-219).

The throttling is logged and counted, and no record is lost.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio
from cluster_waits import topic_reported
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

from trikafka import Admin, NewTopic, open_admin, open_producer

if TYPE_CHECKING:
    from trikafka_broker.broker import KafkaBroker

CLIENT = "throttled-by-its-quota"


async def test_quota_is_waited_for_and_reported(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    with trio.fail_after(300):
        async with open_admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics({CLIENT: NewTopic(1, 1)})
            await topic_reported(admin, CLIENT, 1)
            await set_quota(admin, 1_000)
        async with open_producer(
            bootstrap_servers=bootstrap, client_id=CLIENT, linger_ms=0
        ) as producer:
            while True:
                # One request may not be enough, and the wait may be over when it is looked at.
                await producer.send(CLIENT, os.urandom(6_000))
                before, health = trio.current_time(), producer.health()
                found = producer.statistics().throttled.get(kafka_broker.node_id)
                if health.throttled and found is not None and found.left > 0:
                    break
            (how,) = health.throttled.values()
            await producer.send(CLIENT, b"this waits")
            assert trio.current_time() - before >= found.left
            assert producer.statistics().throttled[kafka_broker.node_id].total >= found.last
    assert health.ok
    assert "throttles this client" in how
    assert found.api == "Produce"
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "throttles this client: nothing is sent" in record.getMessage()
    ]
    assert line.endswith("after Produce, by its quota producer_byte_rate or request_percentage")


async def set_quota(admin: Admin, rate: float) -> None:
    """Set a quota by Kafka's own request, which our admin client has no call for.

    It concerns the client id of this test alone.
    """
    brokers = admin._brokers
    (node,) = (await admin.describe_cluster()).nodes
    entity = AlterClientQuotasRequest.EntryData.EntityData(
        entity_type="client-id", entity_name=CLIENT
    )
    change = AlterClientQuotasRequest.EntryData.OpData(
        key="producer_byte_rate", value=rate, remove=False
    )
    entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=[change])
    response = await brokers.request(
        node, AlterClientQuotasRequest(entries=[entry], validate_only=False)
    )
    assert [each.error_code for each in response.entries] == [0]
