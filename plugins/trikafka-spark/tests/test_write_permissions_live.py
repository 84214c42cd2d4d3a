"""An exactly-once write needs the permissions of docs/spark-writing.md, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from known_topics import create_known
from test_write_commits_live import ROWS, Job
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open
from trikafka_spark.write_parts import Written

import trikafka
from trikafka import AclBinding, AuthorizationError

RULES = [
    AclBinding("User:alice", "write", "topic", "copies"),
    AclBinding("User:alice", "read", "topic", "copies"),
    AclBinding("User:alice", "write", "transactional_id", "copies-", "prefixed"),
    AclBinding("User:alice", "read", "group", "copies-", "prefixed"),
]


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    with _open(request.config, {"sasl": ["plain"], "acl": True}) as cluster:
        trio.run(_prepare, cluster)
        yield cluster


async def _prepare(cluster: KafkaCluster) -> None:
    async with trikafka.open_admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await create_known(admin, "copies", 2)
        await admin.create_acls(RULES)
        with trio.fail_after(240):  # the controller has the rules before the broker
            while len(await admin.describe_acls()) < len(RULES):  # noqa: ASYNC110
                await trio.sleep(0.02)


def job(cluster: KafkaCluster, topic: str) -> Job:
    settings: dict[str, Any] = cluster.client_settings()
    return Job(settings.pop("bootstrap_servers"), topic, **settings)


async def test_documented_permissions_suffice(guarded: KafkaCluster) -> None:
    write = job(guarded, "copies")
    with trio.fail_after(900):
        first = await write.task(0, write="w")
        assert await write.task(0, write="w") == first
        await write.commit([first])
        assert await write.task(0, write="w") == Written(0, again=True)
        await write.abort([await write.task(1), None])
        unguarded = Job(guarded.bootstrap_servers, "copies")
        await unguarded.until("CompleteAbort", 1)
        assert sum((await unguarded.seen()).values()) == ROWS


async def test_missing_permission_is_named(guarded: KafkaCluster) -> None:
    with (
        trio.fail_after(900),
        pytest.raises(AuthorizationError, match=r"others-0-written.*the operation (Describe|Read)"),
    ):
        await job(guarded, "others").task(0)
