"""Fixtures of the command's tests: a real broker, and the command inside this process (quick) or as a process (signals, pipes)."""

from __future__ import annotations

from pathlib import Path

import pytest
from commanding import Command, Ended, Send, fresh

from trikafka.cli.app import run


@pytest.fixture
def command(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs a command line in this process; returns how it ended."""

    def call(*args: str) -> Ended:
        capfdbinary.readouterr()
        code = run(args)
        out, err = capfdbinary.readouterr()
        return Ended(code, out, err.decode())

    return call


@pytest.fixture
def broker(kafka_broker: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """A real broker, which commands find by themselves."""
    servers: str = kafka_broker.bootstrap_servers  # type: ignore[attr-defined]
    monkeypatch.setenv("TRIKAFKA_BOOTSTRAP_SERVERS", servers)
    return servers


@pytest.fixture
def topic(broker: str, command: Command) -> str:
    """A new topic of three partitions."""
    name = fresh()
    assert command("topics", "create", name, "--partitions", "3").code == 0
    return name


@pytest.fixture
def send(command: Command, topic: str, tmp_path: Path) -> Send:
    """Writes raw lines to the topic."""

    def call(data: bytes, *options: str) -> None:
        file = tmp_path / "lines"
        file.write_bytes(data)
        assert command("produce", "-t", topic, "-f", "raw", *options, str(file)) == (0, b"", "")

    return call
