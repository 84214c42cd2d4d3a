"""The command, and the leftovers of a program with brokers that ends in a bad way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
import trikafka_broker
from broker_waiting import (
    COMMAND,
    command_line,
    eventually,
    first_line,
    only_process_naming,
    processes_naming,
    running,
)
from trikafka_broker import BrokerError, KafkaCluster
from trikafka_broker.guardian import Guardian
from trikafka_broker.probe import registered_brokers

PROGRAM = """
from trikafka_broker import KafkaCluster
cluster = KafkaCluster()
cluster.start()
print(cluster.bootstrap_servers, flush=True)
{rest}
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers be processes of Python, for a test in which any process will do.

    The other tests show that the JVM of a real broker ends, and leaves nothing.
    """
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    script = Path(__file__).with_name("stand_in_java.py")
    java.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))


def wait_until_nothing_is_left(temporary: Path) -> None:
    """Wait until no process of a cluster runs, and its files are gone."""

    def left() -> list[str]:
        # os.walk() passes over a folder that is removed meanwhile; Path.rglob() would raise.
        walk = os.walk(temporary)
        files = (f"{folder}/{name}" for folder, inner, names in walk for name in [*inner, *names])
        return [*map(command_line, processes_naming(str(temporary))), *files]

    assert eventually(lambda: not left()), left()


def test_killed_parent_leaves_nothing(temporary: Path) -> None:
    with running([sys.executable, "-c", PROGRAM.format(rest="input()")]) as parent:
        host, port = first_line(parent).split(":")
        assert eventually(lambda: registered_brokers(host, int(port)) == {0})
        assert processes_naming(str(temporary))
        parent.kill()
        wait_until_nothing_is_left(temporary)


def test_parent_killed_early_leaves_nothing(temporary: Path) -> None:
    with running([sys.executable, "-c", PROGRAM.format(rest="input()")]) as parent:
        assert eventually(lambda: bool(processes_naming(f"{temporary}/trikafka-broker-")))
        parent.kill()
        wait_until_nothing_is_left(temporary)


@pytest.mark.usefixtures("stand_in")
def test_killed_parent_with_a_fork_leaves_nothing(temporary: Path) -> None:
    rest = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\ninput()"
    with running([sys.executable, "-c", PROGRAM.format(rest=rest)]) as parent:
        assert first_line(parent)
        parent.kill()
        parent.wait()
        wait_until_nothing_is_left(temporary)


@pytest.mark.usefixtures("stand_in")
def test_terminated_guardian_cleans_up(temporary: Path) -> None:
    """A guardian that gets SIGTERM, as from a broad `pkill`, cleans up."""
    # The parent reaps its broker: a zombie would be waited for.
    rest = "import os; os.waitpid(cluster.brokers[0].pid, 0)\ninput()"
    with running([sys.executable, "-c", PROGRAM.format(rest=rest)]) as parent:
        assert first_line(parent)
        guardian = only_process_naming(f"_guardian_main.py\0{parent.pid}\0")
        os.kill(guardian, signal.SIGTERM)
        wait_until_nothing_is_left(temporary)


@pytest.mark.usefixtures("stand_in")
def test_second_guardian_cleans_up(temporary: Path) -> None:
    """The second guardian cleans up if the first guardian and then their parent are killed."""
    with running([sys.executable, "-c", PROGRAM.format(rest="input()")]) as parent:
        assert first_line(parent)
        guardian = only_process_naming(f"_guardian_main.py\0{parent.pid}\0")
        os.kill(guardian, signal.SIGKILL)
        parent.kill()
        wait_until_nothing_is_left(temporary)
        assert eventually(lambda: not processes_naming(f"_guardian_main.py\0{guardian}\0"))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing can be done about it")
def test_broker_ends_without_its_guardians(temporary: Path) -> None:
    """No broker continues if both guardians and then their parent are killed.

    The directory stays: no process is left that could remove it.
    """
    with running([sys.executable, "-c", PROGRAM.format(rest="input()")]) as parent:
        assert first_line(parent)
        first = only_process_naming(f"_guardian_main.py\0{parent.pid}\0")
        second = only_process_naming(f"_guardian_main.py\0{first}\0")
        for guardian in (second, first):  # otherwise the second would replace the first
            os.kill(guardian, signal.SIGKILL)
        assert eventually(lambda: not processes_naming(f"_guardian_main.py\0{parent.pid}\0"))
        assert processes_naming(str(temporary))
        parent.kill()
        assert eventually(lambda: not processes_naming(str(temporary)))
    for left in temporary.iterdir():
        shutil.rmtree(left)


@pytest.mark.usefixtures("stand_in")
def test_broker_outlives_its_starting_thread(temporary: Path) -> None:
    rest = "import threading\n"
    rest += (
        "thread = "
        "threading.Thread(target=cluster.brokers[0].restart)\nthread.start()\nthread.join()\n"
    )
    rest += "print('again', flush=True)\ninput()"
    with running([sys.executable, "-c", PROGRAM.format(rest=rest)]) as parent:
        host, port = first_line(parent).split(":")
        assert first_line(parent) == "again"
        assert eventually(lambda: registered_brokers(host, int(port)) == {0})


@pytest.mark.parametrize(
    "numbers", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]]
)
def test_guardian_reads_its_input_before_signals(numbers: list[signal.Signals]) -> None:
    """The guardian handles lines that were written before a signal."""
    guardian = [
        sys.executable,
        str(Path(trikafka_broker.__file__).with_name("_guardian_main.py")),
        str(os.getpid()),
    ]
    with running(["sleep", "60"]) as child, running(guardian) as process:
        assert eventually(lambda: bool(handled(process.pid) & 1 << signal.SIGTERM - 1))
        process.send_signal(signal.SIGSTOP)
        assert process.stdin is not None
        process.stdin.write(f'["group", {child.pid}]\n')
        process.stdin.flush()
        for number in numbers:
            process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        assert eventually(lambda: child.poll() is not None)
        assert process.wait(240) == 0


def handled(pid: int) -> int:
    """Return the signals that a process has handlers for, as bits."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("SigCgt:")[2].split()[0], 16)


