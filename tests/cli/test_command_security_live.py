"""Quotas, users, features and controllers by the command, on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commanding import Command, fresh


def until(command: Command, args: tuple[str, ...], wanted: Callable[[Any], bool]) -> Any:
    """Run a command until its JSON is as wanted: the controller has a change before the brokers."""
    deadline = time.monotonic() + 240
    while True:
        ended = command(*args, "--json")
        found = json.loads(ended.out) if ended.code == 0 else None
        if wanted(found):
            return found
        assert time.monotonic() < deadline, (ended, found)
        time.sleep(0.05)


def test_quotas_are_set_listed_and_deleted(broker: str, command: Command) -> None:
    user = fresh()
    values = ("producer_byte_rate=1e6", "request_percentage=5", "--output", "table")
    ended = command("quotas", "set", "-u", user, *values)
    assert ended == (
        0,
        f"user '{user}': producer_byte_rate, request_percentage: set\n".encode(),
        "",
    )
    both = ("quotas", "list", "-u", user)
    assert until(command, both, bool) == [
        {"user": user, "quotas": {"producer_byte_rate": 1e6, "request_percentage": 5.0}}
    ]
    table = command(*both, "--output", "table").out.decode()
    assert [line.split() for line in table.splitlines()] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        [user, "-", "-", "producer_byte_rate", "1000000"],
        [user, "-", "-", "request_percentage", "5"],
    ]
    shown = command("quotas", "delete", "-u", user, "request_percentage", "--output", "json")
    assert json.loads(shown.out)["found"] == ["request_percentage"]
    assert command("quotas", "delete", "--execute", "-u", user, "request_percentage").code == 0
    until(command, both, lambda found: len(found[0]["quotas"]) == 1)
    assert (
        "has no quota 'request_percentage'"
        in command("quotas", "delete", "--execute", "-u", user, "request_percentage").err
    )
    assert command("quotas", "delete", "--execute", "-u", user).code == 0
    until(command, both, lambda found: found == [])
    assert "has no quotas" in command("quotas", "delete", "--execute", "-u", user).err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("quotas", "set", "q=1"), "not nothing; give -u, -c or -i"),
        (("quotas", "set", "-u", "a", "-i", "b", "q=1"), "not user, ip"),
        (("quotas", "set", "-u", "a"), "give NAME=VALUE"),
        (("quotas", "set", "-u", "a", "q=fast"), "must be a number, not 'fast'"),
        (("quotas", "add"), "did you mean 'set'?"),
        (("users", "set", "a"), "give --password-file or --password-env"),
        (("users", "set", "a", "--password-env", "NO_SUCH"), "no variable 'NO_SUCH'"),
        (("users", "set", "a", "--password-file", "/no/such"), "cannot read '/no/such'"),
        (("users", "set", "a", "--password", "s3cret"), "no such option --password"),
        (("users", "set", "a", "s3cret"), "give one user, and no password"),
        (("users", "add", "a"), "did you mean 'set'?"),
        (("acls", "set", "-O", "read", "-t", "t"), "which users? give -u"),
        (("acls", "set", "-u", "a", "-t", "t"), "which operations? give -O"),
        (("acls", "set", "-u", "a", "-O", "read"), "on what? give -t"),
        (
            ("acls", "set", "-u", "a", "-O", "read", "-O", "create", "-t", "t", "-G", "g"),
            "a group has no operation 'create'; -O is one of all, read, delete, describe, desc",
        ),
        (("acls", "set", "-u", "a", "-O", "write", "--cluster"), "the cluster has no operation"),
        (("acls", "delete"), "which rules?"),
        (("acls", "grant"), "did you mean 'set'?"),
        (("acl",), "did you mean 'acls'?"),
        (("quota",), "did you mean 'quotas'?"),
        (("user",), "did you mean 'users'?"),
        (("quorum",), "did you mean 'cluster quorum'?"),
        (("cluster", "features", "--set", "x=new"), "must be a whole number, not 'new'"),
        (("cluster", "features", "--downgrade", "safe"), "go with --set"),
    ],
)
def test_wrong_usage_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], text: str
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    ended = command(*args)
    assert (ended.code, ended.out) == (2, b"")
    assert text in ended.err
    assert "s3cret" not in ended.err


def test_password_comes_from_file_or_environment(
    broker: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, file = fresh(), tmp_path / "password"
    file.write_text("s3cret\nmore\n")
    monkeypatch.setenv("THE_PASSWORD", "s3cret")
    given = ("--password-file", str(file), "--output", "table")
    ended = command("users", "set", user, *given)
    assert ended == (0, f"{user}: password set for SCRAM-SHA-512\n".encode(), "")
    sha256 = ("-m", "scram-sha-256")
    given = ("--password-env", "THE_PASSWORD", "-n", "4096")
    assert command("users", "set", user, *sha256, *given).code == 0
    listed = ("users", "list", user)
    assert until(command, listed, lambda found: bool(found) and len(found) == 2) == [
        {"user": user, "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": user, "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    assert b"was not deleted; add --execute" in command("users", "delete", user).out
    assert "did you mean" in command("users", "delete", f"{user}x").err
    assert command("users", "delete", "--execute", user).code == 0
    until(command, listed, lambda found: bool(found) and len(found) == 1)
    assert command("users", "delete", "--execute", user, *sha256).code == 0
    until(command, listed, lambda found: found is None)
    assert f"user {user!r}" in command(*listed).err


def test_password_is_asked_for_on_a_terminal(broker: str, command: Command) -> None:
    user = fresh()
    program = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    line = [
        sys.executable,
        "-c",
        program,
        sys.executable,
        "-m",
        "trikafka.cli",
        "users",
        "set",
        user,
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, bufsize=0) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        assert process.stdin is not None
        assert process.stdout is not None
        shown = b""
        # What is written before the prompt would be discarded, and echoed.
        for prompt in (b"Password: ", b"Repeat for confirmation: "):
            while not shown.endswith(prompt):
                more = process.stdout.read(1)
                assert more, shown
                shown += more
            process.stdin.write(b"s3cret\n")
        shown += process.stdout.read()
        watchdog.cancel()
    assert process.returncode == 0, shown
    assert b"s3cret" not in shown
    assert len(until(command, ("users", "list", user), bool)) == 1


def test_features_and_controllers_are_shown(broker: str, command: Command) -> None:
    ended = command("cluster", "features", "--json")
    found = {each["feature"]: each for each in json.loads(ended.out)}
    level = found["metadata.version"]["level"]
    assert found["metadata.version"]["lowest"] < level <= found["metadata.version"]["highest"]
    check = ("cluster", "features", "--set", f"metadata.version={level}", "--dry-run")
    assert b"valid; nothing was changed" in command(*check, "--output", "table").out
    refused = command("cluster", "features", "--set", "metadata.version=999")
    assert refused.code == 1
    assert "metadata.version" in refused.err
    (node,) = json.loads(command("cluster", "quorum", "--json").out)
    assert (node["node"], node["role"], node["lag"]) == (0, "leader", 0)
    table = command("cluster", "quorum", "--output", "table").out.decode().splitlines()
    assert table[0].startswith("leader 0, epoch ")
    assert table[1].split()[:3] == ["NODE", "ROLE", "END"]


def test_rules_need_an_authorizer(broker: str, command: Command) -> None:
    ended = command("acls", "list")
    assert ended.code == 1
    assert "no authorizer" in ended.err
