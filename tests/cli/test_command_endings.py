"""Ends of commands: signals, readers that go away, and missing things."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from commanding import Command, Ended, Running, Send, fresh, install, trikafka
from pipe_levels import waiting_bytes

_SINK = "from export_sinks import LinesPlugin\nplugin = LinesPlugin()\n"


def described(command: Command, group: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(command("groups", group, "--output", "json").out)[0]
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_leaves_and_commits_the_printed(
    command: Command, topic: str, send: Send, number: signal.Signals, code: int
) -> None:
    group = fresh("group")
    send(b"a\nb\nc\n", "-p", "0")
    with Running("consume", topic, "-G", group) as running:
        assert [json.loads(running.line())["value"] for _ in range(3)] == ["a", "b", "c"]
        running.process.send_signal(number)
        ended = running.ended()
    assert (ended.code, ended.out, ended.err) == (code, b"", "")
    after = described(command, group)
    assert (after["state"], after["members"]) == ("Empty", [])
    assert {(p["partition"], p["offset"]) for p in after["partitions"]} >= {(0, 3)}  # type: ignore[attr-defined]


def test_member_is_described_while_it_reads(command: Command, topic: str, send: Send) -> None:
    group = fresh("group")
    send(b"a\n", "-p", "0")
    with Running("consume", topic, "-G", group, "-X", "client.id=reader") as running:
        assert running.line()
        until = time.monotonic() + 240
        # The member may not have reported yet that it has its partitions.
        while (during := described(command, group))["state"] != "Stable":
            assert time.monotonic() < until
        running.process.send_signal(signal.SIGINT)
        assert running.ended().code == 130
    (member,) = during["members"]  # type: ignore[misc]
    assert (during["state"], member["client_id"], len(member["partitions"])) == (
        "Stable",
        "reader",
        3,
    )


def test_signal_delivers_what_was_read(command: Command, topic: str) -> None:
    with Running("produce", "-t", topic, "-f", "raw", "-X", "linger.ms=60000") as running:
        give(running, b"one\ntwo\n")
        give(running, b"half")  # it is read when the lines before it are being sent
        running.process.send_signal(signal.SIGINT)
        # The end of the input, which ended() sends, would complete the half line.
        running.process.wait(240)
        ended = running.ended()
    assert ended.code == 130
    assert ended.err == "Warning: line 3 had not arrived as a whole, and was not written\n"
    assert {line["value"] for line in command("consume", topic, "-e").lines} == {"one", "two"}


def give(running: Running, data: bytes) -> None:
    """Write to a process's standard input, and wait until the process has read it."""
    pipe = running.process.stdin
    assert pipe is not None
    pipe.write(data)
    while waiting_bytes(pipe.fileno()) and running.process.poll() is None:
        os.sched_yield()


def test_reader_that_goes_away_ends_it_quietly(command: Command, topic: str, send: Send) -> None:
    send(b"x\n" * 50_000)
    group = fresh("group")
    with Running("consume", topic, "-G", group) as running:
        assert running.line()
        running.process.stdout.close()  # type: ignore[union-attr]
        running.process.stdout = None
        ended = running.ended()
    assert (ended.code, ended.err) == (141, "")
    assert described(command, group)["state"] == "Empty"


def test_missing_reader_is_noticed_while_idle(topic: str, send: Send) -> None:
    """The command ends although no record arrives."""
    send(b"x\n")
    with Running("consume", topic) as running:
        assert running.line()
        running.process.stdout.close()  # type: ignore[union-attr]
        running.process.stdout = None
        assert running.ended()[::2] == (141, "")


