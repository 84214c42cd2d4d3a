"""The command ``trikafka export``, and the content of its directory of Parquet files."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pyarrow.parquet as pq

from .running import run_program


async def export(servers: str, topic: str, group: str, destination: Path, *, by_spark: bool) -> str:
    """Run the command, and return its output.

    An export of so few records runs in threads, unless Spark is requested.

    Raises:
        ProgramFailedError: The command failed.
    """
    script = Path(sys.executable).with_name("trikafka")
    trikafka = [str(script)] if script.exists() else [sys.executable, "-m", "trikafka.cli"]
    command = [*trikafka, "export", topic, str(destination)]
    how = ["--option", "spark_above=0"] if by_spark else []
    return await run_program([*command, "--bootstrap-servers", servers, "--group", group, *how])


def files_of(destination: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the modification time of every file below the directory.

    The lock, an empty file, is left out.
    """
    files = dict[str, tuple[int, int]]()
    for path in sorted(destination.rglob("*")):
        # A staged file gets another name as soon as it is whole.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != "lock":
                files[str(path.relative_to(destination))] = (
                    path.stat().st_size,
                    path.stat().st_mtime_ns,
                )
    return files


def places_in(destination: Path, names: set[str]) -> list[tuple[int, int]]:
    """Return the partition and offset of every row of these Parquet files, sorted."""
    places = list[tuple[int, int]]()
    for name in names:
        table = pq.read_table(destination / name, columns=["partition", "offset"])
        places.extend(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    return sorted(places)
