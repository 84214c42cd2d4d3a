"""``trikafka.export``, ``open_exporter`` and ``check_export``: the entries to trikafka-export.

The exporter is a package of its own, whose module ``trikafka_export.exporter`` is imported at the
first call. These functions have the public arguments. That module checks them, and does the rest.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ..config import ConsumerConfig
from ..errors import PluginError
from ..interfaces import ExportCheck, Exporter, ExportProgress, ExportResult
from ..types import TopicPartition
from .client.opens import opens

_PACKAGE = "trikafka_export"


def _exporting() -> Any:
    """Return the module of the package that exports.

    Raises :exc:`PluginError` if the package is not installed.
    """
    try:
        return import_module(f"{_PACKAGE}.exporter")
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:
            raise
        raise PluginError(
            "exports need the package trikafka-export: pip install trikafka-export (from a clone: "
            "pip install ./plugins/trikafka-export)"
        ) from error


@opens
async def open_exporter(
    topics: str | Iterable[str],
    destination: str | os.PathLike[str],
    *,
    start: str | int | Mapping[TopicPartition, int] = "earliest",
    max_records_per_file: int = 1_000_000,
    min_records_per_file: int = 1,
    min_bytes_per_file: int = 1,
    max_file_delay_ms: int = 3_600_000,
    group_id: str | None = None,
    fail_on_data_loss: bool = True,
    task_timeout_ms: int = 300_000,
    sink_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
    **client_settings: Any,
) -> AsyncIterator[Exporter]:
    """Open an :class:`Exporter`; arguments and errors are those of :func:`export`.

    A run may leave records to a later run of this exporter, if they would make a file with fewer
    than ``min_records_per_file`` or ``min_bytes_per_file``. A later run exports them once there are
    enough, or once they have waited for ``max_file_delay_ms``. A new exporter counts that time from
    its own first run. It estimates bytes by the files that it has written, so its first run leaves
    no records because of ``min_bytes_per_file``.

    Args:
        topics: As in :func:`export`.
        destination: As in :func:`export`.
        start: As in :func:`export`.
        max_records_per_file: As in :func:`export`.
        min_records_per_file: The least number of records for a file, at most
            ``max_records_per_file``.
        min_bytes_per_file: The least estimated size of a file, in bytes.
        max_file_delay_ms: The longest wait for that number or size, in milliseconds.
        group_id: As in :func:`export`.
        fail_on_data_loss: As in :func:`export`.
        task_timeout_ms: As in :func:`export`.
        sink_options: As in :func:`export`.
        on_progress: As in :func:`export`.
        client_settings: As in :func:`export`.

    Raises:
        ConfigurationError: A wrong argument or setting, before any I/O.
        PluginError: No plugin writes to this destination.
        ExportError: The destination cannot be written, or another export has locked it.
    """
    package = _exporting()
    sink_options = package.hidden_options(sink_options)
    client_settings = ConsumerConfig.hidden(client_settings)
    block = package.open_exporter(
        topics,
        destination,
        start=start,
        max_records_per_file=max_records_per_file,
        min_records_per_file=min_records_per_file,
        min_bytes_per_file=min_bytes_per_file,
        max_file_delay_ms=max_file_delay_ms,
        group_id=group_id,
        fail_on_data_loss=fail_on_data_loss,
        task_timeout_ms=task_timeout_ms,
        sink_options=sink_options,
        on_progress=on_progress,
        **client_settings,
    )
    async with block as exporter:
        yield exporter


async def export(
    topics: str | Iterable[str],
    destination: str | os.PathLike[str],
    *,
    start: str | int | Mapping[TopicPartition, int] = "earliest",
    max_records_per_file: int = 1_000_000,
    group_id: str | None = None,
    fail_on_data_loss: bool = True,
    task_timeout_ms: int = 300_000,
    sink_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
    **client_settings: Any,
) -> ExportResult:
    """Write all records that the destination does not hold yet, each exactly once.

    The first export begins at ``start``; each later one where the previous one ended. An export
    that was killed is finished first. With a ``group_id`` the group's offsets are committed after
    the manifest, so that the group's lag is what is not exported yet.

    A partition that times out does not delay others: these are published, and the partition is
    retried until it has made no progress for ``task_timeout_ms`` since its first timeout (KIP-572).

    Args:
        topics: A topic's name, or several.
        destination: A path or an address; its scheme selects the sink.
        start: ``"earliest"``, a time in ms since the epoch, or an offset for each partition.
        max_records_per_file: The number of records for a file.
        group_id: The group whose offsets show the progress.
        fail_on_data_loss: False goes on where records, or their topic, are gone; report and
            manifest name them.
        task_timeout_ms: The limit without progress, in milliseconds. 0: no retry.
        sink_options: Options of the sink, by name.
        on_progress: A plain function that is called with an :class:`ExportProgress` in this task;
            it must be quick.
        client_settings: Those of :func:`open_consumer`. ``isolation_level`` is ``read_committed``
            by default; a destination keeps the one of its first export.

    Returns:
        The report of what was done.

    Raises:
        ExportIncompleteError: Some partitions could not be exported. The error has the report of
            the others.
        ExportError: The destination cannot be written, belongs to something else, or another export
            is at work there; records are gone from the log; or the work failed.
        PluginError: No plugin writes to this destination.
        ConfigurationError: A wrong argument or setting, before any I/O.

    When cancelled, an unfinished plan remains, and the next export finishes it.
    """
    sink_options = _exporting().hidden_options(sink_options)
    client_settings = ConsumerConfig.hidden(client_settings)
    async with open_exporter(
        topics,
        destination,
        start=start,
        max_records_per_file=max_records_per_file,
        group_id=group_id,
        fail_on_data_loss=fail_on_data_loss,
        task_timeout_ms=task_timeout_ms,
        sink_options=sink_options,
        on_progress=on_progress,
        **client_settings,
    ) as exporter:
        return await exporter.run()


async def check_export(
    destination: str | os.PathLike[str],
    *,
    topics: str | Iterable[str] = (),
    sink_options: Mapping[str, Any] | None = None,
    plugins: Iterable[object] = (),
    deep: bool = False,
) -> ExportCheck:
    """Count a destination's files and rows, and compare them with its manifests.

    Lost, changed and foreign files are reported. All topics are counted, not only those in
    ``topics``. Kafka is not asked. A destination whose exports found no record has nothing to
    count, and counts as good.

    Args:
        destination: The destination of the exports.
        topics: Topics that the destination must hold.
        sink_options: Options of the sink. Without a format, a directory's own format is used.
        plugins: Plugins, as for :func:`export`.
        deep: Read all files and compare each byte with the checksums in the manifests. Files
            without a checksum (of older releases) are decoded instead, and counted as ``unhashed``:
            a changed byte may stay unnoticed in these.

    Returns:
        The counts and the findings.

    Raises:
        ExportError: There was no export, or none of one of the ``topics``; an export is at work; a
            manifest is damaged; or files cannot be read.
        PluginError: No plugin writes to this destination, or the plugin cannot check it.

    May be cancelled at any time.
    """
    found: ExportCheck = await _exporting().check_export(
        destination, topics=topics, sink_options=sink_options, plugins=plugins, deep=deep
    )
    return found
