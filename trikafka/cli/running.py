"""The asynchronous part of a command: orderly exits after signals, errors as one sentence."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .advice import in_options
from .suggesting import argument_hint, option_hint

if TYPE_CHECKING:
    import logging

#: Seconds for an orderly exit after a signal: last commit, leave the group, deliver records in
#: flight.
LEAVING_LIMIT = 5.0
#: Ctrl-\; Windows has none.
_QUIT: list[int] = [signal.SIGQUIT] if hasattr(signal, "SIGQUIT") else []
#: The most names in one line of an error.
_NAMED = 20
#: So many parts that failed for the same reason have a line each; more share one.
_APART = 3


class Signalled(BaseException):
    """A signal ended the command.

    This is no ``Exception``, so no error handler stops it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ReaderGoneError(Exception):
    """The reader of the standard output has gone.

    This is no ``OSError``, which click would turn into an exit code of its own.
    """


#: The former name, which commands of plugins may use.
NobodyReadsError = ReaderGoneError


# A signal must end a command quickly and still leave in order: commit what was printed, leave the
# group, deliver what was accepted. Cancelling the whole command would cancel these steps, too.
#
# So a command marks the part that a signal may interrupt, by here(). The signal cancels that part
# only. The code behind it runs under a deadline of LEAVING_LIMIT. Outside of such a part, before
# anything is open, the whole command is cancelled. A second signal has its default action again and
# ends the process at once.
class Stop:
    """The point at which a signal cancels the command.

    A signal cancels the blocks of :meth:`here`, or else the whole command.
    """

    def __init__(self) -> None:
        import trio

        self.number: int | None = None
        self.scope = trio.CancelScope()
        self._here: list[trio.CancelScope] = []
        self._finishing: list[trio.CancelScope] = []

    @contextmanager
    def here(self) -> Iterator[None]:
        """Return a context whose block is cancelled by a signal or by :meth:`now`.

        The code after the block still runs, within :data:`LEAVING_LIMIT`.
        """
        import trio

        with trio.CancelScope() as scope:
            if self.number is not None:
                scope.cancel()
            self._here.append(scope)
            try:
                yield
            finally:
                self._here.remove(scope)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Return a context whose block a signal does not cut, but bounds by the same limit."""
        import trio

        with trio.CancelScope(shield=True) as scope:
            if self.number is not None:
                scope.deadline = trio.current_time() + LEAVING_LIMIT
            self._finishing.append(scope)
            try:
                yield
            finally:
                self._finishing.remove(scope)

    def now(self, number: int) -> None:
        """End the command as the signal ``number`` does."""
        import trio

        self.number = number
        if not self._here:
            self.scope.cancel()
            return
        self.scope.deadline = trio.current_time() + LEAVING_LIMIT
        for scope in self._finishing:
            scope.deadline = self.scope.deadline
        for scope in self._here:
            scope.cancel()


def run(work: Callable[[Stop], Awaitable[None]]) -> None:
    """Run ``work`` until it returns.

    A second signal ends the process at once.

    Raises:
        Signalled: SIGINT, SIGTERM or SIGHUP arrived.
    """
    import logging

    import trio

    numbers = _numbers()
    lookups = logging.getLogger("trikafka.offsets")

    async def supervised() -> tuple[int | None, Exception | None]:
        stop = Stop()
        failed = None

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
                    except Exception as error:  # re-raised outside the nursery, not in a group
                        failed = error
                nursery.cancel_scope.cancel()
        return stop.number, failed

    # The command refuses a number that is probably seconds itself (start.py). A time of 1970 that
    # reaches the client was written as a date, so the client's advice about it would be wrong.
    lookups.addFilter(_about_no_seconds)
    try:
        number, failed = trio.run(supervised)
    finally:
        lookups.removeFilter(_about_no_seconds)
    if number is not None:
        raise Signalled(number) from failed
    if isinstance(failed, BrokenPipeError):
        raise ReaderGoneError from failed
    if failed is not None:
        raise failed


def _about_no_seconds(record: logging.LogRecord) -> bool:
    return "given in seconds" not in record.getMessage()


def _numbers() -> list[int]:
    """Return the signals that end a command."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    # If SIGHUP is ignored (nohup), the command is meant to outlive its terminal. Windows has none.
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    return numbers


