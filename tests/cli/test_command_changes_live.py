"""Offsets, settings and records changed by the command, on a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from commanding import Command, fresh


@pytest.fixture
def topic(broker: str, command: Command, tmp_path: Path) -> str:
    """Return a topic whose first partition has ten records."""
    name = fresh()
    # A broker deletes segments with such old timestamps, also 30 s after its start.
    keep = ("--config", "retention.ms=-1")
    assert command("topics", "create", name, "--partitions", "2", *keep).code == 0
    file = tmp_path / "records.jsonl"
    lines = (
        json.dumps({"value": f"v{n}", "partition": 0, "timestamp": 1_000_000_000_000 + n})
        for n in range(10)
    )
    file.write_text("".join(f"{line}\n" for line in lines))
    assert command("produce", "-t", name, str(file)).code == 0
    return name


def offsets(command: Command, group: str) -> dict[int, int]:
    ended = command("groups", group, "--json")
    assert ended.code == 0, ended.err
    (found,) = json.loads(ended.out)
    return {part["partition"]: part["offset"] for part in found["partitions"]}


def test_reset_is_shown_before_it_is_done(command: Command, topic: str) -> None:
    group = fresh()
    reset = ("groups", "reset-offsets", group)
    ended = command(*reset, "-t", topic, "--to", "latest")
    assert ended.code == 0, ended.err
    assert b"nothing was changed; add --execute" in ended.out
    assert command("groups", group).code == 1  # no such group

    ended = command(*reset, "-t", topic, "--to", "latest", "--execute", "--json")
    found = json.loads(ended.out)
    assert found["executed"]
    assert [(part["before"], part["after"]) for part in found["partitions"]] == [
        (None, 10),
        (None, 0),
    ]
    assert offsets(command, group) == {0: 10, 1: 0}


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        ("earliest", 0),
        ("4", 4),
        ("-3", 7),
        ("@1000000000005", 5),
        ("2001-09-09T01:46:40.008", 8),
        ("2040-01-01", 10),
    ],
)
def test_reset_goes_to_the_place(command: Command, topic: str, place: str, offset: int) -> None:
    group = fresh()
    start = ("groups", "reset-offsets", group, "-t", f"{topic}:0", "--execute", "--to")
    assert command(*start, "latest").code == 0
    ended = command(*start, place)
    assert ended.code == 0, ended.err
    assert offsets(command, group) == {0: offset}


def test_time_to_come_deletes_nothing(command: Command, topic: str) -> None:
    """Its place would be the end. A reset goes there, with a warning."""
    group = fresh()
    ended = command(
        *("groups", "reset-offsets", group, "-t", f"{topic}:0", "--to", "@1700000000000000")
    )
    assert (ended.code, "has not come yet" in ended.err) == (0, True)
    ended = command("records", "delete", "-t", topic, "--before", "2040-01-01", "--execute")
    assert (ended.code, "has not come yet" in ended.err) == (1, True)


def test_offset_beyond_the_end_deletes_nothing(command: Command, topic: str) -> None:
    """It may be a date, and all records would be gone."""
    delete = ("records", "delete", "-t", f"{topic}:0", "--execute", "--before")
    ended = command(*delete, "20260131")
    assert ended.code == 1
    assert (
        "no partition has an offset 20260131, the highest one is 10; 'latest' deletes" in ended.err
    )
    assert command(*delete, "10").code == 0


def test_reset_stays_inside_the_log(command: Command, topic: str) -> None:
    group = fresh()
    ended = command("groups", "reset-offsets", group, "-t", f"{topic}:0", "--to", "99", "--execute")
    assert ended.code == 0
    assert "no offset 99, only 0 to 10: 10 is used" in ended.err
    assert offsets(command, group) == {0: 10}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "latest"], "give --topic, or --all-topics"),
        (["--all-topics", "--to", "latest"], "has no offsets; give --topic"),
        (["-t", "no-such-topic", "--to", "latest"], "'no-such-topic' does not exist"),
        (["-t", "{topic}:7", "--to", "latest"], "has no partition 7, only 0 to 1"),
        (["-t", "{topic}:x", "--to", "latest"], "is not TOPIC or TOPIC:PARTITION"),
        (["-t", "{topic}", "--to", "soon"], "'soon' is neither 'earliest', 'latest'"),
        (["-t", "{topic}", "--to", "+1"], "has no committed offset to count from"),
    ],
)
def test_wrong_reset_is_refused(
    command: Command, topic: str, arguments: list[str], text: str
) -> None:
    given = [text.replace("{topic}", topic) for text in arguments]
    ended = command("groups", "reset-offsets", fresh(), *given)
    assert ended.code in (1, 2)
    assert text in ended.err


def test_offsets_of_one_topic_are_deleted(command: Command, topic: str) -> None:
    group, other = fresh(), fresh()
    assert command("topics", "create", other, "--partitions", "1").code == 0
    start = ("groups", "reset-offsets", group, "-t", topic, "-t", other, "--to", "earliest")
    until = time.monotonic() + 240
    while command(*start, "--execute").code:  # a broker learns of a topic later
        assert time.monotonic() < until
    delete = ("groups", "delete-offsets", group, "-t", topic)
    ended = command(*delete)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.decode().split()[:6] == ["TOPIC", "PARTITION", "OFFSET", topic, "0", "0"]
    assert b"nothing was deleted; add --execute" in ended.out
    assert len(offsets_of(command, group)) == 3
    ended = command(*delete, "--execute", "--json")
    assert json.loads(ended.out)["executed"]
    assert offsets_of(command, group) == {(other, 0): 0}
    ended = command(*delete, "--execute")
    assert (ended.code, ended.out) == (1, b"")
    assert f"has no offsets of topic {topic!r}; it has those of {other}" in ended.err
    ended = command("groups", "delete-offsets", fresh(), "-t", topic)
    assert (ended.code, "does not exist" in ended.err) == (1, True)


def offsets_of(command: Command, group: str) -> dict[tuple[str, int], int]:
    ended = command("groups", group, "--json")
    assert ended.code == 0, ended.err
    (found,) = json.loads(ended.out)
    return {(part["topic"], part["partition"]): part["offset"] for part in found["partitions"]}


def settings_with(
    command: Command, topic: str, name: str, value: str | None
) -> dict[str, tuple[str, str]]:
    """Return the topic's settings once one has this value: the controller has it first."""
    deadline = time.monotonic() + 240
    while True:
        ended = command("configs", "get", "topic", topic, "--json")
        found = {each["name"]: (each["value"], each["source"]) for each in json.loads(ended.out)}
        if found.get(name, (None,))[0] == value:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_settings_are_shown_and_set(command: Command, topic: str) -> None:
    ended = command("configs", "set", "topic", topic, "flush.ms=7", "cleanup.policy=compact")
    assert (ended.code, ended.err) == (0, "")
    found = settings_with(command, topic, "flush.ms", "7")
    assert found["flush.ms"] == ("7", "topic")
    assert found["cleanup.policy"] == ("compact", "topic")
    assert "retention.bytes" not in found
    both = ("--delete", "flush.ms", "--delete", "cleanup.policy")
    ended = command("configs", "set", "topic", topic, *both)
    assert [line.split() for line in ended.out.decode().splitlines()[1:]] == [
        ["cleanup.policy", "compact", "delete"],
        ["flush.ms", "7", "(default)"],
        ["nothing", "was", "changed;", "add", "--execute"],
    ]
    assert settings_with(command, topic, "flush.ms", "7")
    assert command("configs", "set", "topic", topic, "--delete", "flush.ms", "--execute").code == 0
    assert "flush.ms" not in settings_with(command, topic, "flush.ms", None)
    assert b"cleanup.policy" in command("configs", "get", "topic", topic).out
    assert b"retention.bytes" in command("configs", "get", "topic", topic, "--all").out
    assert b"node.id" in command("configs", "get", "broker", "0").out
    ended = command("configs", "set", "topic", topic, "no.such=1", "--dry-run")
    assert ended.code == 1
    assert "no.such" in ended.err


