"""Files of properties, compared with ``java.util.Properties``: stored by Java, and of any bytes."""

from __future__ import annotations

import logging
import random
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from trikafka_broker.java import find_java
from trikafka_broker.settings import write_properties

from trikafka.cli.options import Common, common_options
from trikafka.config import AdminConfig, from_properties
from trikafka.config.java_properties import entries
from trikafka.config.properties import read_properties, read_properties_file
from trikafka.errors import ConfigurationError

SECRET = "s3cr3t-41fe"
PASSWORDS = "ab7 \t\n\r\f\\=:#!u\"';{}é\x85\xa0\u2028€中😀\x00\x1b\x7f"
#: The elements of a file's syntax.
PIECES = [
    "a",
    "b",
    "u",
    "=",
    ":",
    " ",
    "\t",
    "\f",
    "\\",
    "\\",
    "\n",
    "\r",
    "\r\n",
    "#",
    "!",
    "\\u0041",
    "\\u00e9",
    "\\u00E",
    "\\t",
    "\\n",
    "\xe9",
    "\xc3\xa9",
    "\x85",
    "\x1c",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\\n",
    "\\\r\n  ",
    "key=",
]


def java(questions: Iterable[str]) -> list[str]:
    """Run one JVM for all cases."""
    program = Path(__file__).with_name("JavaProperties.java")
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-Xshare:auto", str(program)]
    return subprocess.run(
        command, input="\n".join(questions), capture_output=True, text=True, check=True
    ).stdout.splitlines()


def hexed(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex()


def unhexed(text: str) -> str:
    return bytes.fromhex(text).decode("utf-16-be", "surrogatepass")


def test_properties_are_read_like_java() -> None:
    dice = random.Random(21)
    tables = [
        {
            f"{''.join(dice.choices(PASSWORDS, k=dice.randint(1, 6)))}.{key}": "".join(
                dice.choices(PASSWORDS, k=dice.randint(0, 24))
            )
            for key in range(3)
        }
        for _ in range(1_000)
    ]
    files = ["".join(dice.choices(PIECES, k=dice.randint(1, 16))) for _ in range(4_000)]
    stored = [
        " ".join(["store", *(hexed(part) for pair in table.items() for part in pair)])
        for table in tables
    ]
    loaded = [f"load {text.encode('latin-1').hex()}" for text in files]
    answers = java([*stored, *loaded])
    assert len(answers) == len(tables) + len(files)
    for table, answer in zip(tables, answers, strict=False):
        assert read_properties(bytes.fromhex(answer).decode("latin-1")) == table
    malformed = 0
    for text, answer in zip(files, answers[len(tables) :], strict=True):
        if answer == "malformed":
            malformed += 1
            with pytest.raises(ConfigurationError, match="four hexadecimal digits"):
                list(entries(text))
            continue
        words = [unhexed(word) for word in answer.split(" ")[1:]]
        theirs = dict(zip(words[::2], words[1::2], strict=True))
        theirs.pop("", None)
        ours = {entry.name: str(entry.value) for entry in entries(text) if entry.name}
        assert ours == theirs, repr(text)
    assert 100 < malformed < 2_000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"sasl.password=p\=w\:x", {"sasl.password": "p=w:x"}),
        (r"sasl.password=caf\u00e9", {"sasl.password": "café"}),
        ("sasl.password=secret  \n", {"sasl.password": "secret  "}),
        ("sasl.password = \\ secret\n", {"sasl.password": " secret"}),
        ("a.b=1\\\n   #2\\\n\t3\nc.d:4\n", {"a.b": "1#23", "c.d": "4"}),
        ("a.b=1\\\\\nc.d 4", {"a.b": "1\\", "c.d": "4"}),
        ("a.b=1\\\n\nc.d=4", {"a.b": "1", "c.d": "4"}),
        ("! a.b=1\\\na.b=2", {"a.b": "2"}),
        ("ssl.endpoint.identification.algorithm\n", {"ssl.endpoint.identification.algorithm": ""}),
        ("a.b=1\x85\x1c2", {"a.b": "1\x85\x1c2"}),
    ],
)
def test_rules_of_java_hold(text: str, found: Mapping[str, str]) -> None:
    assert read_properties(text) == found


def test_no_error_shows_a_value() -> None:
    for text in (f"a.b=1\n{SECRET}\n", f"a.b=1\nsasl.password={SECRET}\\u00x\n"):
        with pytest.raises(ConfigurationError, match="line 2: ") as caught:
            read_properties(text)
        assert SECRET not in str(caught.value)
    assert SECRET not in repr(read_properties(f"sasl.password={SECRET}\\\n {SECRET}"))


def test_latin_1_bytes_are_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes("# é\nbootstrap.servers=a:1\nsasl.password=é\n".encode("latin-1"))
    assert read_properties_file(file) == {"bootstrap.servers": "a:1", "sasl.password": "é"}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{file}, line 3: bytes beyond ASCII are read as ISO-8859-1" in record.getMessage()
    assert "é" not in record.getMessage()
    file.write_bytes("# é\nbootstrap.servers=a:1\n".encode())
    caplog.clear()
    assert read_properties_file(file) == {"bootstrap.servers": "a:1"}
    assert not caplog.records


def test_byte_order_mark_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("\ufeffbootstrap.servers=a:1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"client\.properties, line 1: .* byte order mark"):
        from_properties(file)


def test_blanks_count_in_passwords_alone() -> None:
    given = {
        "security.protocol": "SASL_SSL ",
        "sasl.mechanism": "PLAIN\t",
        "sasl.username": "alice ",
        "sasl.password": " p ",
    }
    assert from_properties({**given, "request.timeout.ms": "1000 ", "check.crcs": "true "}) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": " p ",
        "request_timeout_ms": 1000,
        "check_crcs": True,
    }


def test_client_and_command_read_alike(tmp_path: Path) -> None:
    password = "p=w:x\\é😀 "
    file = tmp_path / "java.properties"
    write_properties(file, {"sasl.username": "alice", "sasl.password": password})
    assert from_properties(file)["sasl_plain_password"] == password

    @click.command()
    @common_options
    def show(common: Common) -> None:
        assert common.settings(AdminConfig)["sasl_plain_password"] == password
        click.echo("the same")

    assert CliRunner().invoke(show, ["-F", str(file)]).output == "the same\n"
