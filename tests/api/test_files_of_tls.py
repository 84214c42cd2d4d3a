"""Files of TLS that cannot be used are a wrong setting, and known before anything is dialled."""

from __future__ import annotations

from typing import Any

import pytest

import trikafka


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ssl_cafile": "/nope/ca.pem"}, "ssl_cafile: cannot read '/nope/ca.pem'"),
        ({"ssl_certfile": "/nope/me.pem"}, "ssl_certfile '/nope/me.pem': No such file"),
    ],
)
async def test_nothing_is_dialled(settings: dict[str, Any], says: str) -> None:
    async def dial(host: str, port: int) -> Any:
        raise AssertionError("it was dialled")

    with pytest.raises(trikafka.ConfigurationError, match=says):
        async with trikafka.open_admin(bootstrap_servers="a:1", security_protocol="SSL", dial=dial, **settings):
            pass
