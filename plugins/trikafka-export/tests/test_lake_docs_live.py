"""The examples about tables in docs/export-tables.md, run as written, except for addresses."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio
from lakes import make_lake

import trikafka
from trikafka.cli.app import run

PAGE = (Path(__file__).parents[3] / "docs" / "export-tables.md").read_text()
SECTION = PAGE.partition("\n## The first table")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    return [text for tongue, text in found if tongue == language]


async def test_program_of_the_page_runs(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, (program,) = await new_topic(40), blocks("python")
    iceberg = make_lake("iceberg", tmp_path)
    own = {name: value for name, value in iceberg.options.items() if name.startswith("catalog")}
    program, replaced = re.subn(
        r"^catalog = \{.*?\}$", f"catalog = {own!r}", program, flags=re.MULTILINE | re.DOTALL
    )
    assert replaced == 1
    program = program.replace('"flights"', repr(topic))
    program = program.replace("localhost:9092", kafka_broker.bootstrap_servers)
    names: dict[str, Any] = {"trikafka": trikafka}
    exec(f"async def main():\n{textwrap.indent(program, '    ')}", names)
    await names["main"]()
    assert capsys.readouterr().out == "40 rows, exactly once: True\n"
    iceberg.check(40)


def test_commands_of_the_page_run(kafka_broker: Any, new_topic: Any, tmp_path: Path) -> None:
    topic, (commands,) = trio.run(new_topic, 40), blocks("")
    delta, iceberg = make_lake("delta", tmp_path), make_lake("iceberg", tmp_path)
    own = [
        f"--option={name}={value}"
        for name, value in iceberg.options.items()
        if name.startswith("catalog.")
    ]
    ran = 0
    for line in commands.replace("\\\n", " ").splitlines():
        if not line.startswith("trikafka export flights") or "s3://" in line:
            continue
        arguments = shlex.split(
            line.replace(" --every 60s", "").replace(
                "localhost:9092", kafka_broker.bootstrap_servers
            )
        )[1:]
        arguments = [
            topic if each == "flights" else delta.destination if each == "/lake/flights" else each
            for each in arguments
        ]
        assert run([*arguments, *(own if "iceberg" in arguments else [])]) == 0
        ran += 1
    assert ran == 3
    delta.check(40)
    iceberg.check(40)
