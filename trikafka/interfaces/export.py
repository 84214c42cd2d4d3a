"""The parts of an export that plugins exchange: its runner and its format. No I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from .sink import ExportPlan, PlannedRange, WrittenFile


class RangeTask(Protocol):
    """The work of one planned range, made by a sink for a runner.

    A task can be pickled, so a runner may send it to other processes and machines.
    """

    @property
    def planned(self) -> PlannedRange:
        """The range."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the consumer that reads the range."""


@runtime_checkable
class ExportRunner(Protocol):
    """Runs the ranges of an export (hook ``trikafka_export_runner``).

    A sink makes its runners when it is made, and keeps them for all plans of an exporter. The
    methods are called in sequence.
    """

    @property
    def above(self) -> int | None:
        """The number of offsets that a plan of this runner exceeds.

        ``0`` stands for all plans: an export fails then if :meth:`check` does. ``None`` stands for
        no plan. Smaller plans are run by threads of the process.
        """

    def check(self) -> None:
        """Check what the runner needs, and start nothing. Called in a thread.

        Raises:
            ExportError: Something is missing.
        """

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Prepare to run ranges that are read with these settings.

        Raises:
            ConfigurationError: A setting cannot reach the place where the ranges run.
            ExportError: The runner does not start.
        """

    async def run(
        self, tasks: Sequence[Any], report: Callable[[int, int], None]
    ) -> Sequence[Exception | None]:
        """Run the tasks, each a :class:`RangeTask`.

        Args:
            tasks: The tasks; only the sink that made them knows their class.
            report: Called with the numbers of tasks and rows done, a few times a second.

        Returns:
            For each task the error of Kafka that ended it, or ``None``.

        Raises:
            ExportError: A task failed for another reason, or the runner failed.

        Cancellation: the tasks stop within about a second. What they have published stays.
        """

    async def close(self, limit: float) -> None:
        """Release what the runner holds, within ``limit`` seconds."""


class FileShape(Protocol):
    """The sizes and the compression that the user wants of files.

    They may differ from export to export. A format ignores what it does not have.
    """

    @property
    def compression(self) -> str:
        """The name of the compression; ``"none"`` for none."""

    @property
    def row_group_rows(self) -> int:
        """The most rows of a group, where a file consists of groups of rows."""


class FileWriter(Protocol):
    """A data file that is being written. All methods block."""

    def write(self, table: Any) -> None:
        """Append rows.

        Args:
            table: A :class:`pyarrow.Table`. All tables of a file have the schema that the file was
                opened with.

        Raises:
            OSError: The stream failed, such as on a full disk.
        """

    def close(self) -> None:
        """Write what ends the file, and release what the writer holds.

        The caller closes the stream. A file that is dropped is closed as well, and errors are
        ignored then.
        """


@runtime_checkable
class FileFormat(Protocol):
    """The kind of files that an export writes.

    An object can be pickled and has no state: it is sent with each task to the threads, processes
    and machines that write. All methods block.
    """

    @property
    def title(self) -> str:
        """The format's name in messages."""

    @property
    def suffix(self) -> str:
        """The end of the files' names, such as ``".csv"``.

        It begins with a dot and has no ``-`` or ``/``. All files of a destination with this suffix
        must be the export's own.
        """

    def open(self, stream: Any, schema: Any, planned: PlannedRange, shape: FileShape) -> FileWriter:
        """Begin a file.

        Args:
            stream: A binary file to write to, from its beginning, without seeking.
            schema: The :class:`pyarrow.Schema` of all rows.
            planned: The range that has the rows.
            shape: The sizes and the compression that the user wants.

        Returns:
            The writer. The caller stages, syncs, names and checksums the file.

        Raises:
            ConfigurationError: The format cannot hold such rows.
        """

    def count(self, file: Any) -> int:
        """Return the number of rows of a written file.

        Args:
            file: A binary file that can be read and sought.

        Raises:
            ValueError: The file is not whole.
            OSError: The file cannot be read.
        """


