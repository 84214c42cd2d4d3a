"""Tables and JSON of the command: colour, width, lines in a pipe, completion."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import click
import pytest
from commanding import Command, trikafka

from trikafka.cli import options, tables
from trikafka.cli.groups import _as_text
from trikafka.cli.partly import PartlyFailedError
from trikafka.cli.running import sentence
from trikafka.errors import TrikafkaError


@click.command()
@options.output_option
def shown(output: str) -> None:
    rows = [{"name": "a" * 60, "count": 5}, {"name": "b", "count": None}]
    if output == "json":
        tables.say_json(rows)
    else:
        tables.say(tables.table(("NAME", "COUNT"), [tuple(row.values()) for row in rows]))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, None),
        (1_700_000_000_123, "2023-11-14T22:13:20.123+00:00"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999+00:00"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000+00:00"),
        (1_700_000_000_123_456, "1700000000123456"),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_time_that_is_no_date_is_a_number(ms: int | None, text: str | None) -> None:
    assert tables.time_text(ms) == text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the standard output is a terminal of 40 columns."""
    monkeypatch.setattr(options, "is_terminal", lambda: True)
    monkeypatch.setattr(tables, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TRIKAFKA_OUTPUT")


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    shown(list(args), standalone_mode=False)
    return capsys.readouterr().out


def test_pipe_gets_a_line_of_json_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIKAFKA_OUTPUT")
    lines = printed(capsys).splitlines()
    assert [json.loads(line)["count"] for line in lines] == [5, None]
    assert printed(capsys, "-o", "jsonl").splitlines() == lines
    document = json.loads(printed(capsys, "-o", "json"))
    assert document == [json.loads(line) for line in lines]
    assert json.loads(printed(capsys, "--json")) == document
    assert printed(capsys, "-o", "table").splitlines()[0].split() == ["NAME", "COUNT"]
    monkeypatch.setenv("TRIKAFKA_OUTPUT", "table")
    assert printed(capsys).splitlines()[2].split() == ["b", "-"]


@pytest.mark.usefixtures("terminal")
def test_table_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, *rows = printed(capsys).splitlines()
    assert rows[0] == "a" * 32 + "…" + "      5"
    assert click.unstyle(head).split() == ["NAME", "COUNT"]
    assert "a" * 60 in printed(capsys, "-o", "wide")
    monkeypatch.setenv("COLUMNS", "5")
    assert printed(capsys).splitlines()[1] == "a" * 7 + "…" + "      5", "headers stay whole"


def test_long_cell_is_cut_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client id of another program may have thousands of letters."""
    width, seen = tables._width, 0

    def counting(text: str) -> int:
        nonlocal seen
        seen += len(text)
        return width(text)

    monkeypatch.setattr(tables, "_width", counting)
    assert tables._cut("ü" * 4_000, 20) == "ü" * 19 + "…"
    assert tables._cut("語" * 4_000, 20) == "語" * 9 + "…"
    assert tables._cut("e\u0301" * 4_000, 3) == "e\u0301" * 2 + "…"
    assert seen < 20_000


@pytest.mark.usefixtures("terminal")
def test_header_is_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables.table(("A",), [(1,)]).splitlines()[0] == click.style("A", bold=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert tables.table(("A",), [(1,)]).splitlines()[0] == "A"


#: What a shell has on its line, and how the last word may go on.
COMPLETED = [
    ("trikafka con", {"configs", "consume"}),
    ("trikafka groups la", {"lag"}),
    ("trikafka groups lag --wa", {"--watch"}),
    ("trikafka cluster h", {"health"}),
    ("trikafka cluster -o json qu", {"quorum"}),
    ("trikafka cluster -o j", {"json", "jsonl"}),
    ("trikafka cluster health --js", {"--json"}),
    ("trikafka topics cr", {"create"}),
    ("trikafka consume --value-format he", {"hex"}),
    ("trikafka nosuch --de", {"--debug"}),
    ("trikafka topics nosuch --de", {"--debug"}),
    ("trikafka cluster nosuch --js", {"--json"}),
]
#: The command once per line of words, each time in a copy of a process that has completed one.
COMPLETING = """
import os, sys
from contextlib import suppress
from trikafka.cli import main

def complete(words):
    os.environ["COMP_WORDS"] = words
    os.environ["COMP_CWORD"] = str(len(words.split()) - 1)
    with suppress(SystemExit):
        main()
    sys.stdout.flush()

sys.argv[:] = ["trikafka"]
complete("trikafka con")  # which imports everything, for all copies
for words in sys.stdin.read().splitlines():
    print("of", words, flush=True)
    if not os.fork():
        complete(words)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def completed() -> dict[str, str]:
    """Return what the command prints for each of the lines."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETING],
        input="".join(f"{words}\n" for words, _ in COMPLETED),
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "_TRIKAFKA_COMPLETE": "bash_complete"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    parts = [part.split("\n", 1) for part in done.stdout.split("of ")[1:]]
    return dict(parts)


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_shell_completes_the_command(
    completed: dict[str, str], words: str, expected: set[str]
) -> None:
    assert {line.split(",")[1] for line in completed[words].split()} == expected


def test_process_completes_the_command() -> None:
    environment = {
        "_TRIKAFKA_COMPLETE": "bash_complete",
        "COMP_WORDS": "trikafka topics cr",
        "COMP_CWORD": "2",
    }
    ended = trikafka(environment=environment)
    assert (ended.err, ended.out) == ("", b"plain,create\n")


def test_help_names_the_exit_codes(command: Command) -> None:
    help_text = " ".join(command("--help").out.decode().split())
    assert "Exit codes: 0 success, 1 failure, 2 wrong usage" in help_text


def test_names_of_others_move_no_cursor() -> None:
    """A group's or client's name may be any text: a row stays one line."""
    lines = tables.table(("GROUP", "LAG"), [("a\n\x1b[2Jü\u202e", 1)]).splitlines()
    assert lines[1].split() == ["a\\n\\x1b[2Jü\\u202e", "1"]


def test_names_in_errors_move_no_cursor() -> None:
    group = "g\x1b[2J"
    text, code = sentence(PartlyFailedError([(group, TrikafkaError(f"of {group}"))], 2, [group]))
    assert "\x1b" not in text
    assert text.splitlines()[1:] == ["  g\\x1b[2J: of g\\x1b[2J", "  done: g\\x1b[2J"]
    assert code == 1


def test_heads_of_groups_move_no_cursor() -> None:
    group = {
        "group": "g\x1b[2J",
        "state": "Empty",
        "type": "classic",
        "protocol": None,
        "members": [],
        "partitions": [],
    }
    assert _as_text(group) == "g\\x1b[2J  (Empty, classic, 0 members)"


@pytest.mark.usefixtures("terminal")
def test_wide_letters_take_two_columns() -> None:
    lines = tables.table(("GROUP", "LAG"), [("订单", 1), ("u\u0308ber", 22), ("ab" * 30, 3)])
    cells = [line.rstrip() for line in lines.splitlines()[1:]]
    assert cells[0] == "订单" + " " * 35 + "1"
    assert cells[1] == "u\u0308ber" + " " * 34 + "22"
    (cut,) = tables.table(("G",), [("订" * 30,)]).splitlines()[1:]
    assert cut == "订" * 19 + "…"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_lacks_no_letter(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locales, and pipes on Windows, may have encodings without the letters of a name."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding))
    tables.say_json({"group": "订单"})
    tables.say(tables.table(("GROUP", "LAG"), [("订单", 1)]))
    tables.say("订 1")
    sys.stdout.flush()
    document, table = written.getvalue().decode(encoding).split("GROUP ")
    assert json.loads(document) == {"group": "订单"}
    assert table == "        LAG\n\\u8ba2\\u5355    1\n\\u8ba2 1\n"


@pytest.mark.usefixtures("terminal")
def test_cut_needs_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert tables.table(("A",), [("a" * 60,)]).splitlines()[1] == "a" * 39 + "~"
