"""Fixtures of the command's tests.

The command runs against a real broker, in this process (quick) or in its own (signals, pipes).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from commanding import Command, Ended, Send, fresh

from trikafka.cli.app import run


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands print tables, as on a terminal; a test may ask for JSON."""
    monkeypatch.setenv("TRIKAFKA_OUTPUT", "table")


@pytest.fixture
def command(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Return a function that runs a command line in this process and returns how it ended."""

    def call(*args: str) -> Ended:
        capfdbinary.readouterr()
        code = run(args)
        out, err = capfdbinary.readouterr()
        return Ended(code, out, err.decode())

    return call


@pytest.fixture
def broker(kafka_broker: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a real broker, which commands find in their environment."""
    servers: str = kafka_broker.bootstrap_servers  # type: ignore[attr-defined]
    monkeypatch.setenv("TRIKAFKA_BOOTSTRAP_SERVERS", servers)
    return servers


@pytest.fixture
def topic(broker: str, command: Command) -> str:
    """Return the name of a new topic with three partitions."""
    name = fresh()
    # Some tests write old timestamps, and a broker deletes old segments, also 30 s after its start.
    keep = ("--config", "retention.ms=-1")
    assert command("topics", "create", name, "--partitions", "3", *keep).code == 0
    # The controller has it first, and a producer asks a broker for it for three seconds.
    until = time.monotonic() + 240
    while command("topics", "describe", name).code:
        assert time.monotonic() < until
    return name


@pytest.fixture
def send(command: Command, topic: str, tmp_path: Path) -> Send:
    """Return a function that writes raw lines to the topic."""

    def call(data: bytes, *options: str) -> None:
        file = tmp_path / "lines"
        file.write_bytes(data)
        ended = command("produce", "-t", topic, "-f", "raw", *options, str(file))
        assert (ended.code, ended.err) == (0, "")

    return call
