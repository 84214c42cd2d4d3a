"""Calls of the command: help, options, exit codes, commands of plugins. No broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from commanding import Command, install, trikafka

import trikafka as package
from trikafka import AclBinding, AclFilter


def test_help_names_every_command(command: Command) -> None:
    ended = command("--help")
    assert ended.code == 0
    for name in ("broker", "consume", "export", "groups", "produce", "topics"):
        assert f"  {name} " in ended.out.decode()
    assert command().code == 2


def test_version_names_the_compiled_part(command: Command) -> None:
    assert command("--version").out.decode().splitlines() == [
        f"trikafka {package.__version__}",
        "compiled part: yes",
    ]


@pytest.mark.parametrize(
    "args",
    [
        ("consume",),
        ("produce",),
        ("export",),
        ("groups",),
        ("copy",),
        ("groups", "lag"),
        ("topics",),
        ("topics", "create"),
        ("transactions",),
        ("transactions", "abort"),
        ("broker",),
    ],
)
def test_every_command_has_help(command: Command, args: tuple[str, ...]) -> None:
    ended = command(*args, "--help")
    assert ended.code == 0
    assert b"Usage: trikafka " + args[0].encode() in ended.out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("toppics",), "did you mean 'topics'"),
        (("consume",), "which topic?"),
        (("consume", "t", "--no-such-option"), "no such option --no-such-option (see"),
        (("consume", "t", "-X", "group.idd=5"), "did you mean 'group.id'"),
        (("consume", "t", "-X", "linger.ms=5"), "linger_ms"),
        (("consume", "t", "-X", "fetch.max.wait.ms=soon"), "must be a number"),
        (("consume", "t", "-X", "dial=x"), "cannot be given as text"),
        (("users", "set", "a", "hunter2"), "give one user, and no password"),
        (("consume", "t", "-X", "hunter2"), "NAME=VALUE"),
        (("consume", "t", "-b", "localhost"), "has no port"),
        (("consume", "t", "-b", "localhost:http"), "no valid port"),
        (("consume", "t", "--from", "soon"), "--from"),
        (("consume", "t", "-G", "g", "--from", "5"), "the group knows"),
        (("consume", "t", "-G", "g", "-p", "5"), "cannot be used with a group"),
        (("consume", "t", "--from", "stored"), "needs a group"),
        (("consume", "t", "-f", "%q"), "%q"),
        (("consume", "t", "-c", "0"), "-c"),
        (("produce", "--format", "raw"), "which topic?"),
        (("produce", "-t", "t", "--format", "json", "-K", ":"), "-K"),
        (("produce", "-t", "t", "/no/such/file"), "/no/such/file"),
        (("topics", "create"), "which topic?"),
        (("topics", "create", "t", "-p", "0"), "--partitions"),
        (("topics", "alter", "t"), "--partitions"),
        (("groups", "--delete"), "which group?"),
        (("groups", "delete"), "which group?"),
        (("export", "t", "out", "--min-records-per-file", "5"), "are for --every"),
        (("export", "t", "out", "--min-bytes-per-file", "5"), "are for --every"),
        (("export", "t", "out", "--max-file-delay", "5m"), "are for --every"),
        (("groups", "--delete", "--list"), "only one of"),
        (("transactions", "describe"), "which transactional id?"),
        (("transactions", "list", "--state", "going"), "'ongoing'"),
        (("transactions", "abort", "-t", "t", "-p", "0"), "--start-offset"),
        (("configs", "set", "topic", "t", "a=1", "--delete", "a"), "a is to be set and deleted"),
        (("configs", "set", "topic", "t", "a=1", "--dry-run", "--execute"), "only one of"),
        (("export", "t"), "where to? Give the destination after the topic: trikafka export t s3"),
        (("export", "./t"), "which topic?"),
        (("export", "-t", "t"), "Missing argument 'DESTINATION'"),
        (("consume", "t", "--grep", "("), "'(' is not a regular expression"),
        (("consume", "t", "--until", "soon"), "--until"),
        (("consume", "t", "--until", "2999-01-01"), "has not come yet"),
        (("consume", "t", "--until", "1769860800"), "add 000 if these are seconds"),
        (("consume", "t", "--from", "@1769860800"), "add 000 if these are seconds"),
        (("export", "t", "./out", "--from", "@1769860800"), "add 000 if these are seconds"),
        (("acls", "set", "-u", "a", "-O", "read", "-t", "*", "--prefix"), "leave --prefix out"),
        (
            ("acls", "set", "-u", "a", "-O", "read", "-t", "ord-*"),
            "never applies: for all names that begin with 'ord-' write 'ord-' with --prefix",
        ),
        (("acls", "set", "-u", "a", "-O", "read", "-t", "a*b"), "no other pattern"),
        (
            ("acls", "set", "-u", "a", "-O", "read", "-t", "t", "--host", "db.example"),
            "--host 'db.example' is not an address",
        ),
        (("consume", "t", "-G", "g", "--until", "5"), "cannot be used with a group; use -e"),
        (("consume", "t", "-f", "%s", "--headers"), "%h prints the headers"),
        (("consume", "t", "--value-format", "avro"), "'base64'"),
        (("produce", "-t", "t", "-f", "csv", "-K", ":"), "-K is for raw lines"),
        (("produce", "-f", "csv"), "which topic?"),
        (("produce", "-t", "t", "-H", "\udcff=1"), "'\\udcff' is not text in UTF-8"),
        (("produce", "-t", "t", "--key-column", "id"), "are for CSV and Parquet"),
        (("produce", "-t", "t", "-f", "parquet", "-k", "x"), "not for Parquet"),
        (("copy",), "which topic?"),
        (("copy", "t"), "where to?"),
        (("copy", "t", "--to-topic", "t"), "where to?"),
        (("copy", "t", "-T", "linger.ms=5"), "where to?"),
        # Empty names are often variables that are not set.
        (("copy", "t", "-B", "b:1", "--to-topic", ""), "--to-topic is empty; leave it out"),
        (("copy", "t", "-B", "b:1", "-G", ""), "the group's name is empty; leave it out"),
        (("copy", "t", "--to-topic", "u", "-T", "bootstrap.servers="), "at least one 'host:port'"),
        (("consume", "t", "-G", ""), "the group's name is empty; leave it out"),
        (("consume", "t", "-X", "group.id="), "the group's name is empty; leave it out"),
        (("topics", "list", "-X", "bootstrap.servers="), "at least one 'host:port', not ''"),
        (("topics", "list", "--bootstrap-controller", ""), "at least one 'host:port', not ''"),
        (("copy", "t", "-B", "nowhere"), "has no port"),
        (("copy", "t", "-B", "h:1", "-T", "transactional.id=x"), "no transactions"),
        (("copy", "t", "-B", "h:1", "-G", "g", "--from", "5"), "the group knows"),
        (("groups", "lag", "--every", "0"), "--every"),
        (("topics", "elect"), "which topics?"),
        (("cluster", "brokers"), "did you mean 'trikafka cluster'?"),
        (("cluster", "feature"), "did you mean 'trikafka cluster features'?"),
        (("configs", "get", "orders"), "did you mean 'trikafka configs get topic orders'?"),
        (("configs", "set", "topics", "x"), "did you mean 'topic'?"),
        (
            ("configs", "set", "group", "consumer.session.timeout.ms=5", "a.b=6"),
            "which group? 'consumer.session.timeout.ms=5' is a setting",
        ),
        (("configs", "set", "group", "share.isolation.level=x", "a=6"), "which group?"),
        (("configs", "set", "client-metrics", "interval.ms=5", "match=x"), "which client-metrics?"),
        (("configs", "set", "topic", "retention.ms=5", "a=6"), "which topic?"),
        (("consume", "t", "--value-format", "hxe"), "did you mean 'hex'?"),
        (("elect",), "did you mean 'topics elect'"),
        (("lag",), "did you mean 'groups lag'"),
        (("topics", "-o", "yaml"), "'wide'"),
        (("export", "t", "/tmp/x", "--from", "5"), "at a time"),
    ],
)
def test_wrong_call_is_one_sentence_and_code_2(
    command: Command, args: tuple[str, ...], says: str
) -> None:
    ended = command(*args)
    assert (ended.code, ended.out) == (2, b"")
    assert says in ended.err
    assert ended.err.startswith("Error: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("option", ["-G", "--transactional-id", "--token"])
def test_prefix_of_ids_may_be_an_asterisk(
    command: Command, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Only topics have no such names."""
    monkeypatch.setattr("trikafka.cli.acls.ask", lambda common, work: [])
    ended = command("acls", "set", "-u", "a", "-O", "describe", option, "*", "--prefix")
    assert (ended.code, ended.err) == (0, "")


