"""Running the asynchronous part of a command: signals end it in order, and errors become one sentence."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import click

#: What leaving in order may take after a signal (seconds): last commit, leave the group, deliver what is on its way.
LEAVING_LIMIT = 5.0


class Signalled(BaseException):
    """The command was ended by a signal. Not an ``Exception``: no handler of errors is meant to stop it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class NobodyReadsError(Exception):
    """The reader of the standard output has gone. Not an ``OSError``: click would make an exit code of its own of it."""


class Stop:
    """Where a signal cuts in: into :meth:`here` if the command is there, else into the whole command."""

    def __init__(self) -> None:
        import trio

        self.number: int | None = None
        self.scope = trio.CancelScope()
        self._here: list[trio.CancelScope] = []

    @contextmanager
    def here(self) -> Iterator[None]:
        """A signal (or :meth:`now`) ends this block; what follows it is still done, within :data:`LEAVING_LIMIT`."""
        import trio

        with trio.CancelScope() as scope:
            if self.number is not None:
                scope.cancel()
            self._here.append(scope)
            try:
                yield
            finally:
                self._here.remove(scope)

    def now(self, number: int) -> None:
        """End the command as that signal does."""
        import trio

        self.number = number
        if not self._here:
            self.scope.cancel()
            return
        self.scope.deadline = trio.current_time() + LEAVING_LIMIT
        for scope in self._here:
            scope.cancel()


def run(work: Callable[[Stop], Awaitable[None]]) -> None:
    """Run ``work`` to its end. Raises :exc:`Signalled` after SIGINT, SIGTERM or SIGHUP; a second one ends the process at once."""
    import trio

    # Who has it ignored (nohup) wants the command to outlive its terminal.
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else [])]

    async def supervised() -> tuple[int | None, Exception | None]:
        stop, failed = Stop(), None

        async def listen() -> None:
            async for number in signals:
                for each in numbers:
                    signal.signal(each, signal.SIG_DFL)
                stop.now(number)

        with trio.open_signal_receiver(*numbers) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                with stop.scope:
                    try:
                        await work(stop)
                    except Exception as error:  # comes out bare, not in a group
                        failed = error
                nursery.cancel_scope.cancel()
        return stop.number, failed

    number, failed = trio.run(supervised)
    if number is not None:
        raise Signalled(number) from failed
    if isinstance(failed, BrokenPipeError):
        raise NobodyReadsError from failed
    if failed is not None:
        raise failed


def sentence(error: BaseException) -> tuple[str, int]:
    """What went wrong, on one line, and the exit code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "trikafka"
        return f"{_one_line(error.format_message()).rstrip('.')} (see {path} --help)", 2
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message()), error.exit_code
    from ..errors import ConfigurationError, TrikafkaError

    if isinstance(error, TrikafkaError):
        return _one_line(str(error)), 2 if isinstance(error, ConfigurationError) else 1
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else ""), 1
    return f"unexpected {type(error).__name__}: {_one_line(str(error))} (--debug shows where)", 1


def _one_line(text: str) -> str:
    return " ".join(text.split())
