"""The first client of a program imports what it needs a few modules at a time: between them other tasks have their turns."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from trikafka._api import loading

PROGRAM = """
import json, sys, trio
import trikafka
from trikafka import open_admin, open_consumer, open_producer  # which costs little
from trikafka._api import loading

def ours():
    return {name for name in sys.modules if name.partition(".")[0] in ("trikafka", "kafka", "pluggy", "cramjam")}

class Steps(trio.abc.Instrument):
    def __init__(self):
        self.begun_with, self.steps = ours(), []

    def before_task_step(self, task):
        self.before = ours()

    def after_task_step(self, task):
        self.steps.append(sorted(ours() - self.before))

imported = []
def import_one(name, real=loading.import_module):
    before = ours()
    module = real(name)
    imported.append(sorted(ours() - before))
    return module
loading.import_module = import_one

async def main():
    try:
        async with OPENED(bootstrap_servers="localhost:1"):
            pass
    except trikafka.BootstrapError:
        pass
    await trio.lowlevel.checkpoint()

steps = Steps()
trio.run(main, instruments=[steps])
print(json.dumps({"early": sorted(steps.begun_with), "steps": [step for step in steps.steps if step], "imported": imported}))
"""


def opened(name: str) -> Any:
    done = subprocess.run([sys.executable, "-c", PROGRAM.replace("OPENED", name)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["open_consumer", "open_producer", "open_admin"])
def test_the_first_client_is_loaded_in_small_steps(name: str) -> None:
    seen = opened(name)
    assert not [module for module in seen["early"] if module.startswith(("trikafka._managers.", "kafka.protocol.metadata"))]
    assert sum(map(len, seen["steps"])) > 100
    for step in seen["steps"]:
        # pluggy is thirteen modules of nothing; what is more belongs into the loader's list, each module after what it needs.
        assert len(step) <= (13 if "pluggy" in step else 12), f"imported without a checkpoint between: {step}"
    loaded = {module for modules in seen["imported"] for module in modules}
    # The bodies of packages of messages run when somebody asks for a message: their modules are there by then.
    outside = [module for step in seen["steps"] for module in step if module not in loaded.union(loading._PACKAGES)]
    assert not outside, f"imported by nobody's step: {outside}"
    # Not even for the names of topics that are like one that is missing, before one is.
    assert name == "open_admin" or not [module for module in loaded if module.startswith("kafka.protocol.admin")]


def test_a_second_client_imports_nothing() -> None:
    program = PROGRAM.replace("    await trio.lowlevel.checkpoint()", "    imported.clear()\n    await again()").replace(
        "steps = Steps()",
        "async def again():\n    try:\n        async with OPENED(bootstrap_servers='localhost:1'): pass\n"
        "    except trikafka.BootstrapError: pass\n\nsteps = Steps()",
    )
    done = subprocess.run(
        [sys.executable, "-c", program.replace("OPENED", "open_consumer")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imported"] == []


def test_packages_of_messages_are_whole_for_others_who_use_them() -> None:
    program = (
        "import trio, trikafka\n"
        "async def main():\n"
        "    try:\n"
        "        async with trikafka.open_admin(bootstrap_servers='localhost:1'): pass\n"
        "    except trikafka.BootstrapError: pass\n"
        "trio.run(main)\n"
        "import kafka.protocol.admin, kafka.protocol.consumer\n"
        "assert kafka.protocol.admin.CreateTopicsRequest is kafka.protocol.admin.topics.CreateTopicsRequest\n"
        "assert 'FetchRequest' in kafka.protocol.consumer.__all__\n"
        "from kafka import KafkaConsumer\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


FIRST_TABLES = """
import sys, threading, time, trio
from trikafka import open_producer
from trikafka.testing import ScriptedCluster

class Frame:
    def __arrow_c_stream__(self, requested_schema=None):
        import pyarrow
        return pyarrow.table({"value": ["x"]}).__arrow_c_stream__()

class Slowly:
    def find_spec(self, name, path=None, target=None):
        if name in ("pyarrow.lib", "pyarrow.compute", "trikafka._wire.arrow"):
            print("in the loop" if threading.current_thread() is threading.main_thread() else "in a thread")
            time.sleep(0 if "trikafka" in name else 0.5)  # others see modules that are half made

TABLE
sys.meta_path.insert(0, Slowly())
ticks = []

async def tick():
    while True:
        ticks.append(time.perf_counter())
        await trio.sleep(0.01)

async def main():
    async with ScriptedCluster(topics={"t": 1}) as cluster, trio.open_nursery() as ticking:
        async with open_producer(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial) as producer:
            await producer.send("t", b"first")
            ticking.start_soon(tick)
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(producer.send_arrow, "t", table)
                    await trio.sleep(0.04)
            ticking.cancel_scope.cancel()
    print(len(cluster.records("t", 0)))
    print("stood still" if max(b - a for a, b in zip(ticks, ticks[1:])) > 0.25 else "ran")

trio.run(main)
"""


@pytest.mark.parametrize("table", ["import pyarrow as pa; table = pa.table([pa.nulls(1)], ['value'])", "table = Frame()"])
def test_the_first_tables_are_sent_without_an_import_in_the_loop(table: str) -> None:
    """``pyarrow`` and ``pyarrow.compute`` take 30 ms and more, and other tasks send tables meanwhile."""
    done = subprocess.run([sys.executable, "-c", FIRST_TABLES.replace("TABLE", table)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    *imports, count, loop = done.stdout.splitlines()
    assert imports
    assert set(imports) == {"in a thread"}
    assert (count, loop) == ("9", "ran")
