"""The guards around a plugin's sink, format, files and runner: errors name plugin and method.

An error that is trikafka's stays that error; of a group of such errors the decisive one is raised,
with notes of the others. Any other error becomes a :exc:`~trikafka.PluginError` where an export
begins and ends. In the tasks it becomes an :exc:`~trikafka.ExportError`: they may run on other
machines, which know the class and not the plugin. There an error of the file system stays that
error, too.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio

from trikafka import ExportError, PluginError, TrikafkaError
from trikafka.config.whole import is_whole, whole
from trikafka.errors.groups import decisive, every, members, unwrapped, with_others
from trikafka.hooks import check_shape, check_takes
from trikafka.interfaces import (
    ExportCheck,
    ExportFormat,
    ExportRunner,
    ExportState,
    FileFormat,
    FileWriter,
    PlannedRange,
    Sink,
    TableLog,
)

_log = logging.getLogger("trikafka.export")
#: How long a runner that keeps its own limit may take beyond it (seconds).
_PATIENCE = 0.5


@contextmanager
def _blaming(
    who: str, *, spared: Callable[[], BaseException | None] = lambda: None
) -> Iterator[None]:
    """Raise a :exc:`PluginError` for an error of a plugin; ``spared`` is an error of the caller."""
    try:
        yield
    except TrikafkaError:
        raise
    except Exception as error:
        single = unwrapped(error)  # of a nursery with one failed task
        if single is error and single is spared():
            raise  # with its own context
        if isinstance(single, TrikafkaError) or (single is not None and single is spared()):
            raise single from single.__cause__
        if every(single, TrikafkaError):
            several = members(single)
            decides = decisive(several)
            raise with_others(decides, several) from decides.__cause__
        raise PluginError(f"{who} failed: {single!r}") from error
    # Of a nursery that was cancelled while something else failed in it.
    except BaseExceptionGroup as group:
        failed = group.subgroup(Exception)
        if failed is None or group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
            raise
        with _blaming(who, spared=spared):
            raise failed from None


class GuardedFormat:
    """A plugin's format whose failures name the plugin. Raises :exc:`PluginError`."""

    def __init__(self, plugin: str, format: ExportFormat) -> None:
        self._format = format
        with _blaming(f"plugin {plugin}: a format's name"):
            self.name = format.name
        if not isinstance(self.name, str) or not self.name:
            raise PluginError(
                f"plugin {plugin}: the name of a format is {self.name!r}; it must be text"
            )
        self._who = f"plugin {plugin}: format {self.name!r}"
        with _blaming(f"{self._who}: option_names"):
            self.option_names = format.option_names
        names: object = self.option_names
        # A text is a collection of letters.
        if (
            isinstance(names, str | bytes)
            or not isinstance(names, Collection)
            or not all(isinstance(each, str) for each in names)
        ):
            raise PluginError(f"{self._who}: option_names is {names!r}, no collection of names")

    def files(self, options: Mapping[str, Any]) -> FileFormat:
        """Return the kind of the files."""
        who = f"{self._who}: files"
        with _blaming(who):
            files = self._format.files(options)
        check_shape(who, files, FileFormat)
        for name in ("title", "suffix"):
            if not isinstance(text := getattr(files, name), str):
                raise PluginError(
                    f"{self._who}: the {name} of {type(files).__name__} is {text!r}; it must be "
                    "text"
                )
        return files

    def table(self, options: Mapping[str, Any]) -> Callable[[], TableLog] | None:
        """Return a function that opens the log of a table; ``None`` for files alone."""
        who = f"{self._who}: table"
        with _blaming(who):
            open_log = self._format.table(options)
        if open_log is None:
            return None
        if not callable(open_log):
            raise PluginError(f"{who} returned {open_log!r}, which cannot be called")
        check_takes(open_log, (), PluginError, f"{who}: what it returned")
        return partial(_opened, who, open_log)


def _opened(who: str, open_log: Callable[[], TableLog]) -> TableLog:
    with _blaming(f"{who}: opening the log"):
        log = open_log()
    check_shape(f"{who}: opening the log", log, TableLog)
    return log


class GuardedWriter:
    """The writer of one file of a plugin's format. Raises :exc:`~trikafka.ExportError`."""

    def __init__(
        self, files: FileFormat, stream: Any, schema: Any, planned: PlannedRange, shape: Any
    ) -> None:
        self._who = f"{type(files).__module__}.{type(files).__qualname__}"
        with self._blaming("open"):
            writer: Any = files.open(stream, schema, planned, shape)
            try:
                check_shape("open", writer, FileWriter)
            except PluginError as error:
                raise ExportError(f"{self._who}.{error}") from None
        self._writer = writer

    def write(self, table: Any) -> None:
        """Append rows."""
        with self._blaming("write"):
            _refuse_coroutine(self._writer.write(table))

    def close(self) -> None:
        """Write what ends the file."""
        with self._blaming("close"):
            _refuse_coroutine(self._writer.close())

    @contextmanager
    def _blaming(self, method: str) -> Iterator[None]:
        try:
            yield
        except (OSError, TrikafkaError):
            raise
        except Exception as error:
            raise ExportError(f"{self._who}: {method} failed: {error!r}") from error


