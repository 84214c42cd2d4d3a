"""Helpers of the tests of the admin client, on a scripted cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import trikafka
from trikafka import Admin, ConfigurationError
from trikafka.testing import ScriptedCluster


def opened(cluster: ScriptedCluster, **settings: Any) -> AbstractAsyncContextManager[Admin]:
    return trikafka.open_admin(
        bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, **settings
    )


async def refuses(call: Callable[[Admin], Awaitable[Any]], text: str) -> None:
    """Check that a call with wrong arguments raises before any request."""
    async with ScriptedCluster(topics={"t": 1}) as cluster, opened(cluster) as admin:
        before = len(cluster.log)
        with pytest.raises(ConfigurationError, match=text):
            await call(admin)
        assert len(cluster.log) == before
