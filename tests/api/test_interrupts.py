"""Ctrl-C while a client opens: a bare ``KeyboardInterrupt`` and no task left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import trikafka
from trikafka._api.client.service import Service, run_client
from trikafka.config import AdminConfig
from trikafka.testing import ScriptedCluster


def opening(kind: str, cluster: ScriptedCluster, **settings: Any) -> Any:
    make: Any = {
        "consumer": trikafka.open_consumer,
        "producer": trikafka.open_producer,
        "admin": trikafka.open_admin,
    }[kind]
    topics = ("t",) if kind == "consumer" else ()
    group = {"group_id": "g"} if kind == "consumer" else {}
    return make(
        *topics,
        **{"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial} | group | settings,
    )


def run(main: Callable[[], Any]) -> None:
    """Run the function in its own event loop, as a script does."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_interrupt_while_dialling_is_bare() -> None:
    """The main task is inside a nursery, which would make a group of the interrupt."""
    ended: list[BaseException] = []

    async def start(service: Service) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.lowlevel.checkpoint()
            raise KeyboardInterrupt

    async def main() -> None:
        try:
            async with run_client(AdminConfig.build({"bootstrap_servers": "broker-0:9092"}), start):
                raise AssertionError("it opened")
        except BaseException as error:
            ended.append(error)

    run(main)
    assert [type(error) for error in ended] == [KeyboardInterrupt]


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_interrupt_in_a_background_dial_is_bare(kind: str) -> None:
    ended: list[BaseException] = []

    async def main() -> None:
        async with ScriptedCluster(topics={"t": 1}) as cluster:

            async def dial(host: str, port: int) -> trio.abc.Stream:
                raise KeyboardInterrupt

            try:
                async with opening(kind, cluster, dial=dial):
                    raise AssertionError("it opened")
            except BaseException as error:
                ended.append(error)

    run(main)
    assert [type(error) for error in ended] == [KeyboardInterrupt]


def test_group_of_the_users_body_stays_a_group() -> None:
    async def main() -> None:
        async with ScriptedCluster() as cluster, opening("admin", cluster):
            raise BaseExceptionGroup("mine", [KeyboardInterrupt(), ValueError()])

    with pytest.raises(BaseExceptionGroup, match="mine"):
        run(main)


@pytest.mark.parametrize(("how", "stride"), [("steps", 3), ("lines", 149)])
@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_interrupt_at_any_moment_is_bare(kind: str, how: str, stride: int) -> None:
    """Each moment is tried in its own process, with a real signal.

    The process ends by ``KeyboardInterrupt``, never hangs, and closes its streams.
    """
    script = Path(__file__).with_name("interrupting.py")
    ran = subprocess.run(
        [sys.executable, str(script), kind, how, "1", "100000", str(stride)],
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    *log, last = ran.stdout.splitlines() or [""]
    assert last.startswith("presses: "), (log[-1:], last, ran.stderr)
    assert not [line for line in log if line.startswith("WRONG")]
    assert int(last.removeprefix("presses: ")) * stride > {"steps": 50, "lines": 3_600}[how]
