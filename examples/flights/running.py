"""Running another program from Trio, without leaving any of its processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

import trio

#: The seconds that a program gets to end after SIGINT.
_END_LIMIT = 5.0


class ProgramFailedError(Exception):
    """A program ended with a code other than 0. The text has the last lines of its output."""


async def run_program(
    command: Sequence[str], on_line: Callable[[str], None] = lambda line: None
) -> str:
    """Run a command, and return its standard output.

    The program is the leader of a process group, so Ctrl-C at the terminal does not reach it
    directly. On cancellation it gets SIGINT and 5 s to end. Then the group is killed.

    Args:
        command: The program and its arguments.
        on_line: Called with each line of its standard error.

    Raises:
        ProgramFailedError: The program ended with a code other than 0.
    """
    output = bytearray()
    said = list[str]()
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_collect, process.stdout, output)
            nursery.start_soon(_lines, process.stderr, said, on_line)
            await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
    if process.returncode:
        raise ProgramFailedError(
            f"{' '.join(command[:3])} ... ended with code {process.returncode}: "
            f"{' / '.join(said[-5:])}"
        )
    return output.decode()


async def _end(process: trio.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        with trio.move_on_after(_END_LIMIT):
            await process.wait()
    # Also after an orderly end: the program may have left processes of its group behind.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _collect(stream: trio.abc.ReceiveStream | None, into: bytearray) -> None:
    assert stream is not None
    async for chunk in stream:
        into += chunk


async def _lines(
    stream: trio.abc.ReceiveStream | None, said: list[str], on_line: Callable[[str], None]
) -> None:
    assert stream is not None
    pending = ""
    async for chunk in stream:
        *lines, pending = (pending + chunk.decode(errors="replace")).replace("\r", "\n").split("\n")
        for line in filter(str.strip, lines):
            said.append(line.strip())
            del said[:-50]
            on_line(line.strip())
    if pending.strip():
        said.append(pending.strip())
