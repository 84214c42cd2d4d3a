"""Formats and runners of plugins that are wrong: named, before any request where possible.

No record is lost, nothing hangs, and the destination can be exported to again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from lines_format import LinesFiles, LinesFormat, LinesWriter
from trikafka_export.guarded import GuardedSink
from trikafka_export.task import Stopper, write_range

import trikafka
from trikafka import ExportError, PluginError, hookimpl
from trikafka.errors import TrikafkaError
from trikafka.interfaces import ExportState, RangeResult, WrittenFile
from trikafka.testing import ScriptedCluster


async def coroutine(*args: Any, **kwargs: Any) -> Any: ...


def fails(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("oops")


async def export(cluster: ScriptedCluster, root: Path, *plugins: object) -> trikafka.ExportResult:
    with trio.fail_after(240):
        return await trikafka.export(
            "t",
            str(root),
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
            plugins=plugins,
            sink_options={"format": "lines", "threads": 1},
        )


def data_files(root: Path) -> list[Path]:
    return list(root.glob("*.jsonl"))


def cluster_of() -> ScriptedCluster:
    return ScriptedCluster(topics={"t": 2})


def fill(cluster: ScriptedCluster) -> None:
    for partition in (0, 1):
        cluster.append("t", partition, [b"1", b"2"])


# Formats.


def format_of(**members: Any) -> LinesFormat:
    made: LinesFormat = type("Toy", (LinesFormat,), members)()
    return made


def files_of(**members: Any) -> LinesFormat:
    files = type("ToyFiles", (LinesFiles,), members)()
    return format_of(files=lambda self, options: files)


OPEN = r"open\(stream\) has to be open\(stream, schema, planned, shape\)"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (format_of(files=fails), r"files failed: KeyError\('oops'\)"),
        (format_of(files=lambda self, options: None), "files returned NoneType, which is no FileF"),
        (format_of(files=lambda self, options: LinesFiles), "files returned the class LinesFiles;"),
        (format_of(table=fails), "table failed: KeyError"),
        (format_of(table=lambda self, options: 5), "table returned 5, which cannot be called"),
        (format_of(table=lambda self, options: lambda a: a), "table: what it returned cannot be c"),
        (format_of(table=lambda self, options: fails), "table: opening the log failed: KeyError"),
        (format_of(table=lambda self, options: dict), "opening the log returned dict, which is no"),
        (format_of(option_names="indent"), "option_names is 'indent', no collection of names"),
        (format_of(option_names=(5,)), r"option_names is \(5,\), no collection of names"),
        (files_of(suffix=None), "files returned ToyFiles, which is no FileFormat: it has no suff"),
        (files_of(suffix=5), "the suffix of ToyFiles is 5; it must be text"),
        (files_of(title=5), "the title of ToyFiles is 5; it must be text"),
        (files_of(open=lambda self, stream: None), f"files returned .* ToyFiles, of which {OPEN}"),
        (files_of(count=coroutine), "files returned .* ToyFiles, of which count must be plain"),
    ],
)
async def test_wrong_format_is_named_before_any_request(
    format: LinesFormat, text: str, tmp_path: Path
) -> None:
    async with cluster_of() as cluster:
        with pytest.raises(PluginError, match=rf"^plugin 'Toy': format 'lines': .*{text}"):
            await export(cluster, tmp_path / "x", format)
        assert not cluster.log


async def test_format_without_a_name_is_named(tmp_path: Path) -> None:
    class Nameless(LinesFormat):
        name = 5  # type: ignore[assignment]

        @hookimpl
        def trikafka_export_format(self, name: str) -> object:
            return self

    async with cluster_of() as cluster:
        with pytest.raises(PluginError, match="'Nameless': the name of a format is 5"):
            await export(cluster, tmp_path / "x", Nameless())


def writer_of(**members: Any) -> LinesFormat:
    made = type("ToyWriter", (LinesWriter,), members)
    return files_of(open=lambda self, stream, schema, planned, shape: made(stream, ""))


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (files_of(open=fails), "ToyFiles: open failed: KeyError"),
        (files_of(open=lambda *given: None), "ToyFiles.open returned NoneType, which is no FileWr"),
        (writer_of(write=fails), "ToyFiles: write failed: KeyError"),
        (writer_of(close=fails), "ToyFiles: close failed: KeyError"),
        (writer_of(write=coroutine), "ToyFiles.open returned .*, of which write must be plain"),
        # Its rows would be missing, and the manifest would count them.
        (writer_of(write=lambda *given: coroutine()), "ToyFiles: write failed: .* is async"),
        (writer_of(close=lambda *given: coroutine()), "ToyFiles: close failed: .* is async"),
    ],
)
async def test_failing_writer_loses_no_record(
    format: LinesFormat, text: str, tmp_path: Path
) -> None:
    async with cluster_of() as cluster:
        fill(cluster)
        with pytest.raises(ExportError, match=rf"^exporting t-. \[0, 2\) failed: test_.*{text}"):
            await export(cluster, tmp_path, format)
        assert not data_files(tmp_path)
        assert (await export(cluster, tmp_path, LinesFormat())).rows == 4


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (fails, "failed: KeyError"),
        (lambda *given: "2", "returned '2', which is not a number of rows"),
    ],
)
async def test_failing_count_is_named(count: Any, text: str, tmp_path: Path) -> None:
    async with cluster_of() as cluster:
        fill(cluster)
        await export(cluster, tmp_path, LinesFormat())
    with pytest.raises(ExportError, match=f"ToyFiles: count {text}"):
        await trikafka.check_export(str(tmp_path), plugins=[files_of(count=count)])


class Integer:
    """A number as numpy's: no ``int``, but with an index."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


