"""Ctrl-C while a client opens comes out as ``KeyboardInterrupt``, never in a group, and leaves no task."""

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
from trikafka._api.service import Service, run_client
from trikafka.config import AdminConfig
from trikafka.testing import ScriptedCluster


def opening(kind: str, cluster: ScriptedCluster, **settings: Any) -> Any:
    make: Any = {"consumer": trikafka.open_consumer, "producer": trikafka.open_producer, "admin": trikafka.open_admin}[kind]
    topics = ("t",) if kind == "consumer" else ()
    group = {"group_id": "g"} if kind == "consumer" else {}
    return make(*topics, **{"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial} | group | settings)


def run(main: Callable[[], Any]) -> None:
    """In a loop of its own, as a script does it."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_in_the_main_task_while_it_tries_the_addresses() -> None:
    """It is inside a nursery of the metadata's then, which makes a group of what comes."""
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
def test_in_a_task_of_the_client_that_dials(kind: str) -> None:
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


def test_a_group_of_the_bodys_own_stays_one() -> None:
    async def main() -> None:
        async with ScriptedCluster() as cluster, opening("admin", cluster):
            raise BaseExceptionGroup("mine", [KeyboardInterrupt(), ValueError()])

    with pytest.raises(BaseExceptionGroup, match="mine"):
        run(main)


@pytest.mark.parametrize(("how", "stride"), [("steps", 1), ("lines", 19)])
@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_at_each_moment_of_opening_asking_and_closing(kind: str, how: str, stride: int) -> None:
    """In processes of their own, where a signal is one: it ends by ``KeyboardInterrupt``, never hangs, and closes its streams."""
    script = Path(__file__).with_name("interrupting.py")
    ran = subprocess.run(
        [sys.executable, str(script), kind, how, "1", "100000", str(stride)],
        capture_output=True, text=True, timeout=500, check=False,
    )
    *log, last = ran.stdout.splitlines() or [""]
    assert last.startswith("presses: "), (log[-1:], last, ran.stderr)
    assert not [line for line in log if line.startswith("WRONG")]
    assert int(last.removeprefix("presses: ")) > 50