def test_blocked_reader_delays_no_signal(command: Command, topic: str, send: Send) -> None:
    """The offset of exactly the printed records is committed."""
    send(b"x" * 1000 + b"\n" + b"x\n" * 5_000)
    group = fresh("group")
    with Running("consume", topic, "-G", group) as running:
        pipe = running.process.stdout
        assert pipe is not None
        capacity = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
        while (
            waiting_bytes(pipe.fileno()) < capacity - select.PIPE_BUF
            and running.process.poll() is None
        ):
            os.sched_yield()
        running.process.send_signal(signal.SIGINT)
        running.process.wait()
        ended = running.ended()
    assert (ended.code, ended.err) == (130, "")
    printed = len(ended.lines)
    assert 0 < printed < 5_001
    after = described(command, group)
    assert after["state"] == "Empty"
    assert sum(place["offset"] for place in after["partitions"]) == printed  # type: ignore[attr-defined]


def test_killed_command_leaves_no_half_line(topic: str, send: Send) -> None:
    send(b"".join(b"%d-%s\n" % (n, b"x" * (n % 1500)) for n in range(5_000)))
    with Running("consume", topic) as running:
        assert running.line()
        running.process.kill()
        ended = running.ended()
    assert ended.code == -signal.SIGKILL
    assert ended.out.endswith(b"\n")
    assert ended.lines


def test_full_disk_is_an_error(topic: str, send: Send) -> None:
    send(b"x\n")
    with open("/dev/full", "wb") as full:
        ended = trikafka("consume", topic, "-e", stdout=full)
    assert ended.code == 1
    assert ended.err == "Error: cannot write to the standard output: No space left on device\n"


def test_closed_standard_streams_are_errors(topic: str, send: Send) -> None:
    send(b"x\n")
    ended = trikafka("consume", topic, "-e", stdout=None, preexec_fn=lambda: os.close(1))
    assert (ended.code, ended.err) == (
        1,
        "Error: cannot write to the standard output: Bad file descriptor\n",
    )
    ended = trikafka("topics", stdout=None, preexec_fn=lambda: os.close(1))
    assert (ended.code, ended.err) == (1, "Error: the standard output is closed\n")
    ended = trikafka("produce", "-t", topic, stdin=None, preexec_fn=lambda: os.close(0))
    assert ended.code == 1
    assert "cannot read the standard input: Bad file descriptor" in ended.err


def test_number_of_a_closed_stream_is_not_used(topic: str, send: Send, tmp_path: Path) -> None:
    """A library has opened a file before the command begins, and got the free number."""
    other = tmp_path / "other"
    other.write_bytes(b"secret\n")
    (tmp_path / "sitecustomize.py").write_text(f"import os\nos.open({str(other)!r}, os.O_RDWR)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path}

    def run(*args: str, fd: int) -> Ended:
        closed: dict[str, Any] = {("stdin", "stdout")[fd]: None}
        return trikafka(*args, environment=environment, preexec_fn=lambda: os.close(fd), **closed)

    for form in ("raw", "parquet"):
        ended = run("produce", "-t", topic, "--format", form, fd=0)
        assert "cannot read the standard input: Bad file descriptor" in ended.err
        assert ended.code == 1
    ended = run("users", "set", "u", "--password-file", "-", fd=0)
    assert "the standard input is closed" in ended.err
    assert ended.code == 2
    send(b"x\n")
    ended = run("consume", topic, "-e", fd=1)
    assert ended.err == "Error: cannot write to the standard output: Bad file descriptor\n"
    assert ended.code == 1
    assert other.read_bytes() == b"secret\n"


# --- what is not there ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [("consume", "{}"), ("consume", "{}", "-G", "cli-none"), ("topics", "describe", "{}")]
)
def test_missing_topic_is_an_error(command: Command, broker: str, args: tuple[str, ...]) -> None:
    name = fresh()
    ended = command(*(arg.format(name) for arg in args))
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith(f"Error: topic {name!r} does not exist; ")
    assert ended.err.endswith(f"make it: trikafka topics create {name}\n")