async def test_count_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    def count(self: object, file: Any) -> Integer:
        return Integer(LinesFiles().count(file))

    async with cluster_of() as cluster:
        fill(cluster)
        await export(cluster, tmp_path, LinesFormat())
    check = await trikafka.check_export(str(tmp_path), plugins=[files_of(count=count)])
    assert (check.rows, check.problems) == (4, ())


# Runners.


class Runner:
    """A runner of all plans, and the plugin that brings it. ``close`` needs a checkpoint."""

    above: Any = 0

    @hookimpl
    def trikafka_export_runner(self, name: str) -> object | None:
        return self if name == "large" else None

    def check(self) -> None: ...

    async def start(self, settings: object) -> None: ...

    async def run(self, tasks: Sequence[Any], report: Callable[[int, int], None]) -> Any:
        report(0, 0)
        return [await trio.to_thread.run_sync(write_range, task, Stopper()) for task in tasks]

    async def close(self, limit: float) -> None:
        await trio.lowlevel.checkpoint()


def returns(value: object) -> Callable[..., Any]:
    async def run(self: object, tasks: object, report: object) -> object:
        return value

    return run


async def fails_later(*args: Any) -> Any:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails_at_once)


async def fails_at_once() -> None:
    fails()


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"above": "5"}, "above is '5'; it must be a number, or None"),
        ({"above": True}, "above is True; it must be a number"),
        ({"check": fails}, "check failed: KeyError"),
        ({"start": fails_later}, r"start failed: KeyError\('oops'\)$"),
        ({"run": fails_later}, r"run failed: KeyError\('oops'\)$"),
        ({"run": returns(None)}, "run returned NoneType, no list of errors or None"),
        ({"run": returns(())}, "run returned 0 results for 2 tasks"),
        (
            {"run": returns(["a", "b"])},
            "run returned 'a' for a task, which is neither an error nor None",
        ),
        ({"run": returns([KeyError, None])}, "run returned <class 'KeyError'> for a task"),
    ],
)
async def test_wrong_runner_is_named(members: dict[str, Any], text: str, tmp_path: Path) -> None:
    runner = type("Toy", (Runner,), members)()
    async with cluster_of() as cluster:
        fill(cluster)
        with pytest.raises(PluginError, match=f"^plugin 'Toy': runner 'large': {text}"):
            await export(cluster, tmp_path, LinesFormat(), runner)
        assert (await export(cluster, tmp_path, LinesFormat())).rows == 4


async def test_threshold_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    runner = type("Toy", (Runner,), {"above": Integer(0)})()
    async with cluster_of() as cluster:
        fill(cluster)
        assert (await export(cluster, tmp_path, LinesFormat(), runner)).rows == 4


