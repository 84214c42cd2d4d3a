"""A process that opens clients repeatedly and raises SIGINT at another moment each time.

``python interrupting.py KIND HOW FIRST LAST STRIDE``: with HOW ``steps`` the signal comes after the
n-th step of a task, so blocked code is interrupted. With ``lines`` it comes at the n-th line that
is executed in trikafka, so running code is interrupted. The process prints each wrong ending. A
client that hangs is reported after 60 s.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import signal
import sys
import types
from typing import Any

import trio
import trio.testing

import trikafka
from trikafka.testing import ScriptedCluster

HERE = os.path.dirname(trikafka.__file__)
OPENERS: dict[str, Any] = {
    "consumer": trikafka.open_consumer,
    "producer": trikafka.open_producer,
    "admin": trikafka.open_admin,
}
open_streams: set[trio.abc.Stream] = set()


class AtStep(trio.abc.Instrument):
    """An instrument that raises SIGINT after a number of task steps of the opening."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.armed = False
        self.pressed = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.armed and not self.pressed:
            self.left -= 1
            if self.left <= 0:
                self.pressed = True
                signal.raise_signal(signal.SIGINT)

    def arm(self) -> None:
        self.armed = True

    def disarm(self) -> None:
        self.armed = False


class AtLine(trio.abc.Instrument):
    """A tracer that raises SIGINT after a number of lines of trikafka.

    Lines of the scripted cluster do not count.
    """

    def __init__(self, after: int) -> None:
        self.left = after
        self.pressed = False

    def _trace(self, frame: types.FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(HERE) or "/testing/" in name or self.pressed:
            return None
        # The interpreter handles no signals at these lines: the line of a ``with`` is executed
        # again before its exit, and ``try`` does nothing.
        if event == "line" and not linecache.getline(name, frame.f_lineno).lstrip().startswith(
            ("with ", "async with ", "try:")
        ):
            self.left -= 1
            if self.left <= 0:
                self.pressed = True
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def arm(self) -> None:
        sys.settrace(self._trace)

    def disarm(self) -> None:
        sys.settrace(None)


async def open_once(kind: str, press: Any, opened: list[bool]) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def dial(host: str, port: int) -> trio.abc.Stream:
            stream: Any = await cluster.dial(host, port)
            aclose = stream.aclose

            async def closed() -> None:
                open_streams.discard(stream)
                await aclose()

            stream.aclose = closed
            open_streams.add(stream)
            return stream  # type: ignore[no-any-return]

        group = {"group_id": "g", "auto_offset_reset": "earliest"} if kind == "consumer" else {}
        topics = ("t",) if kind == "consumer" else ()
        try:
            press.arm()
            async with OPENERS[kind](
                *topics, bootstrap_servers=cluster.bootstrap_servers, dial=dial, **group
            ) as client:
                opened.append(True)
                await client.partitions_for("t") if kind != "admin" else await client.list_topics()
        finally:
            press.disarm()


def ending(kind: str, press: Any, opened: list[bool]) -> str:
    """Return the fault of the program's ending, or an empty string.

    The right ending is ``KeyboardInterrupt``, or none at all if the signal never came.
    """
    try:
        instruments = [press] if isinstance(press, AtStep) else []
        trio.run(
            open_once,
            kind,
            press,
            opened,
            clock=trio.testing.MockClock(autojump_threshold=0),
            instruments=instruments,
        )
    except BaseException as error:
        press.disarm()
        return "" if type(error) is KeyboardInterrupt and press.pressed else f"{error!r}"
    return "" if not press.pressed else "it went on as if nothing had happened"


def main(kind: str, how: str, first: int, last: int, stride: int) -> None:
    """Interrupt at each moment and print the faults.

    The last line of the output has the number of interrupts.
    """
    ending(kind, AtLine(10**9), [])  # modules that are imported at the first use are loaded now
    presses = 0
    for number in range(first, last, stride):
        press: Any = AtStep(number) if how == "steps" else AtLine(number)
        print(f"at {number}", flush=True)
        faulthandler.dump_traceback_later(60, exit=True)
        open_streams.clear()
        wrong = ending(kind, press, [])
        faulthandler.cancel_dump_traceback_later()
        if wrong:
            print(f"WRONG at {number}: {wrong}", flush=True)
        if not press.pressed:
            break
        presses += 1
        if open_streams:
            print(f"WRONG at {number}: a stream is open", flush=True)
    print(f"presses: {presses}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
