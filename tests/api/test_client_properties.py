"""The public properties that all clients have: their settings, and whether they are closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import trikafka
from trikafka.testing import ScriptedCluster

OPEN = [trikafka.open_admin, trikafka.open_consumer, trikafka.open_producer]


def settings_of(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial} | more


@pytest.mark.parametrize("open_client", OPEN)
async def test_config_has_settings_and_defaults(open_client: Callable[..., Any]) -> None:
    async with (
        ScriptedCluster() as cluster,
        open_client(**settings_of(cluster, client_id="mine")) as client,
    ):
        assert client.config.client_id == "mine"
        assert client.config.request_timeout_ms == 30_000
        assert "client_id" in client.config.explicit
        assert "request_timeout_ms" not in client.config.explicit
        with pytest.raises(FrozenInstanceError):
            client.config.client_id = "another"
        with pytest.raises(AttributeError):
            client.config = None


@pytest.mark.parametrize("open_client", OPEN)
async def test_config_hides_secrets(open_client: Callable[..., Any]) -> None:
    """A value with the form of a password is one, also in a setting that is usually public."""
    given = "ann:hunter2@example.org"
    async with (
        ScriptedCluster() as cluster,
        open_client(**settings_of(cluster, client_id=given)) as client,
    ):
        assert "hunter2" not in f"{client.config!r} {client.config}"
        assert client.config.client_id == given  # for a client beside this one


@pytest.mark.parametrize("open_client", OPEN)
async def test_client_is_closed_after_aclose(open_client: Callable[..., Any]) -> None:
    async with ScriptedCluster() as cluster, open_client(**settings_of(cluster)) as client:
        assert not client.is_closed
        await client.aclose()
        assert client.is_closed


async def test_consumer_knows_its_cluster() -> None:
    async with (
        ScriptedCluster(cluster_id="ours") as cluster,
        trikafka.open_consumer(**settings_of(cluster)) as consumer,
    ):
        assert consumer.cluster_id == "ours"
