"""The command of the demo: options, signals, exit codes.

The exit code is 0 if all comparisons are equal, 1 after a difference or an error, and 128 + n after
signal n.
"""

from __future__ import annotations

import argparse
import signal
import traceback
from pathlib import Path

import trio

from .demo import Options, run
from .display import Screen

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="A year of flights through Kafka, Parquet and Spark, every step checked."
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-out"),
        help="where the Parquet files and the chart go",
    )
    parser.add_argument(
        "--flights", type=int, metavar="N", help="only the first N flights (default: all 336,776)"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    given = parser.parse_args()
    try:
        return trio.run(_main, Options(given.output.absolute(), given.flights), given.debug)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def _main(options: Options, debug: bool) -> int:
    code = 0

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        nonlocal code
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                code = code or 128 + number
                screen.say("stopping ...")
                scope.cancel()

    with Screen() as screen:
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            await nursery.start(watch)
            with scope:
                try:
                    await run(options, screen)
                except Exception as error:
                    if debug:
                        traceback.print_exc()
                    screen.say(f"Error: {_sentence(error)}")
                    code = 1
            nursery.cancel_scope.cancel()
        if code == 0:
            screen.summary()
            code = 0 if screen.ok else 1
            screen.say("All equal." if screen.ok else "There are differences.")
    return code


def _sentence(error: BaseException) -> str:
    """Return the text of an error, or the texts of all errors in nested groups."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_sentence(inner) for inner in error.exceptions))
    return f"{error}" if f"{error}" else type(error).__name__