def test_dying_guardian_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guardian that ends before it handles signals has started no process."""
    dying = tmp_path / "dying.py"
    dying.write_text("import sys; sys.stdin.readline(); sys.exit(3)")
    monkeypatch.setattr("trikafka_broker.guardian._GUARDIAN", dying)
    guardian = Guardian()
    guardian.start()
    guardian.own_directory(tmp_path / "absent")  # the line that ends it
    with pytest.raises(BrokerError, match=r"ended from outside \(code 3\)"):
        guardian.spawn(["touch", str(tmp_path / "started")], subprocess.DEVNULL)
    guardian.close()
    assert list(tmp_path.iterdir()) == [dying]


def test_closed_guardian_starts_nothing() -> None:
    """A closed guardian starts no process: it could not end that process.

    The thread that starts processes has ended, too.
    """
    guardian = Guardian()
    guardian.start()
    with guardian.spawn(["sleep", "60"], subprocess.DEVNULL) as child, ThreadPoolExecutor() as pool:
        code = pool.submit(child.wait, 240)  # a zombie would be waited for
        guardian.close()
        assert code.result() == -signal.SIGKILL
    with pytest.raises(BrokerError, match="was closed; start a new one"):
        guardian.spawn(["sleep", "60"], subprocess.DEVNULL)


def test_guardian_closed_meanwhile_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes the guardian while a process starts."""
    guardian = Guardian()
    guardian.start()
    rounds = iter(range(100))

    class ClosedMeanwhile:
        def __enter__(self) -> None:
            if next(rounds) == 1:  # the process has been started, and the guardian hears of it
                guardian.close()

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(guardian, "_lock", ClosedMeanwhile())
    with pytest.raises(BrokerError, match="was closed; start a new one"):
        guardian.spawn(["sleep", "60"], subprocess.DEVNULL)


@pytest.mark.usefixtures("stand_in")
def test_cluster_without_guardian_cleans_up(
    temporary: Path,
) -> None:
    """A cluster whose guardian was killed starts no broker, and cleans up itself."""
    rest = (
        "import os, signal; process = cluster.guardian._process; process.kill(); process.wait()\n"
    )
    rest += (
        "try: cluster.brokers[0].restart()\nexcept BrokerError as error: "
        "print(error)\ncluster.close()"
    )
    program = "from trikafka_broker import BrokerError\n" + PROGRAM.format(rest=rest)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=400, capture_output=True, text=True
    )
    assert (
        done.stdout.splitlines()[1]
        == "The guardian process was ended from outside (code -9); start a new cluster"
    )
    wait_until_nothing_is_left(temporary)


@pytest.mark.usefixtures("stand_in")
def test_given_directory_keeps_its_files(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "thesis.txt").write_text("mine")
    with KafkaCluster(directory=tmp_path):
        assert list(tmp_path.glob("jvm-*"))
    assert (tmp_path / "tmp" / "thesis.txt").read_text() == "mine"
    assert not list(tmp_path.glob("jvm-*"))


def test_unclosed_cluster_leaves_nothing(temporary: Path) -> None:
    program = [sys.executable, "-c", PROGRAM.format(rest="")]
    subprocess.run(program, check=True, timeout=400, stdout=subprocess.DEVNULL)
    wait_until_nothing_is_left(temporary)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_command_ends_on_signals(
    number: signal.Signals, code: int, temporary: Path, request: pytest.FixtureRequest
) -> None:
    """The command prints the address, and ends in order on signals."""
    if number != signal.SIGTERM:
        request.getfixturevalue("stand_in")
    with running([*COMMAND, "--property", "num.partitions=2"]) as process:
        host, port = first_line(process).split(":")
        assert eventually(lambda: registered_brokers(host, int(port)) == {0})
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == code
    assert stdout == ""
    assert "Traceback" not in stderr
    wait_until_nothing_is_left(temporary)


def test_interrupted_command_leaves_nothing(temporary: Path) -> None:
    """The command leaves nothing if it is interrupted while the broker starts."""
    with running(COMMAND) as process:
        assert eventually(lambda: bool(processes_naming(f"{temporary}/trikafka-broker-")))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=400)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    wait_until_nothing_is_left(temporary)


def test_command_refuses_a_wrong_version() -> None:
    done = subprocess.run(
        [*COMMAND, "--kafka-version", "newest"], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 1
    assert done.stderr == "Error: 'newest' is not a version of Kafka; an example of one is 4.4.0\n"


def test_command_fetches_the_jars() -> None:
    """With ``--fetch-only`` the command prints the folder of the jars."""
    done = subprocess.run([*COMMAND, "--fetch-only"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0
    assert list(Path(done.stdout.strip()).glob("kafka-clients-*.jar"))


def test_command_is_registered_with_trikafka() -> None:
    (entry,) = entry_points(group="trikafka.commands", name="broker")
    assert isinstance(entry.load().trikafka_command().load(), click.Command)