@contextmanager
def signals_raised() -> Iterator[None]:
    """Return a context in which the signals that end a command raise :exc:`Signalled`.

    So does SIGQUIT. Their default action would end the process before its block has
    restored what it changed, such as a terminal's echo. Only the first signal counts.
    """
    seen: int | None = None

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen is None:
            seen = number
            raise Signalled(number)

    before = {}
    try:
        for number in [*_numbers(), *_QUIT]:
            before[number] = signal.signal(number, handler)
        yield
    except BaseException as error:
        # A terminal that was hung up cannot be restored. The signal, and not the error of that, is
        # why the command ends.
        if seen is not None and not isinstance(error, Signalled):
            raise Signalled(seen) from error
        raise
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def sentence(error: BaseException) -> tuple[str, int]:
    """Return the error on one line and the exit code; for a group, of all its members.

    For an admin call about several things, each that failed has a line, or shares one with those
    that failed for the same reason.
    """
    from ..errors import AdminErrors
    from ..errors.groups import members
    from .partly import PartlyFailedError

    if isinstance(error, AdminErrors):
        failures = [(str(key), each) for key, each in error.failures.items()]
        lines, code = _parts(failures, len(failures) + len(error.results))
        return "\n".join(lines + _done(error.results)), code
    if isinstance(error, PartlyFailedError):
        lines, code = _parts(error.failures, error.total)
        return "\n".join(lines + _done(error.done)), code
    sentences = [_sentence(member) for member in members(error)]
    return "; ".join(dict.fromkeys(text for text, _ in sentences)), max(
        code for _, code in sentences
    )


def _parts(
    failures: Sequence[tuple[str, BaseException]], total: int | None
) -> tuple[list[str], int]:
    failed = [(_one_line(key), *_sentence(each)) for key, each in failures]
    lines = [f"{len(failed)} failed" if total is None else f"{len(failed)} of {total} failed"]
    alike: dict[str, list[str]] = {}
    for key, text, _ in failed:
        alike.setdefault(text, []).append(key)
    for text, keys in alike.items():
        if len(keys) > _APART and all(keys):
            lines.append(f"  {_names(keys)}: {text}")
            continue
        # The texts of many errors begin with the name of their part.
        lines += [
            f"  {key}: {text}" if key and not text.startswith(f"{key}: ") else f"  {text}"
            for key in keys
        ]
    return lines, max(code for *_, code in failed)


def _done(names: Iterable[Any]) -> list[str]:
    done = [_one_line(str(name)) for name in names]
    return [f"  done: {_names(done)}"] if done else []


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _sentence(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        error = _about_variable(error)
        text = _one_line(error.format_message()).rstrip(".")
        if isinstance(error, click.NoSuchOption):
            text = f"no such option {error.option_name}{option_hint(error)}"
        text += argument_hint(error)
        # click does not say which command lacks the value of an option.
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        return text + where, 2
    if isinstance(error, click.ClickException):
        text = error.format_message()
        return _one_line(in_options(text, chosen=True)), error.exit_code
    from ..errors import ConfigurationError, TrikafkaError

    if isinstance(error, TrikafkaError):
        chosen = isinstance(error, ConfigurationError)
        return _one_line(in_options(str(error), chosen=chosen)), 2 if chosen else 1
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else ""), 1
    return f"unexpected {type(error).__name__}: {_one_line(str(error))} (--debug shows where)", 1


def _about_variable(error: click.UsageError) -> click.UsageError:
    """Return the error about an option; about its variable if the environment gave the value."""
    if not isinstance(error, click.BadParameter) or error.param_hint is not None:
        return error
    ctx, param = error.ctx, error.param
    if ctx is None or param is None or param.name is None:
        return error
    if ctx.get_parameter_source(param.name) is not ParameterSource.ENVIRONMENT:
        return error
    hint = f"the environment variable {param.envvar}"
    return click.BadParameter(error.message, ctx, param, hint)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Return a text with escapes for control characters.

    Names of groups and clients come from other programs, and may hold a terminal's commands.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
