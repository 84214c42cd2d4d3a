"""What a newcomer types, and the word that helps on."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from commanding import Command

import trikafka
from trikafka.cli.app import Commands
from trikafka.cli.topics import command as topics
from trikafka.config import from_properties
from trikafka.errors import ConfigurationError
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("topics", "grow", "t"), "there is no command 'grow'; did you mean 'alter'? (see trikafka topics --help)"),
        (("topics", "lst"), "did you mean 'list'?"),
        (("topics", "flights"), "'describe NAME' tells more"),
        (("transactions", "lists"), "did you mean 'list'?"),
        (("send",), "did you mean 'produce'?"),
        (("topics", "create", "t", "--partition", "3"), "--partitions"),
        (("produce", "-t", "t", "-X", "transactional.id=x"), "'trikafka produce' writes no transactions"),
    ],
)
def test_a_hint(command: Command, args: tuple[str, ...], says: str) -> None:
    ended = command(*args)
    assert (ended.code, ended.out) == (2, b"")
    assert says in ended.err
    assert ended.err.count("\n") == 1


def test_every_word_stands_for_a_command() -> None:
    for group in (Commands, type(topics)):
        assert group.words
    context = click.Context(topics)
    assert set(type(topics).words.values()) <= set(topics.list_commands(context))  # type: ignore[attr-defined]
    assert set(Commands.words.values()) <= set(Commands("x").list_commands(context))


def test_verbs_that_groups_takes_as_options(command: Command, broker: str) -> None:
    assert command("groups", "list").err == "Error: group 'list' does not exist; did you mean --list?\n"


def test_without_the_extra_it_says_what_to_install() -> None:
    program = (
        "import sys, importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'click' else real(name, *more)\n"
        "from trikafka.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    needs = "Error: the command trikafka needs the packages of the extra 'cli': pip install 'trikafka[cli]'"
    assert done.stderr == f"{needs} (from a clone: pip install '.[cli]')\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hunter2", r'such as .*PlainLoginModule required username="\.\.\."'),
        ('KafkaClient { x.PlainLoginModule required username="a" password="hunter2"; };', "without the '{ }' of a JAAS file"),
        ("software.amazon.msk.auth.iam.IAMLoginModule required;", "a plugin's mechanism needs sasl.mechanism alone"),
    ],
)
def test_a_login_entry_that_is_not_understood(given: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        from_properties({"sasl.jaas.config": given})
    assert "hunter2" not in str(caught.value)


async def test_headers_as_a_dict(autojump_clock: object) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: trikafka.ProducerSettings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(**settings) as producer:
            with pytest.raises(TypeError, match=r"not a dict: write headers=list\(headers\.items\(\)\)"):
                await producer.send("t", b"x", headers={"a": b"b"})  # type: ignore[arg-type]