def test_producing_to_a_missing_topic_is_an_error(
    command: Command, broker: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("{}")
    ended = command("produce", "-t", "cli-none", str(tmp_path / "in"))
    assert ended.code == 1
    assert ended.err.startswith("Error: topic 'cli-none' does not exist; ")
    assert ended.err.endswith("make it: trikafka topics create cli-none\n")


def test_missing_partition_and_group_are_errors(command: Command, topic: str) -> None:
    ended = command("consume", topic, "-p", "5")
    assert (ended.code, ended.err) == (
        1,
        f"Error: topic {topic!r} has 3 partitions, and no partition 5\n",
    )
    ended = command("groups", "cli-none")
    assert (ended.code, ended.err) == (1, "Error: group 'cli-none' does not exist\n")
    ended = command("groups", "--delete", "cli-none")
    assert ended.code == 1
    assert "'cli-none'" in ended.err


_CALLS = [
    ("topics",),
    ("groups",),
    ("consume", "t"),
    ("consume", "t", "-G", "g"),
    ("produce", "-t", "t"),
    ("export", "t", "lines:///tmp/x"),
]


@pytest.mark.parametrize("args", _CALLS)
def test_refused_connection_is_named(command: Command, args: tuple[str, ...]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        ended = command(*args, "-b", address)
    if args[0] != "export":  # the first check finds that no plugin writes there
        assert f"cannot connect to {address}: Connection refused" in ended.err
    assert (ended.code, ended.err.count("\n")) == (1, 1)


@pytest.mark.parametrize("args", _CALLS[:-1])
def test_port_of_another_protocol_is_named(
    command: Command, web_server: str, args: tuple[str, ...]
) -> None:
    ended = command(*args, "-b", web_server)
    assert ended.code == 1
    assert f"{web_server} does not speak Kafka's protocol" in ended.err
    assert ended.err.count("\n") == 1


# --- export ---------------------------------------------------------------------------------------


@pytest.fixture
def sink(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which a plugin writes to ``lines://``."""
    environment = install(
        tmp_path, "trikafka", {"lines": "lines_plugin:plugin"}, lines_plugin=_SINK
    )
    place = Path(__file__).parents[2] / "plugins/trikafka-export/tests"
    return {"PYTHONPATH": environment["PYTHONPATH"] + os.pathsep + str(place)}


def test_export_writes_only_what_is_new(
    command: Command, topic: str, send: Send, tmp_path: Path, sink: dict[str, str]
) -> None:
    group, out = fresh("group"), tmp_path / "out"
    send(b"a\nb\n", "-p", "1")
    first = trikafka("export", topic, f"lines://{out}", "-G", group, environment=sink)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith(b"2 records in 1 file (")
    assert trikafka(
        "export", topic, f"lines://{out}", "-G", group, environment=sink
    ).out.startswith(b"nothing new")
    send(b"c\n", "-p", "2")
    last = json.loads(
        trikafka(
            "export", topic, f"lines://{out}", "-G", group, "--output", "json", environment=sink
        ).out
    )
    assert (last["records"], last["already_done"], len(last["files"])) == (1, False, 1)
    assert [p["lag"] for p in described(command, group)["partitions"]] == [0, 0, 0]  # type: ignore[attr-defined]


def test_impossible_exports_are_refused(
    command: Command, broker: str, tmp_path: Path, sink: dict[str, str]
) -> None:
    ended = command("export", "t", "nosuch://x")
    assert (ended.code, ended.err) == (
        1,
        "Error: no plugin writes exports to 'nosuch' destinations\n",
    )
    name = fresh()
    ended = trikafka("export", name, f"lines://{tmp_path / 'out'}", environment=sink)
    assert ended.code == 1
    # The topic of another test may have a similar name, which is then suggested.
    assert ended.err.startswith(f"Error: topic {name!r} does not exist; ")
    assert "topics create" not in ended.err  # a new topic would have nothing to export
    (tmp_path / "file").write_text("x")
    ended = trikafka("export", name, f"lines://{tmp_path / 'file' / 'out'}", environment=sink)
    assert ended.code == 1
    assert ended.err.count("\n") == 1
