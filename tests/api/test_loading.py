"""Imports of a program's first client: a few modules at a time, with turns for other tasks between."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from trikafka._api.client import loading

PROGRAM = """
import json, sys, trio
import trikafka
from trikafka import open_admin, open_consumer, open_producer  # which costs little
from trikafka._api.client import loading

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


def opened(name: str, settings: str = "") -> Any:
    program = PROGRAM.replace("OPENED", name).replace('"localhost:1"', f'"localhost:1"{settings}')
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


USED = """
import sys, trio
import trikafka

async def main():
    try:
        async with trikafka.OPENED:
            pass
    except (trikafka.BootstrapError, trikafka.KafkaTimeoutError):
        pass
    before = set(sys.modules)
    USE
    print(sorted(set(sys.modules) - before))

trio.run(main)
"""


def imported_by(use: str, opened: str) -> str:
    program = USED.replace("OPENED", opened).replace("USE", use)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_consumer_brings_its_functions() -> None:
    """Opening a consumer imports ``run_tasks`` and its kin.

    Their import once took 190 ms in the user's step, and a signal waited for it.
    """
    names = [
        "run_tasks",
        "ensure_topics",
        "process",
        "sink_batches",
        "RetryPolicy",
        "NewTopic",
        "dead_letter_headers",
        "Producer",
    ]
    use = "; ".join(
        f"trikafka.{name}"
        for name in [*names, "Transaction", "PartitionStream", "Record", "TopicPartition"]
    )
    assert imported_by(use, "open_consumer(bootstrap_servers='localhost:1')") == "[]"


def test_producer_brings_its_transactions() -> None:
    use = (
        "from trikafka._api.producer.transaction_handle import _offsets_of; _offsets_of({}, "
        "trikafka.GroupMetadata('g'))"
    )
    assert (
        imported_by(use, "open_producer(bootstrap_servers='localhost:1', transactional_id='x')")
        == "[]"
    )


@pytest.mark.parametrize(
    "settings",
    [
        "sasl_mechanism='PLAIN', sasl_plain_username='a', sasl_plain_password='b'",
        "sasl_mechanism='OAUTHBEARER', sasl_oauth_token_endpoint_url='https://localhost:1/', "
        "sasl_oauth_client_id='a',"
        " sasl_oauth_client_secret='b'",
    ],
)
def test_sasl_is_imported_in_small_steps(settings: str) -> None:
    seen = opened("open_admin", f", security_protocol='SASL_PLAINTEXT', {settings}")
    assert [step for step in seen["steps"] if "trikafka._net.auth" in step]
    loaded = {module for modules in seen["imported"] for module in modules}
    outside = [
        module
        for step in seen["steps"]
        for module in step
        if module not in loaded.union(loading._PACKAGES)
    ]
    assert not outside, f"imported by nobody's step: {outside}"


@pytest.mark.parametrize("name", ["open_consumer", "open_producer", "open_admin"])
def test_first_client_is_imported_in_small_steps(name: str) -> None:
    seen = opened(name)
    assert not [
        module
        for module in seen["early"]
        if module.startswith(("trikafka._managers.", "kafka.protocol.metadata"))
    ]
    assert sum(map(len, seen["steps"])) > 100
    for step in seen["steps"]:
        # pluggy has thirteen tiny modules. Further modules belong in the loader's list, each after
        # its dependencies.
        assert len(step) <= (13 if "pluggy" in step else 12), (
            f"imported without a checkpoint between: {step}"
        )
    loaded = {module for modules in seen["imported"] for module in modules}
    # The modules of message packages are imported by then. Their bodies run at the first use of a
    # message.
    outside = [
        module
        for step in seen["steps"]
        for module in step
        if module not in loaded.union(loading._PACKAGES)
    ]
    assert not outside, f"imported by nobody's step: {outside}"
    # Similar topic names need no import before a topic is missing.
    assert name == "open_admin" or not [
        module for module in loaded if module.startswith("kafka.protocol.admin")
    ]


def test_second_client_imports_nothing() -> None:
    program = PROGRAM.replace(
        "    await trio.lowlevel.checkpoint()", "    imported.clear()\n    await again()"
    ).replace(
        "steps = Steps()",
        "async def again():\n    try:\n        async with "
        "OPENED(bootstrap_servers='localhost:1'): pass\n"
        "    except trikafka.BootstrapError: pass\n\nsteps = Steps()",
    )
    done = subprocess.run(
        [sys.executable, "-c", program.replace("OPENED", "open_consumer")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["imported"] == []


def test_message_packages_stay_whole_for_others() -> None:
    program = (
        "import trio, trikafka\n"
        "async def main():\n"
        "    try:\n"
        "        async with trikafka.open_admin(bootstrap_servers='localhost:1'): pass\n"
        "    except trikafka.BootstrapError: pass\n"
        "trio.run(main)\n"
        "import kafka.protocol.admin, kafka.protocol.consumer\n"
        "assert kafka.protocol.admin.CreateTopicsRequest is "
        "kafka.protocol.admin.topics.CreateTopicsRequest\n"
        "assert 'FetchRequest' in kafka.protocol.consumer.__all__\n"
        "from kafka import KafkaConsumer\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=180
    )
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
            if "trikafka" not in name:  # others see modules that are half made, and the loop goes on
                begun, limit = len(ticks), time.monotonic() + 10
                while len(ticks) < begun + 40 and time.monotonic() < limit:
                    time.sleep(0.01)
                if len(ticks) < begun + 40:
                    print("stood still")

TABLE
sys.meta_path.insert(0, Slowly())
ticks = []

async def tick():
    while True:
        ticks.append(None)
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

trio.run(main)
"""


@pytest.mark.parametrize(
    "table", ["import pyarrow as pa; table = pa.table([pa.nulls(1)], ['value'])", "table = Frame()"]
)
def test_first_tables_import_in_a_thread(table: str) -> None:
    """``pyarrow`` and ``pyarrow.compute`` take over 30 ms, while other tasks send tables."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_TABLES.replace("TABLE", table)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    *imports, count = done.stdout.splitlines()
    assert imports
    assert set(imports) == {"in a thread"}
    assert count == "9"


TERMINATED = """
import os, signal, sys, trio
import trikafka
from trikafka.testing import ScriptedCluster

class Watch:
    def find_spec(self, name, path=None, target=None):
        print("imports", name, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

async def handle(record):
    print("handling", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    await trio.sleep(0.1)
    print("finished", flush=True)

async def main():
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"x"])
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        settings |= {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with trikafka.open_consumer("t", group_id="g", **settings) as consumer:
            sys.meta_path.insert(0, Watch())
            await trikafka.run_tasks(consumer, handle, stop_on=[signal.SIGTERM])
            sys.meta_path.pop(0)
        print("committed", (await cluster_offset(cluster)), flush=True)

async def cluster_offset(cluster):
    settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
    async with trikafka.open_consumer(group_id="g", **settings) as consumer:
        found = await consumer.committed([trikafka.TopicPartition("t", 0)])
        return [each.offset for each in found.values()]

trio.run(main)
"""


def test_sigterm_during_imports_ends_in_order() -> None:
    """SIGTERM comes at any later import and in the first handler of ``run_tasks``."""
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split("\n")) == (
        0,
        ["handling", "finished", "committed [1]", ""],
    ), done.stderr
