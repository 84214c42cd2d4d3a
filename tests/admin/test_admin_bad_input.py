"""Arguments of the wrong kind, refused with one typed error before any request."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import trio.testing

import trikafka
from trikafka import ConfigurationError, QuotaEntity, ScramPassword, TopicPartition, VoterEndpoint
from trikafka._api.admin.admin import Admin
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
#: Arguments that are right, so that one other argument alone is wrong.
RIGHT: dict[str, Any] = {
    "group_id": "g",
    "node_id": 1,
    "directory_id": "MvDxzVmcRsaTz33bUuRU6A",
    "endpoints": [VoterEndpoint("C", "h", 1)],
    "offsets": {T0: 1},
    "partitions": [T0],
    "totals": {"t": 2},
    "token": b"x",
}
#: No argument of an admin call may be one of these.
WRONG = (
    object(),
    [{}],
    [[]],
    [object()],
    b"x",
    "\ud800",
    ["\ud800"],
    [b"x"],
    {b"x": b"x"},
    math.nan,
)
#: Values that a call passes on, or that are anything with a truth value.
FREE = frozenset({"validate_only", "timeout", "reason", "include_defaults"})
FREE |= {"authorized_operations", "allow_replication_factor_change", "fenced_brokers"}
FREE |= {"include_internal", "include_synonyms", "include_documentation"}


def calls() -> Iterator[tuple[str, str]]:
    for name, call in inspect.getmembers(Admin, inspect.iscoroutinefunction):
        if not name.startswith("_") and name != "aclose":
            for parameter in list(inspect.signature(call).parameters)[1:]:
                if parameter not in FREE:
                    yield name, parameter


@pytest.mark.parametrize(("name", "parameter"), list(calls()))
async def test_wrong_argument_reaches_no_broker(
    autojump_clock: trio.testing.MockClock, name: str, parameter: str
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        call = getattr(admin, name)
        needed = [
            each.name
            for each in inspect.signature(call).parameters.values()
            if each.default is each.empty
        ]
        before = len(cluster.requests())
        for wrong in WRONG:
            if parameter == "token" and wrong == b"x":
                continue
            given = {each: RIGHT.get(each, ["a"]) for each in needed} | {parameter: wrong}
            with pytest.raises(ConfigurationError):
                await call(**given)
        assert len(cluster.requests()) == before


def test_password_that_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="UTF-8 can encode") as caught:
        ScramPassword("geheim\ud800")
    assert "geheim" not in str(caught.value)


async def test_quota_beyond_floats_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        ScriptedCluster() as cluster,
        trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin,
    ):
        with pytest.raises(ConfigurationError, match="above 0"):
            await admin.alter_client_quotas({QuotaEntity(user="a"): {"x": 10**400}})
