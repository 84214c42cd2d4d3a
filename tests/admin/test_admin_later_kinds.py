"""Kinds in the responses of a later release are "unknown", and no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio.testing

import trikafka
from trikafka import (
    AclBinding,
    Admin,
    ConfigResource,
    ConfigurationError,
    QuotaEntity,
    ScramPassword,
)
from trikafka.testing import ScriptedCluster

RULE = AclBinding("User:alice", "read", "topic", "t")
LATER = 77  # no release has such a number


def of_rules(response: Any) -> None:
    resource = response.resources[0]
    resource.resource_type = resource.pattern_type = LATER
    resource.acls[0].operation = resource.acls[0].permission_type = LATER


def of_deleted_rules(response: Any) -> None:
    response.filter_results[0].matching_acls[0].operation = LATER


def of_quotas(response: Any) -> None:
    response.entries[0].entity[0].entity_type = "tenant"


def of_users(response: Any) -> None:
    response.results[0].credential_infos[0].mechanism = LATER


def of_resources(response: Any) -> None:
    for one in response.config_resources:
        one.resource_type = LATER


def of_settings(response: Any) -> None:
    for one in response.results[0].configs:
        one.config_source = one.config_type = LATER


async def settings(admin: Admin) -> Any:
    found = await admin.describe_configs([ConfigResource("topic", "t")])
    (entries,) = found.values()
    return {(entry.source, entry.type) for entry in entries.values()}


async def rules(admin: Admin) -> Any:
    (one,) = await admin.describe_acls()
    return one.operation, one.resource_type, one.pattern, one.permission, one.resource_name


async def deleted(admin: Admin) -> Any:
    ((one,),) = (await admin.delete_acls([trikafka.AclFilter()])).values()
    return one.operation, one.resource_type


async def quotas(admin: Admin) -> Any:
    (one,) = await admin.describe_client_quotas()
    return one.others, str(one), one.user


async def users(admin: Admin) -> Any:
    (((one,)),) = (await admin.describe_user_scram_credentials()).values()
    return one.mechanism


async def resources(admin: Admin) -> Any:
    return {one.type for one in await admin.list_config_resources()}


@pytest.mark.parametrize(
    ("api", "change", "read", "seen"),
    [
        ("DescribeAcls", of_rules, rules, ("unknown", "unknown", "unknown", "unknown", "t")),
        ("DeleteAcls", of_deleted_rules, deleted, ("unknown", "topic")),
        ("DescribeClientQuotas", of_quotas, quotas, ((("tenant", "a"),), "tenant 'a'", None)),
        ("DescribeUserScramCredentials", of_users, users, "unknown"),
        ("ListConfigResources", of_resources, resources, {"unknown"}),
        ("DescribeConfigs", of_settings, settings, {("unknown", None)}),
    ],
    ids=lambda given: given if isinstance(given, str) and given[0].isupper() else "",
)
async def test_kind_of_a_later_release_is_unknown(
    api: Any,
    change: Callable[[Any], None],
    read: Callable[[Admin], Any],
    seen: object,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def later(request: Any, default: Any) -> Any:
        response = await default()
        change(response)
        return response

    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        await admin.create_acls([RULE])
        await admin.alter_configs({ConfigResource("topic", "t"): {"flush.ms": 7}})
        await admin.alter_client_quotas({QuotaEntity(user="a"): {"producer_byte_rate": 1.0}})
        await admin.alter_user_scram_credentials({"alice": ScramPassword("x", iterations=4096)})
        cluster.on(api, later)
        assert await read(admin) == seen


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.create_acls([AclBinding("User:a", "unknown", "topic", "t")]),
        lambda admin: admin.describe_configs([ConfigResource("unknown", "x")]),
        lambda admin: admin.alter_configs({ConfigResource("unknown", "x"): {"a": 1}}),
        lambda admin: admin.alter_client_quotas(
            {QuotaEntity(others=(("tenant", "a"),)): {"producer_byte_rate": 1.0}}
        ),
    ],
)
async def test_unknown_kind_is_not_sent(call: Any, autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster() as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        before = len(cluster.log)
        with pytest.raises(ConfigurationError):
            await call(admin)
        assert len(cluster.log) == before


@pytest.mark.parametrize("name", ["operation", "resource_type", "pattern", "permission"])
def test_filter_does_not_take_the_unknown(name: str) -> None:
    unknown: Any = {name: "unknown"}
    with pytest.raises(ConfigurationError, match=name):
        trikafka.AclFilter(**unknown)