async def test_runner_that_does_nothing_is_found(tmp_path: Path) -> None:
    runner = type("Toy", (Runner,), {"run": returns([None, None])})()
    async with cluster_of() as cluster:
        fill(cluster)
        with pytest.raises(TrikafkaError, match=r"the sink left a part of t-0 \[0, 2\) undone"):
            await export(cluster, tmp_path, LinesFormat(), runner)
        assert (await export(cluster, tmp_path, LinesFormat())).rows == 4


async def test_failing_close_releases_the_destination(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = type("Toy", (Runner,), {"close": fails_later})()
    async with cluster_of() as cluster:
        fill(cluster)
        assert (await export(cluster, tmp_path, LinesFormat(), runner)).rows == 4
        fill(cluster)
        assert (await export(cluster, tmp_path, LinesFormat())).rows == 4
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert line == "plugin 'Toy': runner 'large': close failed: KeyError('oops')"


async def test_hanging_close_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trikafka_export.sink.STOP_LIMIT", 0.1)

    class Toy(Runner):
        async def close(self, limit: float) -> None:
            await trio.sleep_forever()

    async with cluster_of() as cluster:
        fill(cluster)
        assert (await export(cluster, tmp_path, LinesFormat(), Toy())).rows == 4
    assert "plugin 'Toy': runner 'large': close did not return within 0.1 s" in caplog.text


async def test_cancelled_export_releases_the_destination(tmp_path: Path) -> None:
    """The checkpoint in the runner's close raised Cancelled, and the lock was kept."""
    began = trio.Event()

    class Toy(Runner):
        async def run(self, tasks: Sequence[Any], report: Callable[[int, int], None]) -> Any:
            began.set()
            await trio.sleep_forever()

    async with cluster_of() as cluster:
        fill(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(export, cluster, tmp_path, LinesFormat(), Toy())
            await began.wait()
            nursery.cancel_scope.cancel()
        assert (await export(cluster, tmp_path, LinesFormat())).rows == 4


async def test_error_of_the_progress_stays_itself(tmp_path: Path) -> None:
    """A runner calls the program's function: an error of that is not the plugin's."""

    def progress(event: trikafka.ExportProgress) -> None:
        if event.stage == "writing":
            raise ValueError("my own")

    async with cluster_of() as cluster:
        fill(cluster)
        with pytest.raises(ValueError, match=r"^my own$"):
            await trikafka.export(
                "t",
                str(tmp_path),
                bootstrap_servers=cluster.bootstrap_servers,
                dial=cluster.dial,
                plugins=[LinesFormat(), Runner()],
                sink_options={"format": "lines"},
                on_progress=progress,
            )


# Sinks.


class MemorySink:
    """A sink that keeps nothing, and the plugin that brings it."""

    @hookimpl
    def trikafka_sink(self, scheme: str) -> object | None:
        return self if scheme == "memory" else None

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(self, *args: Any) -> object: ...

    async def load(self) -> Any:
        return ExportState()

    async def pin(self, state: Any, wanted: Any, settings: Any) -> Any:
        return {"name": "memory"}

    async def store_plan(self, plan: Any) -> None: ...

    async def write(self, plan: Any, ranges: Any, settings: Any, report: Any) -> Any:
        report("writing", 0, 0)
        return {}

    async def settle(self, plan: Any, ranges: Sequence[Any]) -> Any:
        return [
            RangeResult(each, each.end, (WrittenFile(each, each.name, each.start, each.end, 2, 1),))
            for each in ranges
        ]

    async def publish(self, manifest: Any) -> None: ...


async def export_to(
    sink: object, on_progress: Callable[[trikafka.ExportProgress], None] | None = None
) -> trikafka.ExportResult:
    async with cluster_of() as cluster:
        fill(cluster)
        return await trikafka.export(
            "t",
            "memory://x",
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
            plugins=[sink],
            on_progress=on_progress,
        )


async def reports_wrongly(self: object, plan: Any, ranges: Any, settings: Any, report: Any) -> None:
    report("writing")


@pytest.mark.parametrize(
    ("member", "made", "text"),
    [
        *((name, fails_later, "failed: KeyError") for name in ("load", "store_plan", "write")),
        *((name, fails_later, "failed: KeyError") for name in ("pin", "settle", "publish")),
        ("__aenter__", fails_later, "failed: KeyError"),
        ("__aenter__", coroutine, "returned None; it must return the sink"),
        ("__aexit__", fails_later, "failed: KeyError"),
        ("load", coroutine, "returned NoneType, not ExportState"),
        ("pin", coroutine, "returned NoneType, not Mapping"),
        ("write", coroutine, "returned NoneType, not Mapping"),
        ("write", reports_wrongly, "failed: TypeError.* cannot be called with one argument"),
        ("settle", coroutine, "returned NoneType, not Sequence"),
    ],
)
async def test_wrong_sink_is_named(member: str, made: Any, text: str) -> None:
    sink = type("Toy", (MemorySink,), {member: made})()
    with pytest.raises(PluginError, match=f"^plugin 'Toy': Toy: {member} {text}"):
        await export_to(sink)


async def test_error_of_the_export_outlives_its_sink(caplog: pytest.LogCaptureFixture) -> None:
    """Leaving a sink neither hides what ended the export nor swallows it."""

    class Toy(MemorySink):
        def __init__(self, leave: Callable[[], object]) -> None:
            self._leave = leave

        async def publish(self, manifest: Any) -> None:
            raise ExportError("no room")

        async def __aexit__(self, *args: Any) -> object:
            return self._leave()

    def refuses() -> object:
        raise ExportError("it is locked")

    for leave in (lambda: True, fails, refuses):
        with pytest.raises(ExportError, match="no room"):
            await export_to(Toy(leave))
    assert "plugin 'Toy': Toy: __aexit__ failed: KeyError('oops')" in caplog.text
    assert "plugin 'Toy': Toy: ExportError('it is locked')" in caplog.text


async def test_errors_of_the_program_pass_a_sink() -> None:
    def progress(event: trikafka.ExportProgress) -> None:
        if event.stage == "writing":
            try:
                fails()
            except KeyError:
                raise ValueError("my own")  # noqa: B904

    with pytest.raises(ValueError, match=r"^my own$") as caught:
        await export_to(MemorySink(), progress)
    assert isinstance(caught.value.__context__, KeyError)
    assert not caught.value.__suppress_context__  # the traceback shows both


async def test_decisive_error_of_a_sink_is_raised() -> None:
    """An error of Kafka is not the plugin's, also if there are several."""

    class Toy(MemorySink):
        async def load(self) -> Any:
            raise ExceptionGroup("several", [ExportError("a"), ExportError("b")])

    with pytest.raises(ExportError, match=r"^a\b") as caught:
        await GuardedSink("'Toy'", Toy()).load()
    assert caught.value.__notes__ == ["also failed: ExportError: b"]


async def test_error_beside_a_cancellation_is_named() -> None:
    class Toy(MemorySink):
        async def load(self) -> Any:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                try:
                    await trio.sleep_forever()
                finally:
                    fails()

    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(PluginError, match=r"Toy: load failed: KeyError\('oops'\)$"):
            await GuardedSink("'Toy'", Toy()).load()


async def test_sink_that_enters_nothing_is_left() -> None:
    left = []

    class Toy(MemorySink):
        async def __aenter__(self) -> Any: ...

        async def __aexit__(self, *args: Any) -> object:
            left.append(args[0])
            return None

    with pytest.raises(PluginError, match="__aenter__ returned None"):
        await export_to(Toy())
    assert left == [PluginError]


async def test_sink_that_enters_another_object_is_left() -> None:
    """As with ``async with``: the lock may be that of the outer object."""
    left = []

    class Outer(MemorySink):
        async def __aenter__(self) -> object:
            return Inner()

        async def __aexit__(self, *args: Any) -> object:
            left.append("outer")
            return None

    class Inner(MemorySink):
        async def __aexit__(self, *args: Any) -> object:
            left.append("inner")
            return None

    assert (await export_to(Outer())).rows == 4
    assert left == ["outer"]


async def test_sink_without_a_check_says_so() -> None:
    """The guard around a sink has only the methods that the sink has."""
    with pytest.raises(PluginError, match="the sink for 'memory://x' cannot check a destination"):
        await trikafka.check_export("memory://x", plugins=[MemorySink()])
    assert (await export_to(MemorySink())).rows == 4
