"""Outputs that take nothing: readers that have gone, and full disks. No broker is needed."""

from __future__ import annotations

import errno
import io
import os
import sys

import click
import pytest
from commanding import trikafka

from trikafka import PartitionDelivery, TopicPartition
from trikafka.cli.delivered import Delivered
from trikafka.cli.progress import meter, note, warn
from trikafka.cli.tables import say


@pytest.mark.parametrize("args", [("--version",), ("topics", "--help")])
def test_help_without_a_reader_is_a_broken_pipe(args: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = trikafka(*args, stdout=writer)
    finally:
        os.close(writer)
    assert (ended.code, ended.err) == (141, "")


class FullDisk(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    with pytest.raises(click.ClickException, match="cannot write to the standard output: No space"):
        say("x")


def test_lost_report_says_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    delivered = Delivered()
    delivered.add({TopicPartition("t", 0): PartitionDelivery(3, 0, 2)})
    with pytest.raises(click.ClickException, match=r"; 3 records were written all the same$"):
        with delivered.reporting("table"):
            pass


def test_closed_stderr_adds_nothing_to_the_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python has no stream for it then, and print() takes the standard output instead."""
    monkeypatch.setattr(sys, "stderr", None)
    warn("a")
    note("b")
    with meter("c", "records", beside_output=True) as tell:
        tell(1)
    assert capfd.readouterr().out == ""


def test_missing_meter_is_no_cause_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trikafka.cli.progress._on_terminal", lambda: True)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ValueError, match="later") as caught, meter("c", "records"):
        raise ValueError("later")
    assert caught.value.__context__ is None
