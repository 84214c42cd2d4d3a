"""The parts of an export that plugins exchange: its runner and its format. No I/O, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from .sink import PlannedRange, Sink


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

    A sink keeps its runner for all plans of an exporter. The methods are called in sequence.
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


@runtime_checkable
class ExportFormat(Protocol):
    """A format of exports (hook ``trikafka_export_format``)."""

    def sink(self, scheme: str, options: Mapping[str, Any], plugins: Collection[object]) -> Sink:
        """Return the sink that writes this format.

        Args:
            scheme: The scheme of the destination.
            options: The options that the user gave, and the destination as ``destination``.
            plugins: The objects of the setting ``plugins``, for hooks that the sink calls.

        Raises:
            ConfigurationError: An option is not valid, or the format is not written there.
        """
