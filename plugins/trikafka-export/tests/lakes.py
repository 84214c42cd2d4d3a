"""Tables as destinations of exports, and their content according to an independent reader.

Delta and Iceberg tables have the same interface.
"""

from __future__ import annotations

import importlib
import shutil
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from known_topics import value_of
from trikafka_export.columns import SCHEMA


@dataclass
class Lake:
    """A table. ``destination`` and ``options`` are the arguments of an export."""

    destination: str
    options: dict[str, Any] = field(repr=False)
    #: The folder of its files.
    root: Path

    @property
    def format(self) -> str:
        return str(self.options["format"])

    def exists(self) -> bool:
        raise NotImplementedError

    def read(self) -> pa.Table:
        """Return all current rows, as a reader finds them."""
        raise NotImplementedError

    def files(self) -> int:
        """Return the number of data files of the newest version."""
        raise NotImplementedError

    def compact(self) -> None:
        """Merge the files as another program would, and remove the old ones."""
        raise NotImplementedError

    def delete(self, partition: int, offset: int) -> None:
        raise NotImplementedError

    def rows_of_day(self, day: date) -> list[int]:
        """Return the offsets of the rows of a day, found by the table's partitions."""
        raise NotImplementedError

    @staticmethod
    def columns() -> pa.Schema:
        """Return the columns of an export."""
        return SCHEMA

    def create(self, schema: pa.Schema, *, by_day: bool = False) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        raise NotImplementedError

    def append(self, rows: pa.Table) -> None:
        raise NotImplementedError

    def double(self) -> None:
        """Add all rows again."""
        self.append(self.read())

    def check(self, records: int, partitions: int = 4) -> pa.Table:
        """Check that every record is in the table once, unchanged."""
        rows = self.read()
        found = Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        assert set(found) == {
            (number % partitions, number // partitions) for number in range(records)
        }
        assert max(found.values(), default=1) == 1, "no row twice"
        values = zip(
            rows["partition"].to_pylist(),
            rows["offset"].to_pylist(),
            rows["value"].to_pylist(),
            strict=True,
        )
        for partition, offset, value in values:
            assert value == value_of(offset * partitions + partition)
        return rows


class DeltaLake(Lake):
    """A Delta table, read by delta-rs's own engine."""

    @property
    def table(self) -> Any:
        return importlib.import_module("deltalake").DeltaTable(self.destination)

    def exists(self) -> bool:
        return (self.root / "_delta_log").exists()

    def read(self) -> pa.Table:
        return pa.table(self.table.scan().read_all())

    def files(self) -> int:
        return len(self.table.file_uris())

    def compact(self) -> None:
        self.table.optimize.compact()
        self.table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def delete(self, partition: int, offset: int) -> None:
        self.table.delete(f"partition = {partition} AND offset = {offset}")

    def rows_of_day(self, day: date) -> list[int]:
        where = f"date = '{day.isoformat()}'"
        assert len(self.table.file_uris(file_pruning_predicate=where)) == 1
        return sorted(
            pa.table(self.table.scan(columns=["offset"], predicate=where).read_all())[
                "offset"
            ].to_pylist()
        )

    def create(self, schema: pa.Schema, *, by_day: bool = False) -> None:
        made = schema.append(pa.field("date", pa.date32())) if by_day else schema
        importlib.import_module("deltalake").DeltaTable.create(
            self.destination, schema=made, partition_by=["date"] if by_day else None
        )

    def drop(self) -> None:
        shutil.rmtree(self.root / "_delta_log")

    def append(self, rows: pa.Table) -> None:
        importlib.import_module("deltalake").write_deltalake(self.destination, rows, mode="append")


class StoredDelta(DeltaLake):
    """A Delta table in an object store."""

    @property
    def table(self) -> Any:
        import deltalake

        own = {
            name.removeprefix("store."): value
            for name, value in self.options.items()
            if name.startswith("store.")
        }
        return deltalake.DeltaTable(self.destination, storage_options={**own, "allow_http": "true"})


class IcebergLake(Lake):
    """An Iceberg table, read by pyiceberg from the catalog."""

    @property
    def catalog(self) -> Any:
        own = {
            name.removeprefix("catalog."): value
            for name, value in self.options.items()
            if name.startswith("catalog.")
        }
        return importlib.import_module("pyiceberg.catalog").load_catalog(
            self.options["catalog"], **own
        )

    @property
    def table(self) -> Any:
        return self.catalog.load_table(self.destination)

    def exists(self) -> bool:
        return bool(self.catalog.table_exists(self.destination))

    def read(self) -> pa.Table:
        return self.table.scan().to_arrow()

    def files(self) -> int:
        return len(list(self.table.scan().plan_files()))

    def compact(self) -> None:
        table = self.table
        rows = table.scan().to_arrow()
        table.overwrite(rows)  # and all files before are in no snapshot that is current
        snapshots = [
            each.snapshot_id
            for each in table.snapshots()
            if each.snapshot_id != table.current_snapshot().snapshot_id
        ]
        table.maintenance.expire_snapshots().by_ids(snapshots).commit()
        known = {each.file.file_path for each in self.table.scan().plan_files()}
        for path in self.root.rglob("*.parquet"):
            if f"file://{path}" not in known:
                path.unlink()

    def delete(self, partition: int, offset: int) -> None:
        self.table.delete(f"partition == {partition} and offset == {offset}")

    def rows_of_day(self, day: date) -> list[int]:
        where = f"timestamp >= '{day}T00:00:00+00:00' and timestamp < '{day}T23:59:59.999999+00:00'"
        scan = self.table.scan(row_filter=where, selected_fields=("offset",))
        assert len(list(scan.plan_files())) == 1
        return sorted(scan.to_arrow()["offset"].to_pylist())

    def create(self, schema: pa.Schema, *, by_day: bool = False) -> None:
        catalog = self.catalog
        catalog.create_namespace_if_not_exists("shop")
        table = catalog.create_table(self.destination, schema)
        if by_day:
            with table.update_spec() as spec:
                spec.add_field(
                    "timestamp",
                    importlib.import_module("pyiceberg.transforms").DayTransform(),
                    "day",
                )

    def drop(self) -> None:
        self.catalog.drop_table(self.destination)

    def append(self, rows: pa.Table) -> None:
        self.table.append(rows)


def make_lake(format: str, folder: Path) -> Lake:
    """Return a table that does not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if format == "delta":
        root = folder / "a table"
        return DeltaLake(str(root), {"format": "delta"}, root)
    options = {
        "format": "iceberg",
        "catalog": "lake",
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{folder}/catalog.db",
        "catalog.warehouse": f"file://{folder}/warehouse",
    }
    return IcebergLake("shop.flights", options, folder / "warehouse" / "shop" / "flights")