def _refuse_coroutine(result: object) -> None:
    """Raise ``TypeError`` for the coroutine of a method, whose rows would be lost."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the method is async, and has to be a plain function")


def counted(files: FileFormat, file: Any) -> int:
    """Return the number of rows of a file.

    Raises :exc:`~trikafka.ExportError` for a format that cannot say, and what the format raises for
    a file that cannot be read.
    """
    who = f"{type(files).__module__}.{type(files).__qualname__}: count"
    try:
        rows: object = files.count(file)
        _refuse_coroutine(rows)
    except (OSError, ValueError, TrikafkaError):
        raise
    except Exception as error:
        raise ExportError(f"{who} failed: {error!r}") from error
    number: object = whole(rows)
    if isinstance(number, bool) or not isinstance(number, int):
        raise ExportError(f"{who} returned {rows!r}, which is not a number of rows")
    return number


#: The methods of sinks, with the type that each returns. A sink has some of the last four.
_SINK_METHODS: Mapping[str, type | None] = {
    "load": ExportState,
    "pin": Mapping,
    "store_plan": None,
    "write": Mapping,
    "settle": Sequence,
    "publish": None,
    "give_up": Sequence,
    "check": ExportCheck,
    "check_deep": ExportCheck,
    "note_visit": None,
}


class GuardedSink:
    """A plugin's sink whose failures name the plugin. Raises :exc:`PluginError`.

    It has the methods that the sink has: their presence decides what an export can do.
    """

    def __init__(self, plugin: str, sink: Sink) -> None:
        self._who = f"plugin {plugin}: {type(sink).__name__}"
        self._given: Any = sink
        #: What the sink returned when it was entered, usually itself.
        self._sink: Any = sink
        for name, kind in _SINK_METHODS.items():
            if callable(getattr(sink, name, None)):
                setattr(self, name, partial(self._call, name, kind))

    async def __aenter__(self) -> Self:
        entered = await self._call("__aenter__", None)
        if entered is None:
            error = PluginError(f"{self._who}: __aenter__ returned None; it must return the sink")
            await self.__aexit__(PluginError, error, None)  # it may hold a lock
            raise error
        self._sink = entered
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._call("__aexit__", None, kind, error, trace)
        except TrikafkaError as failure:
            if error is None:
                raise
            # What ended the export is raised.
            text = failure if isinstance(failure, PluginError) else f"{self._who}: {failure!r}"
            _log.error("%s", text, exc_info=failure)

    async def _call(self, name: str, kind: type | None, *args: Any, **kwargs: Any) -> Any:
        noted = _Report(args[-1]) if name == "write" and len(args) == 4 else None
        if noted is not None:
            args = (*args[:-1], noted)
        with _blaming(
            f"{self._who}: {name}", spared=lambda: None if noted is None else noted.failure
        ):
            # As `async with` does: the object that was entered is left.
            sink = self._given if name in ("__aenter__", "__aexit__") else self._sink
            result: Any = await getattr(sink, name)(*args, **kwargs)
        if kind is not None and not isinstance(result, kind):
            raise PluginError(
                f"{self._who}: {name} returned {type(result).__name__}, not {kind.__name__}"
            )
        if name == "write":
            for each, failure in result.items():
                if not isinstance(failure, Exception):
                    raise PluginError(
                        f"{self._who}: write returned {failure!r} for {each}, which is not an error"
                    )
        return result


class _Report:
    """The program's function for progress, and its error: that is not the plugin's."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self.failure: Exception | None = None

    def __call__(self, *args: Any) -> None:
        check_takes(self._report, args, TypeError, "the function for the progress")
        try:
            self._report(*args)
        except Exception as error:
            self.failure = error
            raise


class GuardedRunner:
    """A plugin's runner whose failures name the plugin. Raises :exc:`PluginError`."""

    def __init__(self, plugin: str, name: str, runner: ExportRunner) -> None:
        self._runner = runner
        self._who = f"plugin {plugin}: runner {name!r}"

    @property
    def above(self) -> int | None:
        """The number of offsets that a plan of this runner exceeds."""
        with _blaming(f"{self._who}: above"):
            above: int | None = whole(self._runner.above)
        if above is not None and not is_whole(above):
            raise PluginError(f"{self._who}: above is {above!r}; it must be a number, or None")
        return above

    def check(self) -> None:
        """Check what the runner needs."""
        with _blaming(f"{self._who}: check"):
            self._runner.check()

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Prepare to run ranges."""
        with _blaming(f"{self._who}: start"):
            await self._runner.start(settings)

    async def run(
        self, tasks: Sequence[Any], report: Callable[[int, int], None]
    ) -> Sequence[Exception | None]:
        """Run the tasks. An error of ``report`` itself stays that error."""
        noted = _Report(report)
        with _blaming(f"{self._who}: run", spared=lambda: noted.failure):
            results: object = await self._runner.run(tasks, noted)
        wrong = f"{self._who}: run returned"
        if isinstance(results, str | bytes) or not isinstance(results, Sequence):
            raise PluginError(f"{wrong} {type(results).__name__}, no list of errors or None")
        if len(results) != len(tasks):
            raise PluginError(f"{wrong} {len(results)} results for {len(tasks)} tasks")
        for each in results:
            if each is not None and not isinstance(each, Exception):
                raise PluginError(
                    f"{wrong} {each!r} for a task, which is neither an error nor None"
                )
        return results

    async def close(self, limit: float) -> None:
        """Release what the runner holds, within ``limit`` seconds.

        A failure is logged and not raised, since the destination has to be released after the
        runners in every case. For the same reason a cancelled export waits for the end of this.
        """
        patience = limit + _PATIENCE if limit < math.inf else limit
        with trio.move_on_after(patience, shield=True) as scope:
            try:
                await self._runner.close(limit)
            except Exception as error:
                _log.error("%s: close failed: %r", self._who, unwrapped(error), exc_info=error)
        if scope.cancelled_caught:
            _log.error("%s: close did not return within %g s", self._who, limit)
