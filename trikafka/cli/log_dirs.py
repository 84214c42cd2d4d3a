"""``trikafka cluster log-dirs``: what lies in the brokers' directories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import others
from .tables import say, say_json, table

if TYPE_CHECKING:
    from .._api.admin.log_dirs import LogDirDescription

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.command("log-dirs")
@output_option
@common_options
def log_dirs(common: Common, output: str) -> None:
    """Show the log directories of every broker: replicas, their size, and free space."""
    found = ask(common, lambda admin: others(admin.describe_log_dirs()))
    rows = [
        (broker, path, directory)
        for broker, directories in sorted(found.items())
        for path, directory in sorted(directories.items())
    ]
    if output == "json":
        say_json([_as_json(*row) for row in rows])
        return
    header = ("BROKER", "DIRECTORY", "REPLICAS", "SIZE", "FREE", "VOLUME", "STATE")
    say(table(header, [tuple(_row(*row)) for row in rows]))


def _row(broker: int, path: str, directory: LogDirDescription) -> Iterator[object]:
    yield broker
    yield path
    yield len(directory.replicas)
    yield readable(sum(replica.size for replica in directory.replicas.values()))
    yield readable(directory.usable_bytes)
    yield readable(directory.total_bytes)
    yield _state(directory)


def _state(directory: LogDirDescription) -> str:
    if directory.error is not None:
        return "offline"
    return "cordoned" if directory.is_cordoned else "online"


def readable(size: int | None) -> str | None:
    """Return a number of bytes with a unit."""
    if size is None:
        return None
    number = float(size)
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"


def _as_json(broker: int, path: str, directory: LogDirDescription) -> dict[str, Any]:
    return {
        "broker": broker,
        "directory": path,
        "state": _state(directory),
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
        "replicas": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "size": replica.size,
                "lag": replica.offset_lag,
                "future": replica.is_future,
            }
            for tp, replica in sorted(directory.replicas.items())
        ],
    }
