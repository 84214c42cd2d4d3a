"""``open_admin(retries=)``, which seed 004 leaves to the admin client."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from administering import opened
from trio.testing import MockClock as Clock

import trikafka
from trikafka import KafkaTimeoutError, NewTopic
from trikafka.errors import BrokerResponseError, RequestTimedOutError
from trikafka.testing import ScriptedCluster

COORDINATOR_LOADING = 14


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_exhausted_retries_raise_the_last_error(retries: int, autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, retries=retries) as admin,
    ):
        rule = cluster.fail("ListGroups", COORDINATOR_LOADING, times=None)
        start = trio.current_time()
        with pytest.raises(BrokerResponseError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await admin.list_groups()
        assert len(cluster.requests("ListGroups")) == 1 + retries
        assert trio.current_time() - start < 2
        rule.remove()
        assert await admin.list_groups() == []  # each call has its own


async def test_last_retry_may_succeed(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster, retries=2) as admin:
        cluster.fail("ListGroups", COORDINATOR_LOADING, times=2)
        assert await admin.list_groups() == []


async def test_unanswered_request_is_not_retried(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        opened(cluster, retries=0, request_timeout_ms=2_000) as admin,
    ):
        cluster.silence("CreateTopics")
        start = trio.current_time()
        with pytest.raises(RequestTimedOutError, match="CreateTopics"):
            await admin.create_topics({"u": NewTopic(1, 1)})
        assert trio.current_time() - start == pytest.approx(2)


async def test_expired_call_raises_a_timeout(autojump_clock: Clock) -> None:
    """``except KafkaTimeoutError`` must see the call's own ``timeout=``, whatever retries are left."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster, retries=0) as admin:
        cluster.silence("CreateTopics")
        start = trio.current_time()
        with pytest.raises(KafkaTimeoutError, match="create_topics"):
            await admin.create_topics({"u": NewTopic(1, 1)}, timeout=2)
        assert trio.current_time() - start == pytest.approx(2)


async def test_calls_without_retries_are_bound_by_time(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        cluster.fail("ListGroups", COORDINATOR_LOADING, times=None)
        with pytest.raises(KafkaTimeoutError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await admin.list_groups(timeout=20)
        assert len(cluster.requests("ListGroups")) > 15


async def test_retries_are_for_admin_calls_alone(autojump_clock: Clock) -> None:
    """A producer's ``retries`` are its batches'. A consumer has none, as in Java."""
    settings: Any = {"bootstrap_servers": "a:1", "retries": 1}
    with pytest.raises(trikafka.ConfigurationError, match="retries"):
        async with trikafka.open_consumer(**settings):
            raise AssertionError
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "retries": 0,
            "acks": 1,
        }
        async with trikafka.open_producer(**settings) as producer:
            cluster.fail("Metadata", 5, times=3)
            assert len(await producer.partitions_for("t")) == 1
