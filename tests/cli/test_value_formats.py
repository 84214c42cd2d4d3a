"""Formats of values that plugins offer to ``trikafka consume``."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from commanding import install

from trikafka import Record, TimestampType
from trikafka.cli.record_lines import json_format, output_format
from trikafka.cli.value_formats import PluginFormat, ValueFormatType
from trikafka.errors import PluginError

_TOY = """
import json
from trikafka import hookimpl

def swapped(data):
    return {"swapped": data.decode("ascii").swapcase()}

@hookimpl
def trikafka_value_format(name):
    return {
        "swap": swapped, "wrong": 5, "waits": waits, "late": lambda data: waits(data), "two": two
    }.get(name)

async def waits(data):
    return 5

def two(data, more):
    return 5
"""


def record(value: bytes | None) -> Record:
    return Record("t", 0, 5, 7, TimestampType.CREATE_TIME, b"K", value, ())


def chosen(name: str) -> str | PluginFormat:
    return ValueFormatType().convert(name, None, None)


@pytest.fixture
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "trikafka.commands", {"toy": "toy_formats"}, toy_formats=_TOY)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_toy")
def test_plugin_decodes_values(capsys: pytest.CaptureFixture[str]) -> None:
    swap = chosen("swap")
    form = json_format(value=swap)
    assert json.loads(form(record(b"Ab")))["value"] == {"swapped": "aB"}
    assert json.loads(form(record(None)))["value"] is None
    assert json.loads(form(record(b"Ab")))["key"] == "K"
    raw = output_format("raw", None, key=swap, value=swap)
    assert raw(record(b"Ab")) == b'{"swapped": "aB"}\n'
    assert capsys.readouterr().err == ""
    for _ in range(2):  # what the plugin cannot decode is text, and one warning says so
        assert json.loads(form(record(b"\xff")))["value"] == {"base64": "/w=="}
        assert raw(record(b"\xff")) == b"\xff\n"
    assert capsys.readouterr().err.count("Warning: swap: UnicodeDecodeError") == 1


@pytest.mark.usefixtures("_toy")
def test_async_decoder_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    who = "plugin 'toy_formats': the function of trikafka_value_format for "
    with pytest.raises(PluginError, match=f"^{who}'waits' is async, and has to be a plain"):
        chosen("waits")
    with pytest.raises(PluginError, match=f"^{who}'two' cannot be called with one argument"):
        chosen("two")
    form = json_format(value=chosen("late"))
    assert json.loads(form(record(b"Ab")))["value"] == "Ab"
    assert "late: TypeError('the function is async" in capsys.readouterr().err


@pytest.mark.usefixtures("_toy")
def test_wrong_format_is_explained() -> None:
    with pytest.raises(PluginError, match=r"trikafka_value_format returned 5"):
        chosen("wrong")
    with pytest.raises(click.BadParameter, match="did you mean 'base64'"):
        chosen("base46")
    with pytest.raises(click.BadParameter, match=r"no installed plugin offers it$"):
        chosen("swop")
    assert chosen("hex") == "hex"


@pytest.mark.parametrize(
    ("decoded", "line"),
    [
        ("a\nb", b"a\nb\n"),
        (b"\xff", b"\xff\n"),
        ([1, None], b"[1, null]\n"),
        (float("nan"), b'"nan"\n'),
        ("\ud800", b"\\ud800\n"),
    ],
)
def test_any_result_makes_a_line(decoded: object, line: bytes) -> None:
    toy = PluginFormat("toy", lambda data: decoded)
    assert output_format("raw", None, value=toy)(record(b"x")) == line
    json.loads(json_format(value=toy)(record(b"x")))
