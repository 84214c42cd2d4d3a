"""What a newcomer gets wrong is told with what it should have been. No broker."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import Command

import trikafka
from trikafka.errors import ConfigurationError, UnknownTopicOrPartitionError
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("consume", "t", "--format", "jsn"), "'jsn' prints the same for each record; did you mean 'json'?"),
        (("consume", "t", "--format", "RAW"), "did you mean 'raw'?"),
        (("consume", "t", "--format", "xyzzy"), r"such as '%k: %s\n'"),
        (("consume", "t", "--from-beginning"), "it is --from beginning"),
        (("produce", "greetings"), "file 'greetings' does not exist; if that is the topic: trikafka produce -t greetings"),
        (("consume", "t", "-X", "auto_offset_reset=earlist"), "auto_offset_reset must be one of 'earliest'"),
        (("consume", "t", "-G", "g", "--from", "end", "-X", "auto_offset_reset=earlist"), "auto_offset_reset must be one of"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(command: Command, args: tuple[str, ...], says: str) -> None:
    ended = command(*args)
    assert (ended.code, ended.out) == (2, b"")
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_with_a_topic_a_file_that_is_not_there_is_just_that(command: Command) -> None:
    assert "file 'lines' does not exist (see" in command("produce", "lines", "-t", "t").err


def test_formats_that_vary_and_a_reset_that_counts_are_taken_in_silence(command: Command) -> None:
    for args in (("-f", "%s"), ("-f", "raw"), ("-X", "auto.offset.reset=earliest"), ("-G", "g", "-X", "auto.offset.reset=latest")):
        ended = command("consume", "t", "-b", "nowhere", *args)
        assert "nowhere" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("-G", "g", "--from", "end"), "--from decides where it begins: auto.offset.reset=none does not count"),
        (("--from", "-5"), "--from decides where it begins"),
        ((), "auto.offset.reset=none does not count without a group"),
    ],
)
def test_a_reset_that_does_not_count_is_told(command: Command, args: tuple[str, ...], says: str) -> None:
    ended = command("consume", "t", "-b", "nowhere", "-X", "auto.offset.reset=none", *args)
    assert ended.err.startswith("Warning: ")
    assert says in ended.err.splitlines()[0]


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "trikafka", "--version"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"trikafka {trikafka.__version__}\n")


def test_the_package_of_a_command_is_named_with_its_folder(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trikafka.cli.app.entry_points", lambda group: ())
    folder = command("broker").err.strip().rpartition("pip install ")[2]
    assert (Path(__file__).parents[2] / folder / "pyproject.toml").exists()


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer"])
async def test_a_serializer(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown setting '{name}' .*keys and values are bytes: encode before send"):
        async with trikafka.open_producer(**{name: str.encode}):  # type: ignore[arg-type]
            raise AssertionError("opened")


async def test_a_topic_that_is_not_there(autojump_clock: object) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: trikafka.ProducerSettings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(**settings) as producer:
            for call in (producer.send, producer.enqueue):
                with pytest.raises(UnknownTopicOrPartitionError, match="make it: trikafka topics create lost, or admin"):
                    await call("lost", b"x")
            with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 't' has 1 partitions, and no partition 7$"):
                await producer.send("t", b"x", partition=7)


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_help_begins_with_the_call(kind: str) -> None:
    first = (inspect.getdoc(getattr(trikafka, f"open_{kind}")) or "").partition("\n")[0]
    assert first == f"async with trikafka.open_{kind}(...) as {kind}:"
