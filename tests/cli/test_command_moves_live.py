"""Reassignments, directories, members and share groups by the command, on a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from commanding import Command, fresh

_LIMIT = 240


def found(command: Command, *args: str) -> Any:
    """Return what a command says as JSON, once it succeeds: brokers learn of a change later."""
    until = time.monotonic() + _LIMIT
    while True:
        ended = command(*args, "--json")
        if ended.code == 0:
            return json.loads(ended.out)
        assert time.monotonic() < until, ended.err


@pytest.fixture
def topic(broker: str, command: Command) -> str:
    name = fresh()
    assert command("topics", "create", name, "--partitions", "2").code == 0
    return name


def test_partitions_are_moved_by_a_plan(command: Command, topic: str, tmp_path: Path) -> None:
    move = ("reassign", "move", "-t", topic)
    assert found(command, *move) == {"executed": False, "partitions": []}
    assert b"nothing to move" in command(*move).out
    plan = tmp_path / "plan.json"
    part = {"topic": topic, "partition": 1, "replicas": [7]}
    plan.write_text(json.dumps({"partitions": [part]}))
    by_plan = ("reassign", "move", "--file", str(plan))
    for more in ((), ("--execute",)):
        ended = command(*by_plan, *more)
        assert ended.code == 1
        assert "broker 7" in ended.err
    (directory,) = found(command, "cluster", "log-dirs")
    part |= {"replicas": [0], "log_dirs": [directory["directory"]]}
    plan.write_text(json.dumps({"partitions": [part]}))
    assert b"nothing to move" in command(*by_plan, "--execute").out
    plan.write_text(json.dumps({"partitions": [part | {"log_dirs": ["/none"]}]}))
    assert "broker 0 has no log directory '/none'" in command(*by_plan).err
    plan.write_text("{}")
    assert "is not a plan such as" in command(*by_plan).err
    assert "no live broker 9; it has 0" in command(*move, "--to", "9").err
    assert "needs 2 replicas" in command(*move, "--replicas", "2").err
    assert found(command, "reassign", "status", "-t", topic) == []
    assert b"no reassignment is under way" in command("reassign", "cancel", "-t", topic).out


def test_directories_are_shown(command: Command, topic: str) -> None:
    (directory,) = found(command, "cluster", "log-dirs")
    assert (directory["broker"], directory["state"]) == (0, "online")
    ended = command("cluster", "log-dirs")
    assert ended.code == 0
    assert directory["directory"].encode() in ended.out


def test_share_offsets_are_set_and_deleted(command: Command, topic: str, tmp_path: Path) -> None:
    group, file = fresh(), tmp_path / "lines"
    file.write_bytes(b"1\n2\n3\n")
    assert command("produce", "-t", f"{topic}", "-f", "raw", str(file)).code == 0
    reset = ("share-groups", "reset-offsets", group, "-t", topic, "--to", "latest")
    assert not found(command, *reset)["executed"]
    assert f"group {group!r} does not exist" in command("share-groups", "offsets", group).err
    assert found(command, *reset, "--execute")["executed"]
    assert "trikafka share-groups reset-offsets" in command("groups", *reset[1:]).err
    rows = found(command, "share-groups", "offsets", group)
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["start_offset"] for row in rows) == 3
    assert group.encode() in command("share-groups", "list").out
    (described,) = found(command, "share-groups", "describe", group)
    assert (described["state"], described["members"]) == ("Empty", [])
    assert found(command, "share-groups", "delete", group, "-t", topic)["topics"] == [topic]
    assert found(command, "share-groups", "delete", group) == {"deleted": [group]}
    ended = command("share-groups", "describe", group)
    assert ended.code == 1
    assert group in ended.err


def test_consumer_group_is_no_share_group(command: Command, topic: str) -> None:
    """The broker would delete a group of any kind."""
    group = fresh()
    found(
        command,
        *("groups", "reset-offsets", group, "-t", topic, "--to", "earliest", "--execute"),
    )
    ended = command("share-groups", "delete", group)
    assert (ended.code, ended.out) == (1, b"")
    assert "is not a share group" in ended.err
    reset = ("share-groups", "reset-offsets")
    to = ("-t", topic, "--to", "earliest")
    for more in ((), ("--execute",)):
        ended = command(*reset, group, *to, *more)
        assert (ended.code, ended.out) == (1, b"")
        assert f"group: trikafka groups reset-offsets {group}" in ended.err
    assert f"does not exist yet; did you mean {group!r}?" in command(*reset, group[:-1], *to).err
    assert group.encode() in command("groups").out


def test_share_group_is_no_consumer_group(command: Command, topic: str) -> None:
    """Commands for consumer groups name the right command, and do their work for the others."""
    share, other = fresh(), fresh()
    to = ("-t", topic, "--to", "earliest", "--execute")
    found(command, "share-groups", "reset-offsets", share, *to)
    found(command, "groups", "reset-offsets", other, *to)
    hint = f"group {share!r} is a share group: trikafka share-groups delete {share}"
    ended = command("groups", "--delete", share)
    assert (ended.code, ended.out, ended.err) == (1, b"", f"Error: {hint}\n")
    ended = command("groups", "--delete", share, other)
    assert (ended.code, ended.out) == (1, f"deleted: {other}\n".encode())
    assert hint in ended.err
    ended = command("groups", "lag", share)
    assert (ended.code, f"trikafka share-groups offsets {share}" in ended.err) == (1, True)
    ended = command("groups", "remove-members", share, "--all")
    assert (ended.code, "is a share group" in ended.err) == (1, True)
    ended = command("groups", "delete-offsets", share, "-t", topic, "--execute")
    hint = f"group {share!r} is a share group: trikafka share-groups delete --topic TOPIC {share}"
    assert (ended.code, ended.out, ended.err) == (1, b"", f"Error: {hint}\n")
    assert share.encode() not in command("groups", "lag").out
    assert found(command, "share-groups", "delete", share) == {"deleted": [share]}


def test_other_share_groups_are_shown_and_deleted(command: Command, topic: str) -> None:
    """Beside a consumer group, which stays, and a group that does not exist."""
    share, other, missing = fresh(), fresh(), fresh()
    to = ("-t", topic, "--to", "earliest", "--execute")
    found(command, "share-groups", "reset-offsets", share, *to)
    found(command, "groups", "reset-offsets", other, *to)
    for verb in ("describe", "offsets", "delete"):
        ended = command("share-groups", verb, missing, share, other)
        assert (ended.code, share.encode() in ended.out) == (1, True)
        assert f"  {missing}: group {missing!r} does not exist" in ended.err
        assert f"  {other}: {other!r} is not a share group but a " in ended.err
    listed = command("groups").out
    assert other.encode() in listed
    assert share.encode() not in listed


def test_members_to_remove_are_shown_first(command: Command, topic: str) -> None:
    group = fresh()
    assert "does not exist" in command("groups", "remove-members", group, "--all").err
    reset = ("groups", "reset-offsets", group, "-t", topic, "--to", "earliest", "--execute")
    found(command, *reset)
    assert found(command, "groups", "remove-members", group, "--all")["members"] == []
    ended = command("groups", "remove-members", group, "--instance", "i")
    assert ended.code == 1
    assert f"group {group!r} has no member 'i'" in ended.err