def test_records_are_deleted_on_request(command: Command, topic: str) -> None:
    delete = ("records", "delete", "-t", topic, "--before")
    ended = command(*delete, "4")
    assert b"nothing was deleted; add --execute" in ended.out
    ended = command(*delete, "4", "--execute", "--json")
    parts = json.loads(ended.out)["partitions"]
    assert [(part["first"], part["after"]) for part in parts] == [(0, 4), (0, 0)]
    ended = command("consume", topic, "--until-end")
    assert ended.out.count(b"\n") == 6
    assert "count from a group's offset" in command(*delete, "-1").err


def test_cluster_is_shown(broker: str, command: Command) -> None:
    found = json.loads(command("cluster", "--json").out)
    assert [broker["id"] for broker in found["brokers"]] == [0]
    assert found["controller"] == 0
    assert b"1 broker" in command("cluster").out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["config", "get"], "did you mean 'configs'?"),
        (["groups", "reset"], "did you mean 'trikafka groups reset-offsets GROUP'?"),
        (["groups", "members"], "did you mean 'trikafka groups GROUP'?"),
        (["configs", "alter"], "did you mean 'set'?"),
        (["records", "purge"], "did you mean 'delete'?"),
    ],
)
def test_other_tools_words_get_a_hint(
    broker: str, command: Command, words: list[str], text: str
) -> None:
    assert text in command(*words).err