def test_group_with_an_asterisk_is_warned_of(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikafka.cli.acls.ask", lambda common, work: [])
    ended = command("acls", "set", "-u", "a", "-O", "read", "-G", "billing-*", "-G", "*")
    assert ended.code == 0
    assert ended.err == (
        "Warning: the rule is about the name 'billing-*' alone, with its asterisk: for all names "
        "that begin with 'billing-' write 'billing-' with --prefix\n"
    )


@pytest.mark.parametrize(
    ("verb", "hosts"), [("list", ["::1", "0:0:0:0:0:0:0:1"]), ("delete", ["::1"])]
)
def test_rules_are_deleted_by_exact_hosts(
    command: Command, monkeypatch: pytest.MonkeyPatch, verb: str, hosts: list[str]
) -> None:
    """The list also shows what the address may mean; a deletion takes what the option says."""
    asked: list[str] = []

    class Asked:
        async def describe_acls(self, one: AclFilter) -> list[AclBinding]:
            assert one.host is not None
            asked.append(one.host)
            return []

    def ask(common: object, work: Callable[[Asked], Awaitable[list[AclBinding]]]) -> object:
        return trio.run(work, Asked())

    monkeypatch.setattr("trikafka.cli.acls.ask", ask)
    ended = command("acls", verb, "--host", "::1")
    assert (ended.code, asked) == (0, hosts)


@pytest.mark.parametrize(
    ("kind", "name"), [("group", "team=a"), ("group", "env.consumer=b"), ("client-metrics", "k=v")]
)
def test_names_may_have_an_equals_sign(
    command: Command, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.setattr("trikafka.cli.configs.ask", lambda common, work: None)
    ended = command("configs", "set", kind, name, "a.b=1")
    assert (ended.code, ended.err) == (0, "")
    assert f"{name!r}: a.b: changed" in ended.out.decode()


def test_possible_secret_is_not_repeated(command: Command) -> None:
    for given in ("sasl.password=hunter2", "hunter2", "=hunter2", "dial=hunter2"):
        ended = command("topics", "-X", given)
        assert ended.code == 2
        assert "hunter2" not in ended.err


def test_debug_shows_the_traceback(command: Command) -> None:
    ended = command("topics", "-b", "nowhere", "--debug")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("name", ["broker", "export"])
def test_missing_plugin_of_a_command_is_named(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikafka.cli.app.entry_points", lambda group: ())
    monkeypatch.setattr("trikafka.hooks._entry_points", lambda: ())
    assert f"  {name} " in command("--help").out.decode()
    ended = command(name, "--brokers", "3")
    assert ended.code == 1
    assert f"pip install ./plugins/trikafka-{name}" in ended.err


COMMANDS = """
from types import SimpleNamespace
import click
from trikafka.hooks import hookimpl
from trikafka.interfaces import Subcommand

@click.command()
def hello():
    click.echo("hello")

@hookimpl
def trikafka_command():
    return Subcommand("hello", "Says hello.", lambda: hello)

@hookimpl
def strange():
    return Subcommand("strange", "Is no command.", lambda: 5)

strange = SimpleNamespace(trikafka_command=strange)
wrong = SimpleNamespace(trikafka_command=hookimpl(lambda: "hello"))
"""


@pytest.mark.parametrize("group", ["trikafka", "trikafka.commands"])
def test_plugin_adds_a_command_by_its_hook(group: str, tmp_path: Path) -> None:
    points = {"toys": "toy_commands", "strange": "toy_commands:strange"}
    environment = install(tmp_path, group, points, toy_commands=COMMANDS)
    assert "Says hello." in trikafka("--help", environment=environment).out.decode()
    assert trikafka("hello", environment=environment).out == b"hello\n"
    ended = trikafka("strange", environment=environment)
    assert (ended.code, "returned int, which is not a click command" in ended.err) == (1, True)


def test_wrong_command_hook_hides_no_other_command(tmp_path: Path) -> None:
    points = {"wrong": "toy_commands:wrong", "toys": "toy_commands", "five": "toy_commands:five"}
    environment = install(
        tmp_path, "trikafka.commands", points, toy_commands=f"{COMMANDS}\nfive = 5\n"
    )
    ended = trikafka("--help", environment=environment)
    assert "topics" in ended.out.decode()
    assert "Says hello." in ended.out.decode()
    assert trikafka("hello", environment=environment).out == b"hello\n"
    ended = trikafka("wrong", environment=environment)
    assert ended.code == 1
    assert "command 'wrong' (toy_commands:wrong) cannot be used: " in ended.err
    assert "trikafka_command returned str, which is no Subcommand" in ended.err
    assert "it implements no hook" in trikafka("five", environment=environment).err
    assert trikafka("topics", "--help", environment=environment).err == ""


def test_module_that_exits_ends_no_command(tmp_path: Path) -> None:
    """A script without a guard exits as it is imported, and so ended every command."""
    source = COMMANDS + (
        "\nasync def waits(): ...\n"
        'late = SimpleNamespace(trikafka_command=hookimpl(lambda: Subcommand("late", "", waits)))\n'
        'bad = SimpleNamespace(trikafka_command=hookimpl(lambda: Subcommand("bad", "", exit)))\n'
    )
    points = {
        "leaves": "leaves",
        "toys": "toy_commands",
        "z": "toy_commands:late",
        "y": "toy_commands:bad",
    }
    environment = install(
        tmp_path,
        "trikafka.commands",
        points,
        toy_commands=source,
        leaves="raise SystemExit('no licence')",
    )
    assert trikafka("hello", environment=environment).out == b"hello\n"
    ended = trikafka("leaves", environment=environment)
    assert (ended.code, "(leaves) does not load: SystemExit: no licence" in ended.err) == (1, True)
    ended = trikafka("late", environment=environment)
    assert ended.err == (
        "Error: the plugin of the command 'late' returned coroutine, which is not a click command\n"
    )
    ended = trikafka("bad", environment=environment)
    assert "Error: the command 'bad' does not load: SystemExit: None" in ended.err


def test_wrong_subcommand_hides_no_other(tmp_path: Path) -> None:
    wrong = {
        "spaced": ("'two words', '', hello", "name is 'two words'; it must be a word"),
        "number": ("5, '', hello", "name is 5; it must be a word"),
        "silent": ("'silent', None, hello", "help is None; it must be a sentence"),
        "made": ("'made', '', 5", "load is 5; it must be a function that returns the click"),
    }
    source = COMMANDS + "".join(
        f"\n{name} = SimpleNamespace(trikafka_command=hookimpl(lambda: Subcommand({given})))"
        for name, (given, _) in wrong.items()
    )
    points = {name: f"toy_commands:{name}" for name in wrong} | {"toys": "toy_commands"}
    environment = install(tmp_path, "trikafka", points, toy_commands=source)
    ended = trikafka("--help", environment=environment)
    assert ended.code == 0
    for name, (_, text) in wrong.items():
        assert f"a command of plugin '{name}' is missing: its Subcommand's {text}" in ended.err
    assert trikafka("hello", environment=environment).out == b"hello\n"


def test_plugins_command_of_a_taken_name_is_named(tmp_path: Path) -> None:
    source = COMMANDS + (
        'again = SimpleNamespace(trikafka_command=hookimpl(lambda: Subcommand("hello", "", hello)))'
        '\ntopics = SimpleNamespace(trikafka_command=hookimpl(lambda: Subcommand("topics", "", hello)))'
    )
    points = {name: f"toy_commands:{name}" for name in ("again", "topics")} | {
        "toys": "toy_commands"
    }
    environment = install(tmp_path, "trikafka", points, toy_commands=source)
    ended = trikafka("--help", environment=environment)
    assert "a plugin's command 'topics' is never run: trikafka has one of that name" in ended.err
    assert "the command 'hello' is that of plugin 'toys'; 'again' has one, too" in ended.err


def test_plugins_add_commands(tmp_path: Path) -> None:
    source = (
        'import click\n@click.command()\ndef hello():\n    "Says hello."\n    click.echo("hello")\n'
    )
    points = {"hello": "toy_commands:hello", "lost": "toy_commands:lost"}
    environment = install(tmp_path, "trikafka.commands", points, toy_commands=source)
    assert "Says hello." in trikafka("--help", environment=environment).out.decode()
    assert trikafka("hello", environment=environment).out == b"hello\n"
    ended = trikafka("lost", environment=environment)
    assert ended.code == 1
    assert "command 'lost' (toy_commands:lost) does not load" in ended.err


def test_consume_imports_nothing_heavy() -> None:
    code = (
        "import sys; from trikafka.cli.app import run; run(['consume', 'x', '-b', 'localhost:1']);"
        "print(sorted({'pyarrow', 'pyspark', 'rich'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout.strip() == b"[]"
