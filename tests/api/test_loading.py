"""Imports of a program's first client, in a thread beside the event loop."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from trikafka import _importing
from trikafka._importing import one_thread

PROGRAM = """
import sys, threading, time, trio
import trikafka
from trikafka import open_admin, open_consumer, open_producer  # which costs little

OURS = ("trikafka", "kafka", "pluggy", "cramjam")
assert "kafka" not in sys.modules and "trikafka._managers" not in sys.modules

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OURS:
            in_loop = threading.current_thread() is threading.main_thread()
            print("in the loop" if in_loop else "in a thread")
            begun, limit = len(ticks), time.monotonic() + 60
            while not in_loop and len(ticks) < begun + 2 and time.monotonic() < limit:
                time.sleep(0.001)
            if not in_loop and len(ticks) < begun + 2:
                print("stood still")

ticks = []

async def tick():
    while True:
        ticks.append(None)
        await trio.sleep(0.001)

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        for _ in range(CLIENTS):
            nursery.start_soon(use)
        while done < CLIENTS:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    print("again")
    await use()

done = 0

async def use():
    global done
    try:
        with trio.fail_after(240):
            async with OPENED(bootstrap_servers="localhost:1"):
                pass
    except trikafka.BootstrapError:
        done += 1

sys.meta_path.insert(0, Watch())
trio.run(main)
"""


def searched(opened: str, settings: str = "", clients: int = 1) -> tuple[list[str], list[str]]:
    """Return where each module was searched for: for the first clients, and for one after them."""
    program = PROGRAM.replace("OPENED", opened).replace("CLIENTS", str(clients))
    program = program.replace('"localhost:1"', f'"localhost:1"{settings}')
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    first, _, later = done.stdout.partition("again\n")
    return first.splitlines(), later.splitlines()


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
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
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


SASL = ", security_protocol='SASL_PLAINTEXT', sasl_mechanism="


@pytest.mark.parametrize(
    ("opened", "settings"),
    [
        ("open_producer", ""),
        ("open_admin", f"{SASL}'PLAIN', sasl_plain_username='a', sasl_plain_password='b'"),
        (
            "open_admin",
            f"{SASL}'OAUTHBEARER', sasl_oauth_token_endpoint_url='https://localhost:1/', "
            "sasl_oauth_client_id='a', sasl_oauth_client_secret='b'",
        ),
    ],
)
def test_first_client_is_imported_in_a_thread(opened: str, settings: str) -> None:
    """The loop turns while each module is imported, and a later client imports nothing."""
    first, later = searched(opened, settings)
    assert len(first) > 100
    assert set(first) == {"in a thread"}
    assert later == []


def test_clients_share_the_first_import() -> None:
    """No task waits in the loop for a module that another client's thread imports."""
    first, later = searched("open_consumer", clients=5)
    assert len(first) > 100
    assert set(first) == {"in a thread"}
    assert later == []


VIRTUAL = """
import trio, trikafka
from trikafka.testing import ScriptedCluster

async def main():
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with trio.fail_after(1):
            async with trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ):
                print("open at", trio.current_time() - began)

clock = trio.testing.MockClock(autojump_threshold=0)
began = clock.current_time()
trio.run(main, clock=clock)
"""


def test_virtual_time_stands_during_imports() -> None:
    """A virtual clock would jump to the next deadline while a thread imports."""
    program = "import trio.testing" + VIRTUAL
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, "open at 0.0\n"), done.stderr


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
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=600
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
                begun, limit = len(ticks), time.monotonic() + 60
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
        timeout=600,
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
        [sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout.split("\n")) == (
        0,
        ["handling", "finished", "committed [1]", ""],
    ), done.stderr


SIDE_BY_SIDE = """
import itertools, sys, threading, time
import trikafka
from trikafka import _importing
from trikafka._api.client import loading

_importing._LIMIT = 500.0  # all imports together take long on a busy machine

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("trikafka."):
            importing.append(threading.current_thread().name)
            time.sleep(0.001)  # which lets another thread run

def use(name):
    start.wait()
    if name == "a client":
        loading._import_all(loading.SHARE)
    else:
        getattr(trikafka, name)

sys.meta_path.insert(0, Watch())
importing = []
names = ["Consumer", "Admin", "run_tasks", "a client"]
start = threading.Barrier(len(names))
threads = [threading.Thread(target=use, args=(name,), name=name) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len([*itertools.groupby(importing)]) - len(set(importing)))
"""


def test_threads_import_one_after_the_other() -> None:
    """Several threads that used names of trikafka for the first time got errors of the import."""
    done = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE], capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_import_of_a_module_waits_for_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the module's own lock, for which the thread that opens a client may wait."""
    program = "with one_thread(): pass"
    code = compile(program, "<a module>", "exec")
    held, done = threading.Event(), threading.Event()
    monkeypatch.setattr(_importing, "_LIMIT", 400.0)
    finished: list[bool] = []

    def open_client() -> None:
        with one_thread():
            held.set()
            finished.append(done.wait(120))

    thread = threading.Thread(target=open_client)
    thread.start()
    held.wait(240)
    exec(code, {"__name__": "trikafka.tasks.some", "one_thread": one_thread})
    done.set()
    thread.join()
    assert finished == [True], "the import waited until the client had opened"
