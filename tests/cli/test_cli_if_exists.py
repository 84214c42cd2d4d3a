"""``trikafka topics delete --if-exists`` while a broker still tells of a topic that its controller has deleted."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from commanding import Command

from trikafka import open_admin
from trikafka.cli import topics
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize(("option", "code", "out"), [((), 1, b""), (("--if-exists",), 0, b"nothing to delete: none is there\n")])
def test_what_is_still_listed_and_gone(
    monkeypatch: pytest.MonkeyPatch, command: Command, option: tuple[str, ...], code: int, out: bytes
) -> None:
    """Before, it was an error with --if-exists too."""

    async def gone(request: Any, default: Any) -> Any:
        response = await default()
        response.responses[0].error_code = 3
        return response

    def ask(common: Any, work: Any) -> Any:
        async def main() -> Any:
            async with ScriptedCluster(topics={"t": 1}) as cluster:
                cluster.on("DeleteTopics", gone)
                async with open_admin(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial) as admin:
                    assert "t" in await admin.list_topics()
                    return await work(admin)

        return trio.run(main)

    monkeypatch.setattr(topics, "ask", ask)
    ended = command("topics", "delete", "t", *option)
    assert (ended.code, ended.out, "'t'" in ended.err) == (code, out, code == 1)
