"""The command with TLS, SASL and access rules.

Its output suffices to connect, and only the owner may read its files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from broker_waiting import COMMAND, first_line, running
from click.testing import CliRunner
from trikafka_broker.cli import broker
from trikafka_broker.security import PASSWORD
from trikafka_broker.settings import write_properties

import trikafka


def test_file_with_passwords_is_private(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.touch(mode=0o644)
    write_properties(file, {"password": "x"})
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("options", [["--acl"], ["--acl", "--tls"]])
def test_rules_need_users_with_names(options: list[str]) -> None:
    """With TLS alone all clients are anonymous, and no rule would have an effect."""
    ended = CliRunner().invoke(broker, options)
    assert ended.exit_code == 2
    assert "--acl needs a port whose users have names: --sasl or --mtls" in ended.output


def test_command_prints_settings_that_connect(tmp_path: Path) -> None:
    """With TLS, SASL and access rules the command prints settings that suffice to connect."""
    options = [
        "--mtls",
        "--sasl",
        "scram",
        "--sasl",
        "plain",
        "--acl",
        "--directory",
        str(tmp_path / "kafka"),
    ]
    with running([*COMMAND, *options]) as process:
        plain = first_line(process)
        settings, files = read_output(process)
        assert settings["bootstrap_servers"] != plain
        assert {
            "ssl_cafile",
            "ssl_certfile",
            "sasl_mechanism",
            "sasl_plain_password",
        } <= settings.keys()
        trio.run(refused, settings)
        for file in files:
            listed = subprocess.run(
                [sys.executable, "-m", "trikafka", "-F", file, "topics"],
                capture_output=True,
                text=True,
                timeout=400,
            )
            assert listed.returncode == 0, listed.stderr
    written = [file for file in (tmp_path / "kafka").rglob("*") if file.is_file()]
    secret = {
        file
        for file in written
        if PASSWORD.encode() in file.read_bytes() or b"PRIVATE KEY" in file.read_bytes()
    }
    names = {
        "server.properties",
        "java.properties",
        "librdkafka.properties",
        "client.pem",
        "broker.pem",
    }
    assert names <= {file.name for file in secret}
    assert [file for file in secret if file.stat().st_mode & 0o077] == []


def read_output(process: subprocess.Popen[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the printed settings for trikafka, and the files for Java and librdkafka."""
    settings: dict[str, Any] = {}
    files: list[str] = []
    assert process.stderr is not None
    while len(files) < 2:
        line = process.stderr.readline()
        assert line
        if line.startswith("    "):
            name, _, value = line.strip().rstrip(",").partition("=")
            settings[name] = ast.literal_eval(value)
        elif "(and trikafka -F): " in line:
            files.append(line.partition("(and trikafka -F): ")[2].strip())
    return settings, files


async def refused(settings: dict[str, Any]) -> None:
    """Check that a user without a rule may connect, and do nothing else."""
    with trio.fail_after(240):
        async with trikafka.open_admin(**settings) as admin:
            with pytest.raises(
                trikafka.AuthorizationError, match=r"topic 'new'.*the operation Create"
            ):
                await admin.create_topics({"new": trikafka.NewTopic(1, 1)})
