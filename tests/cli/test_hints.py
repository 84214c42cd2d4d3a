"""Hints for likely mistakes of newcomers, in the command and in Python. No broker."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from commanding import Command

import trikafka
from trikafka.cli.admin import ask
from trikafka.cli.app import trikafka as root
from trikafka.cli.reassign import command as reassign
from trikafka.cli.share_groups import command as share_groups
from trikafka.cli.topics import command as topics
from trikafka.cli.transactions import command as transactions
from trikafka.config import from_properties
from trikafka.error_codes import ErrorCode
from trikafka.errors import ConfigurationError, UnknownTopicOrPartitionError, from_code
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("topics", "grow", "t"),
            "there is no command 'grow'; did you mean 'alter'? (see trikafka topics --help)",
        ),
        (("topics", "lst"), "did you mean 'list'?"),
        (("topics", "flights"), "'describe NAME' says more"),
        (("quotas", "-b", "h:1", "sett"), "did you mean 'set'?"),
        (("users", "-X", "a=b", "remove"), "did you mean 'delete'?"),
        (("topics", "-b", "list"), "bootstrap address 'list' has no port"),
        (("quotas", "-b", "list", "-u", "list"), "bootstrap address 'list' has no port"),
        (("quotas", "-u", "list", "-b", "delete"), "bootstrap address 'delete' has no port"),
        (("transactions", "-b", "x", "--state", "list"), "'list' is not one of 'empty'"),
        (("transactions", "lists"), "did you mean 'list'?"),
        (("send",), "did you mean 'produce'?"),
        (("reassign-partitions",), "did you mean 'reassign'?"),
        (("reassign", "verify"), "did you mean 'status'?"),
        (("reassign", "move"), "give --topic or --off, or --file alone"),
        (("reassign", "move", "-t", "t", "--to", "one"), "list of broker numbers such as 1,2,3"),
        (("reassign", "cancel"), "give --topic, or --all"),
        (("reassign", "move", "t"), "extra argument (t); topics are given by -t (see"),
        (("records", "delete", "t", "--before", "latest"), "argument (t); topics are given by -t"),
        (("cluster", "quorum", "t"), "extra argument (t) (see"),
        (("topics", "offsets", "t:x"), "TOPIC:PARTITION, such as orders:0,2 (see"),
        (("share-group",), "did you mean 'share-groups'?"),
        (("share-groups", "reset"), "did you mean 'reset-offsets'?"),
        (("share-groups", "delete"), "which group?"),
        (("groups", "remove-members", "g"), "give --member or --instance, or --all"),
        (("groups", "-o", "json", "remove-members", "g"), "give --member or --instance, or --all"),
        (("groups", "-b", "x:1", "lag", "--every", "0"), "--every"),
        (("cluster", "-o", "json", "helth"), "did you mean 'trikafka cluster health'?"),
        (
            ("cluster", "--json", "features", "--dry-run"),
            "--downgrade and --dry-run go with --set",
        ),
        (("records", "delete", "-t", "t", "--before", "x"), "Invalid value for --before: 'x' is"),
        (("topics", "create", "t", "--partition", "3"), "--partitions"),
        (("topics", "create", "t", "--config", "x"), "for '--config': write NAME=VALUE"),
        (
            ("configs", "set", "topic", "t", "a=1", "b=2", "a=2"),
            "a is given twice, with different values: choose one",
        ),
        (("topics", "create", "t", "--config", "a=1", "--config", "a=2"), "a is given twice"),
        (("quotas", "set", "-u", "u", "a=1", "a=2"), "a is given twice"),
        (("cluster", "features", "--set", "a=1", "--set", "a=2"), "a is given twice"),
        (("topics", "alter-config", "t"), "did you mean 'trikafka configs set topic'?"),
        (("cluster", "broker"), "did you mean 'trikafka cluster'?"),
        (("configs", "get", "topic"), "which topic?"),
        (("configs", "set", "topic", "t", "--add-config", "a=1"), "did you mean 'NAME=VALUE'?"),
        (("consume", "t", "--max-messages", "5"), "did you mean '--count'?"),
        (("consume", "t:4", "-e"), "partitions are given by -p: trikafka consume t -p 4 (see"),
        (("consume", "t:0,4"), "partitions are given by -p: trikafka consume t -p 0 -p 4 (see"),
        (("consume", "t", "-J"), "did you mean '-f json'?"),
        (("consume", "t", "--limit", "5"), "no such option --limit; did you mean '--count'?"),
        (("consume", "t", "--tail", "5"), "did you mean '--from -10'?"),
        (("consume", "t", "--output", "json"), "did you mean '--format'?"),
        (("consume", "t", "--countt", "5"), "did you mean '--count'?"),
        (("groups", "--limit", "5"), "no such option --limit (see"),
        (("consume", "t", "--isolation-level", "x"), "'-X isolation.level=read_committed'?"),
        (("consume", "t", "-G"), "Error: Option '-G' requires an argument\n"),
        (("groups", "reset-offsets", "g", "--to-earliest"), "did you mean '--to earliest'?"),
        (("topics", "list", "--command-config", "f"), "did you mean '--config-file'?"),
        (("topics", "list", "--offset", "5"), "no such option --offset (see"),
        (("-C", "-t", "big"), "did you mean 'trikafka consume'?"),
        (("transactions", "kill"), "did you mean 'abort'?"),
        (("transactions", "describe-producers"), "did you mean 'producers'?"),
        (("transactions", "forceTerminateTransaction"), "did you mean 'abort'?"),
        (("transactions", "abort"), "give transactional ids, or --topic, --partition and"),
        (("transactions", "abort", "x", "-t", "t"), "give transactional ids, or --topic"),
        (("transactions", "abort", "-t", "t"), "--partition and --start-offset go together"),
        (("decommission", "1"), "did you mean 'reassign move --off BROKER'?"),
        (("groups", "delete-offsets", "g"), "give at least one --topic"),
        (
            ("groups", "reset-offsets", "g", "--to", "latest", "--dry-run"),
            "no such option --dry-run; without --execute nothing is changed (see",
        ),
        (("topics", "list", "--dry-run"), "no such option --dry-run (see"),
        (("topics", "create", "t", "--replicas", "3"), "did you mean '--replication-factor'?"),
        (
            ("groups", "--reset-offsets", "--group", "g"),
            "no such option --reset-offsets; did you mean 'trikafka groups reset-offsets'?",
        ),
        (
            ("produce", "-t", "t", "-X", "transactional.id=x"),
            "'trikafka produce' writes no transactions",
        ),
        (
            ("consume", "t", "--format", "jsn"),
            "'jsn' prints the same for each record; did you mean 'json'?",
        ),
        (("consume", "t", "--format", "RAW"), "did you mean 'raw'?"),
        (("consume", "t", "--format", "xyzzy"), r"such as '%k: %s\n'"),
        (
            ("consume", "t", "--from-beginning"),
            "no such option --from-beginning; did you mean '--from beginning'? (see",
        ),
        (
            ("produce", "greetings"),
            "file 'greetings' does not exist; if that is the topic: trikafka produce -t greetings",
        ),
        (
            ("consume", "t", "-X", "auto_offset_reset=earlist"),
            "auto_offset_reset must be one of 'earliest'",
        ),
        (
            ("consume", "t", "-G", "g", "--from", "end", "-X", "auto_offset_reset=earlist"),
            "auto_offset_reset must be one of",
        ),
    ],
)
def test_mistake_has_a_hint(command: Command, args: tuple[str, ...], says: str) -> None:
    ended = command(*args)
    assert (ended.code, ended.out) == (2, b"")
    assert says in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TRIKAFKA_OUTPUT", "yaml", "for the environment variable TRIKAFKA_OUTPUT: 'yaml' is not"),
        ("TRIKAFKA_BOOTSTRAP_SERVERS", "h", "TRIKAFKA_BOOTSTRAP_SERVERS: bootstrap address 'h'"),
        ("TRIKAFKA_BOOTSTRAP_SERVERS", " , ", "TRIKAFKA_BOOTSTRAP_SERVERS: bootstrap_servers must"),
        ("TRIKAFKA_BOOTSTRAP_SERVERS", "u:s3cret@h:1", "TRIKAFKA_BOOTSTRAP_SERVERS: bootstrap_ser"),
    ],
)
def test_wrong_variable_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    ended = command("topics", "list")
    assert (ended.code, ended.out) == (2, b"")
    assert says in ended.err
    assert "'-o'" not in ended.err
    assert "s3cret" not in ended.err


def test_option_beside_a_variable_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIKAFKA_OUTPUT", "table")
    assert "for '-o' / '--output': 'yaml' is not" in command("topics", "list", "-o", "yaml").err


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (("groups", "-X", "a=lag", "-h"), "groups"),
        (("groups", "-b", "lag", "-h"), "groups"),
        (("groups", "-b", "x:1", "lag", "-h"), "groups lag"),
        (("groups", "list", "-h"), "groups list"),
        (("groups", "-o", "json", "describe", "-h"), "groups describe"),
        (("groups", "delete", "-h"), "groups delete"),
        (("groups", "--describe", "-h", "--", "lag"), "groups"),
        (("cluster", "-h", "health"), "cluster health"),
        (("groups", "-h", "--", "lag"), "groups"),
        (("groups", "-h", "-o", "json", "--", "lag"), "groups"),
    ],
)
def test_options_may_stand_before_a_verb(
    command: Command, args: tuple[str, ...], path: str
) -> None:
    ended = command(*args)
    assert ended.out.decode().startswith(f"Usage: trikafka {path} [OPTIONS]")
    assert ended.code == 0


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("groups", "--delete", "lag", "g"), "'groups lag' has no option --delete; if 'lag' is"),
        (("groups", "--describe", "list"), "'groups list' has no option --describe; if 'list' is"),
        (("cluster", "--watch", "1", "features"), "no such option --watch"),
    ],
)
def test_verb_behind_a_foreign_option_is_refused(
    command: Command, args: tuple[str, ...], error: str
) -> None:
    """``groups --delete lag g`` would delete two groups."""
    ended = command(*args)
    assert error in ended.err
    assert ended.code == 2


def test_every_hinted_word_is_a_command() -> None:
    lines: set[str] = set()
    for group in (topics, reassign, share_groups, transactions):
        words = group.words  # type: ignore[attr-defined]
        assert words
        own = {line for line in words.values() if not line.startswith("trikafka ")}
        assert own <= set(group.list_commands(click.Context(group)))  # type: ignore[attr-defined]
        lines |= {line.removeprefix("trikafka ") for line in set(words.values()) - own}
    words = root.words  # type: ignore[attr-defined]
    assert words
    options = {"--help", "--version"}
    first = {line.split()[0] for line in (*words.values(), *lines)} - options
    assert first <= set(root.list_commands(click.Context(topics)))  # type: ignore[attr-defined]


def test_late_verb_of_groups_is_hinted(command: Command, broker: str) -> None:
    meant = "did you mean 'trikafka groups delete GROUP'?"
    assert command("groups", "no-such", "delete").err.endswith(f"{meant}\n")


def test_missing_extra_is_named_by_the_command() -> None:
    program = (
        "import sys, importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'click' else real(name, *more)\n"
        "from trikafka.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1
    needs = (
        "Error: the command trikafka needs the packages of the extra 'cli': pip install "
        "'trikafka[cli]'"
    )
    assert done.stderr == f"{needs} (from a clone: pip install '.[cli]')\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hunter2", r'such as .*PlainLoginModule required username="\.\.\."'),
        (
            'KafkaClient { x.PlainLoginModule required username="a" password="hunter2"; };',
            "without the '{ }' of a JAAS file",
        ),
        (
            "software.amazon.msk.auth.iam.IAMLoginModule required;",
            "a plugin's mechanism needs sasl.mechanism alone",
        ),
    ],
)
def test_unreadable_jaas_entry_is_explained(given: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        from_properties({"sasl.jaas.config": given})
    assert "hunter2" not in str(caught.value)


async def test_headers_as_a_dict_are_explained(autojump_clock: object) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: trikafka.ProducerSettings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with trikafka.open_producer(**settings) as producer:
            with pytest.raises(
                TypeError, match=r"not a dict: write headers=list\(headers\.items\(\)\)"
            ):
                await producer.send("t", b"x", headers={"a": b"b"})  # type: ignore[arg-type]


def test_wrong_time_is_answered_with_all_forms(command: Command) -> None:
    says = "a time: 2026-01-31T12:00 in UTC, -1h (s, m, h, d), or @MILLISECONDS"
    assert says in command("groups", "reset-offsets", "g", "-t", "t", "--to", "-1w").err
    assert says in command("topics", "offsets", "t", "--at", "-1w").err
    assert says in command("consume", "t", "--from", "-1w").err


def test_missing_file_beside_a_topic_is_named(command: Command) -> None:
    assert "file 'lines' does not exist (see" in command("produce", "lines", "-t", "t").err


def test_correct_formats_and_resets_are_silent(command: Command) -> None:
    for args in (
        ("-f", "%s"),
        ("-f", "raw"),
        ("-X", "auto.offset.reset=earliest"),
        ("-G", "g", "-X", "auto.offset.reset=latest"),
    ):
        ended = command("consume", "t", "-b", "nowhere", *args)
        assert "nowhere" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("-G", "g", "--from", "end"),
            "--from decides where to begin: auto.offset.reset=none has no effect",
        ),
        (("--from", "-5"), "--from decides where to begin"),
        ((), "auto.offset.reset=none has no effect without a group"),
    ],
)
def test_ineffective_reset_is_a_warning(command: Command, args: tuple[str, ...], says: str) -> None:
    ended = command("consume", "t", "-b", "nowhere", "-X", "auto.offset.reset=none", *args)
    assert ended.err.startswith("Warning: ")
    assert says in ended.err.splitlines()[0]


def test_python_dash_m_runs_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trikafka", "--version"], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"trikafka {trikafka.__version__}\n")


def test_missing_package_is_named_with_its_folder(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikafka.cli.app.entry_points", lambda group: ())
    folder = command("broker").err.strip().rpartition("pip install ")[2]
    assert (Path(__file__).parents[2] / folder / "pyproject.toml").exists()


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer"])
async def test_serializer_setting_is_explained(name: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"unknown setting '{name}' .*keys and values are bytes: encode before send",
    ):
        async with trikafka.open_producer(**{name: str.encode}):  # type: ignore[arg-type]
            raise AssertionError("opened")


async def test_missing_topic_or_partition_is_explained(autojump_clock: object) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: trikafka.ProducerSettings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with trikafka.open_producer(**settings) as producer:
            for call in (producer.send, producer.enqueue):
                with pytest.raises(
                    UnknownTopicOrPartitionError,
                    match="make it: trikafka topics create lost, or admin",
                ):
                    await call("lost", b"x")
            with pytest.raises(
                UnknownTopicOrPartitionError,
                match=r"topic 't' has 1 partition, and no partition 7$",
            ):
                await producer.send("t", b"x", partition=7)


def test_error_is_not_its_own_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error about a missing partition, not a topic, is raised as it is."""

    @asynccontextmanager
    async def opened(**settings: object) -> AsyncIterator[None]:
        yield

    async def work(admin: object) -> None:
        raise from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partition 7")

    monkeypatch.setattr("trikafka._api.admin.opening.open_admin", opened)
    with (
        click.Context(click.Command("topics")),
        pytest.raises(UnknownTopicOrPartitionError) as caught,
    ):
        ask(cast(Any, SimpleNamespace(settings=lambda kind: {})), work)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_docstring_begins_with_the_call(kind: str) -> None:
    first = (inspect.getdoc(getattr(trikafka, f"open_{kind}")) or "").partition("\n")[0]
    assert first == f"async with trikafka.open_{kind}(...) as {kind}:"