class TableLog(Protocol):
    """The log of one table, which has one commit a plan.

    The rows of a table are those of the files that its log lists. All methods block. Each reads the
    newest state of the table. They raise :exc:`trikafka.ExportError` and
    :exc:`trikafka.ConfigurationError`, which show no secret.
    """

    @property
    def title(self) -> str:
        """The table's name in messages."""

    def place(self) -> Any:
        """Return the store of the table's files and plans, an ``ExportStore`` of trikafka-export.

        ``None`` while the table's location is unknown.
        """

    def pin(
        self, format: Mapping[str, Any], columns: Any, partition_by: Sequence[str] | None
    ) -> Mapping[str, Any]:
        """Create the table, or accept an existing one whose columns fit.

        Args:
            format: The format so far.
            columns: The :class:`pyarrow.Schema` of the files.
            partition_by: The requested partitioning; ``None`` accepts the table's.

        Returns:
            The format with the table's identity, in its key ``table``.
        """

    def found(self, plan: ExportPlan) -> bool:
        """Return whether the table has the plan's commit, or the commit that abandoned the plan."""

    def read_files(self, store: Any, files: Sequence[WrittenFile]) -> Sequence[Any]:
        """Check files that are to be committed; return what :meth:`commit` needs to know of them.

        Args:
            store: The store that has the files.
            files: The files, as the tasks wrote them.

        Raises:
            FilesGoneError: A file is missing or changed (``trikafka_export.lake.abandoned_plans``).
            ExportError: A file cannot be read.
        """

    def commit(self, plan: ExportPlan, files: Sequence[Any]) -> None:
        """Add the files by one commit, unless the table has the plan.

        The plan's number is part of the same commit. Of several processes that try, exactly one
        commits.

        Args:
            plan: The plan; its work is closed.
            files: What :meth:`read_files` returned.

        Raises:
            ExportError: The plan was abandoned.
        """

    def give_up(self, plan: ExportPlan) -> None:
        """Take the plan's number by a commit without files, unless the table has the plan.

        :meth:`given_up` returns which of the two happened.
        """

    def given_up(self, format: Mapping[str, Any], number: int) -> bool:
        """Return whether the plan of that number was abandoned.

        None of its files is in the table then, and none ever will be.

        Raises:
            ExportError: The table is not the pinned one.
        """

    def version(self, plan: ExportPlan) -> int | None:
        """Return the version that the plan's commit made, if the table's history has it."""

    def offsets(
        self, format: Mapping[str, Any], topic: str, partition: int, low: int, high: int
    ) -> Iterator[Any]:
        """Yield the offsets ``low <= offset < high`` of a partition in the table's rows.

        Each item is a :class:`pyarrow.Array` of offsets, in any order.
        """


@runtime_checkable
class ExportFormat(Protocol):
    """A format of exports (hook ``trikafka_export_format``).

    It answers two questions: what becomes of a range's Arrow batches (:meth:`files`), and what is
    one commit (:meth:`table`).
    """

    @property
    def name(self) -> str:
        """The format's name, which each plan keeps.

        A destination keeps the format of its first export.
        """

    @property
    def option_names(self) -> Collection[str]:
        """The names of the format's own options, beside those of every export.

        A name that ends with a dot stands for all options that begin with it.
        """

    def files(self, options: Mapping[str, Any]) -> FileFormat:
        """Return the kind of the files.

        Args:
            options: The options that the user gave, with the destination as ``destination``.

        Raises:
            ConfigurationError: An option is not valid.
        """

    def table(self, options: Mapping[str, Any]) -> Callable[[], TableLog] | None:
        """Return a function that opens the log of a table, which is called in a thread.

        ``None`` stands for files alone: a file counts once the export's manifest lists it.

        Args:
            options: The options that the user gave, with the destination as ``destination``.

        Raises:
            ConfigurationError: An option is not valid, or a library is missing.
        """
