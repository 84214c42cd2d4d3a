"""Topics, groups, produce and consume on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commanding import Command, fresh, trikafka

RECORDS = [
    {
        "key": "k",
        "value": "v",
        "partition": 0,
        "timestamp": 1_700_000_000_000,
        "headers": [["a", "1"], ["a", None], ["b", {"base64": "/w=="}]],
    },
    {"key": None, "value": None, "partition": 1, "timestamp": 0, "headers": []},
    {"key": "", "value": "", "partition": 1, "timestamp": 5, "headers": [["", ""]]},
    {
        "key": {"base64": "/wA="},
        "value": {"base64": "gIE="},
        "partition": 2,
        "timestamp": 2**40,
        "headers": [],
    },
    {
        "key": 'ü\u2028\n"\\\t\u0000',
        "value": "line\r\n" * 3,
        "partition": 2,
        "timestamp": 6,
        "headers": [],
    },
]


def written(tmp_path: Path, command: Command, topic: str, records: list[dict[str, object]]) -> None:
    """Write records by ``trikafka produce``."""
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    ended = command("produce", "-t", topic, str(file))
    assert (ended.code, ended.err) == (0, "")


def until(true: Callable[[], bool], limit: float = 240) -> None:
    """Wait for the condition: the controller has a topic before the brokers know of it."""
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def numbered(count: int) -> list[dict[str, object]]:
    return [
        {"key": f"k{n % 7}", "value": f"v{n}", "partition": n % 3, "timestamp": 1000 + n}
        for n in range(count)
    ]


def without(line: dict[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in line.items() if name not in names}


def test_consume_into_produce_keeps_every_record(
    command: Command, topic: str, tmp_path: Path
) -> None:
    written(tmp_path, command, topic, RECORDS)
    first = command("consume", topic, "--until-end")
    lines = sorted(first.lines, key=lambda line: (line["partition"], line["offset"]))
    assert [without(line, "topic", "offset", "timestamp_type") for line in lines] == RECORDS
    copy = fresh()
    command("topics", "create", copy, "-p", "3", "--config", "retention.ms=-1")
    assert trikafka("produce", "-t", copy, data=first.out).code == 0
    second = command("consume", copy, "--until-end")
    assert sorted(second.lines, key=lambda line: (line["partition"], line["offset"])) == [
        {**line, "topic": copy} for line in lines
    ]


def test_line_may_name_its_topic(command: Command, topic: str, tmp_path: Path) -> None:
    """Partitions of the lines can be ignored, and ``-p`` sets one."""
    file = tmp_path / "lines"
    file.write_text(json.dumps({"topic": topic, "partition": 7, "value": "x"}))
    refused = command("produce", str(file))
    assert refused.code == 1
    assert f"{file}: line 1: topic {topic!r} has 3 partitions, and no partition 7" in refused.err
    assert command("produce", "--any-partition", str(file)).code == 0
    assert command("produce", "-p", "2", "-H", "h=1", "-k", "key", "-z", "lz4", str(file)).code == 0
    last = command("consume", topic, "-e", "-p", "2", "--from=-1").lines[0]
    assert without(last, "offset", "timestamp") == {
        "topic": topic,
        "partition": 2,
        "timestamp_type": "create",
        "key": "key",
        "value": "x",
        "headers": [["h", "1"]],
    }


def test_raw_lines_and_keys_are_written(command: Command, topic: str, tmp_path: Path) -> None:
    assert trikafka("produce", "-t", topic, "-p", "0", "-f", "raw", data=b"one\n\ntwo").code == 0
    assert (
        trikafka("produce", "-t", topic, "-p", "0", "-K", ":", "-Z", data=b"k:v:w\n:\n").code == 0
    )
    assert command("consume", topic, "-e", "-f", "raw").out == b"one\n\ntwo\nv:w\n\n"
    assert (
        command("consume", topic, "-e", "-K", r"\t", "-Z").out
        == b"NULL\tone\nNULL\t\nNULL\ttwo\nk\tv:w\nNULL\tNULL\n"
    )
    assert command("consume", topic, "-e", "-f", "%o%%%S,").out == b"0%3,1%0,2%3,3%3,4%-1,"


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("beginning", [0, 1, 2, 3]),
        ("end", []),
        ("-1", [3]),
        ("2", [2, 3]),
        ("@1005", [2, 3]),
        ("@9999999999999", []),
        ("99", []),
    ],
)
def test_place_where_reading_begins(
    command: Command, topic: str, tmp_path: Path, start: str, offsets: list[int]
) -> None:
    written(tmp_path, command, topic, numbered(12))
    ended = command("consume", "-t", topic, "-e", f"--from={start}", "-p", "0")
    assert [line["offset"] for line in ended.lines] == offsets
    assert ("has no offset 99, only 0 to 4" in ended.err) is (start == "99")


def test_count_ends_reading(command: Command, topic: str, tmp_path: Path) -> None:
    written(tmp_path, command, topic, numbered(10))
    assert len(command("consume", topic, "-c", "7").lines) == 7


def test_bad_line_ends_it_after_earlier_lines(command: Command, topic: str) -> None:
    ended = trikafka(
        "produce", "-t", topic, data=b'{"value": "1"}\n\n{"value": "2"}\nhello\n{"value": "3"}\n'
    )
    assert ended.code == 1
    assert ended.err.startswith("Error: line 4: this is not JSON")
    assert ended.err.endswith("; 2 records were written\n")
    assert sorted(line["value"] for line in command("consume", topic, "-e").lines) == ["1", "2"]


def test_too_large_record_is_named_by_its_line(command: Command, topic: str) -> None:
    ended = trikafka("produce", "-t", topic, "-f", "raw", data=b"x\n" + b"y" * 2_000_000 + b"\n")
    assert ended.code == 1
    assert ended.err.startswith("Error: line 2: ")
    assert ended.err.endswith("; 1 record was written\n")


def test_group_resumes_where_it_ended(command: Command, topic: str, tmp_path: Path) -> None:
    group = fresh("group")
    written(tmp_path, command, topic, numbered(30))
    first = command("consume", topic, "-G", group, "-c", "11")
    described = json.loads(command("groups", group, "--output", "json").out)[0]
    assert (described["state"], described["members"]) == ("Empty", [])
    assert sum(place["lag"] for place in described["partitions"]) == 19
    second = command("consume", topic, "-G", group, "--until-end")
    assert (len(first.lines), len(second.lines)) == (11, 19)
    places = {(line["partition"], line["offset"]) for line in first.lines + second.lines}
    assert places == {(n % 3, n // 3) for n in range(30)}
    described = json.loads(command("groups", group, "--output", "json").out)[0]
    assert [(p["offset"], p["end"], p["lag"]) for p in described["partitions"]] == [(10, 10, 0)] * 3
    assert command("consume", topic, "-G", group, "--until-end").out == b""
    table = command("groups", group).out.decode()
    assert table.splitlines()[0] == f"{group}  (Empty, consumer, 0 members)  lag 0"
    assert table.splitlines()[1].split() == [
        "TOPIC",
        "PARTITION",
        "OFFSET",
        "END",
        "LAG",
        "MEMBER",
        "CLIENT",
        "HOST",
    ]
    assert command("groups", "describe", group).out.decode() == table
    assert command("groups", "delete", group).out.decode() == f"deleted: {group}\n"
    assert group not in command("groups", "list").out.decode()


def test_topics_from_creation_to_deletion(command: Command, broker: str) -> None:
    name = fresh()

    def partitions() -> int | None:
        listed = json.loads(command("topics", "--output", "json").out)
        return next((topic["partitions"] for topic in listed if topic["topic"] == name), None)

    assert (
        command(
            "topics",
            "--create",
            "--topic",
            name,
            "--partitions",
            "2",
            "--config",
            "retention.ms=5000",
        ).code
        == 0
    )
    again = command("topics", "create", name)
    assert again.code == 1
    assert name in again.err
    other = f"{name}-other"
    mixed = command("topics", "create", name, other)
    assert mixed.code == 1
    assert mixed.err.startswith(f"Error: 1 of 2 failed\n  {name}: ")
    assert mixed.out == f"created: {other}, 1 partition, 1 copy of each\n".encode()
    assert command("topics", "create", name, "--if-not-exists").code == 0
    until(lambda: partitions() == 2)
    assert name in command("topics").out.decode()
    assert {"topic": name, "partitions": 2, "replication_factor": 1} in json.loads(
        command("topics", "--output", "json").out
    )
    assert command("topics", "alter", name, "-p", "3").code == 0
    until(lambda: partitions() == 3)
    described = json.loads(command("topics", "describe", name, "--output", "json").out)[0]
    assert (described["config"], len(described["partitions"])) == ({"retention.ms": "5000"}, 3)
    assert (
        command("topics", "--describe", "--topic", name)
        .out.decode()
        .startswith(f"{name}  (retention.ms=5000)\n")
    )
    assert command("topics", "delete", name, other).code == 0
    gone = command("topics", "delete", name)
    assert gone.code == 1
    assert name in gone.err
    # That also holds while a broker still lists the topic.
    assert command("topics", "delete", name, "--if-exists").code == 0
    until(lambda: partitions() is None)
    assert command("topics", "describe", name).err.startswith(
        f"Error: topic {name!r} does not exist; "
    )
