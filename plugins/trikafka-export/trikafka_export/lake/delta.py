"""Delta Lake tables, by ``deltalake`` (delta-rs).

A plan is one commit, identified by a transaction id of Delta (app id and version).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction

from trikafka import ConfigurationError, ExportError
from trikafka.config.secrets import holds_secret, plain
from trikafka.interfaces import ExportPlan, WrittenFile

from ..cut_responses import is_cut, uncut
from ..object_address import ObjectAddress
from ..store import ExportStore
from .abandoned_plans import refuse_abandoned
from .columns import table_schema
from .footers import Bounds, DataFile, read_footers
from .library_errors import explained
from .options import LakeOptions
from .stores import folder_of, lake_store
from .table_fit import check_fit, check_nullable, check_partitions, check_still
from .table_log import KEY, commit_with_retries, sync
from .waiting import responded

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The first and last microsecond of the years that times in JSON can have.
_FIRST_TIME = -62_135_596_800_000_000
_LAST_TIME = 253_402_300_799_999_999
#: Parts of a folder's path with which deltalake cannot make a table. It looks for "a%20b" in "a b",
#: and for "a\b" in "a/b".
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}" + (r"|\\" if os.sep == "/" else ""))
#: The entries of a table's log that are read at a time.
_ENTRIES = 100
#: Options of a store that an error may show: without the endpoint it would not be understood.
_SHOWN = re.compile("endpoint|region|account_name|allow_http|timeout|style_request")
#: Table features that files which are merely added would violate.
_NOT = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableRowTracking")


# How a plan is committed once:
#
# * The commit carries Delta's transaction action: the export's app id, with the plan's number as
#   its version. Readers ignore it, and Delta keeps it when it cleans up the log.
# * The id is looked for in a version of the table, and the commit is based on exactly that version.
#   If two processes commit one plan, both commits have the same id. Delta's conflict check then
#   refuses the second, and its next attempt finds the id.
# * A plan is abandoned by a commit without files under the same id, so it conflicts with a late
#   commit in the same way. A second id marks it as abandoned.
#
# After the commit the log entry is written to disk (fsync), before the manifest says that the plan
# is done: delta-rs does not do that for a local folder.
class DeltaLog:
    """A Delta table in a folder, or below a prefix of an object store."""

    def __init__(self, options: LakeOptions) -> None:
        self._store = lake_store(options.destination, options.store)
        self._root = folder_of(self._store)
        self.title = self._store.title
        self._uri, self._options = self._reached(options)

    def _reached(self, options: LakeOptions) -> tuple[str, dict[str, str] | None]:
        if self._root is not None:
            self._check_path(self._root)
            return str(self._root), None
        address = ObjectAddress.of(options.destination, options.store)
        self._check_prefix(address.url)
        given = {**address.config, **address.client}
        return address.url, {
            name: str(value).lower() if isinstance(value, bool) else plain(value)
            for name, value in given.items()
        }

    def _check_path(self, root: Path) -> None:
        """Refuse a path that deltalake misreads.

        Raises:
            ConfigurationError: The path is refused.
        """
        if (found := _MISREAD.search(str(root))) is not None:
            raise ConfigurationError(
                f"the folder of a Delta table must have no {found[0]!r} in its path, which "
                f"deltalake takes for a part of an address: {root}"
            )

    def _check_prefix(self, url: str) -> None:
        """Refuse a prefix of an object store that deltalake misreads.

        Raises:
            ConfigurationError: The prefix is refused.
        """
        path = unquote(urlsplit(url).path)
        if (found := _MISREAD.search(path)) is not None:
            raise ConfigurationError(
                f"the prefix of a Delta table must have no {found[0]!r}, which deltalake misreads: "
                f"{url}"
            )

    def place(self) -> ExportStore:
        """Return the destination's store."""
        return self._store

    def _said(self, what: str) -> Any:
        given = self._options or {}
        secrets = [
            text
            for name, text in given.items()
            if not _SHOWN.search(name) or holds_secret(text) or "?" in text
        ]
        return explained(what, secrets)

    def _table(self) -> deltalake.DeltaTable | None:
        """Return the newest version of the table; ``None`` if there is no table."""
        with self._said(f"cannot read the Delta table {self.title}"):
            try:
                return uncut(lambda: deltalake.DeltaTable(self._uri, storage_options=self._options))
            except TableNotFoundError:
                return None

    def _known(self, format: Mapping[str, Any]) -> deltalake.DeltaTable:
        table = self._table()
        if table is None or str(table.metadata().id) != format.get(
            "table", str(table.metadata().id)
        ):
            what = (
                "no longer exists"
                if table is None
                else "is not the table that earlier exports wrote to"
            )
            raise ExportError(f"the Delta table {self.title} {what}: choose another destination")
        return table

    # --- before the first plan ---

    def pin(
        self, format: Mapping[str, Any], columns: pa.Schema, partition_by: Sequence[str] | None
    ) -> Mapping[str, Any]:
        """Create the table, or accept the existing one.

        Raises:
            ConfigurationError: The table does not fit.
        """
        table = self._table()
        if table is None:
            self._refuse_strangers()
            self._make(columns, tuple(partition_by or ()))
            table = self._table()
        if table is None:
            raise ExportError(f"the Delta table {self.title} was made and no longer exists")
        by = self._taken(table, columns, partition_by, format.get("app_id"))
        return {**format, "partition_by": list(by), "table": str(table.metadata().id)}

    def _make(self, columns: pa.Schema, by: Sequence[str]) -> None:
        schema = columns.append(pa.field("date", pa.date32())) if "date" in by else columns
        # A refusal, or a table that is there (which mode="ignore" accepts), means that another
        # process has just created it, or that a request was sent twice because its first response
        # was lost. The caller checks whether the table fits.
        with suppress(CommitFailedError), self._said(f"cannot make the Delta table {self.title}"):
            uncut(
                lambda: deltalake.DeltaTable.create(
                    self._uri,
                    schema=schema,
                    mode="ignore",
                    partition_by=list(by),
                    storage_options=self._options,
                )
            )
        self._sync(0)

    def _refuse_strangers(self) -> None:
        stranger = next(self._store.data_files(), None)
        if stranger is not None:
            raise ExportError(
                f"{self.title} holds Parquet files (such as {stranger}) and is no Delta table; a "
                "new table needs a directory without them"
            )

    def _taken(
        self,
        table: deltalake.DeltaTable,
        columns: pa.Schema,
        asked: Sequence[str] | None,
        app_id: str | None,
    ) -> tuple[str, ...]:
        """Check an existing table; return its partitioning.

        ``app_id`` is the id of an export that began before its plans named the table.
        """
        found = table.metadata()
        by = tuple(found.partition_columns)
        check_partitions(self.title, sorted(by, reverse=True), asked)
        wanted = columns.append(pa.field("date", pa.date32())) if "date" in by else columns
        check_fit(self.title, wanted, _schema(table), "delta")
        self._check_features(table)
        with self._said(f"cannot read the history of {self.title}"):
            ours = next(
                (
                    each
                    for each in self._history(table)
                    if (_note(each) or {}).get("app_id", app_id) != app_id
                ),
                None,
            )
        if ours is not None:
            raise ExportError(
                f"{self.title} has rows of an export whose plans are missing (version "
                f"{ours['version']} of the table); this export would write them again: choose "
                "another destination"
            )
        return tuple(sorted(by, reverse=True))

    def _check_features(self, table: deltalake.DeltaTable) -> None:
        """Raise :exc:`ConfigurationError` if the table has a feature that files would violate."""
        given = table.metadata().configuration
        for name in given:
            if name.startswith(_NOT) and given[name] not in ("none", "false"):
                raise ConfigurationError(
                    f"the Delta table {self.title} has {name}, which files that are added would "
                    "not keep; nothing was committed: remove it, or export to another table"
                )

    # --- plans ---

    def found(self, plan: ExportPlan) -> bool:
        """Return whether the table has the transaction id.

        Delta keeps the id when it forgets the history.
        """
        return self._has(self._known(plan.format), plan)

    def given_up(self, format: Mapping[str, Any], number: int) -> bool:
        """Return whether the table has the transaction id of the abandonment."""
        return self._is_given_up(self._known(format), format, number)

    def _is_given_up(
        self, table: deltalake.DeltaTable, format: Mapping[str, Any], number: int
    ) -> bool:
        with self._said(f"cannot read the Delta table {self.title}"):
            return table.transaction_version(_given_up(format, number)) is not None

    def _has(self, table: deltalake.DeltaTable, plan: ExportPlan) -> bool:
        with self._said(f"cannot read the Delta table {self.title}"):
            return (table.transaction_version(plan.format["app_id"]) or 0) >= plan.number

    def read_files(self, store: ExportStore, files: Sequence[WrittenFile]) -> Sequence[DataFile]:
        """Return the entries of the files, by their footers."""
        return read_footers(store, files)

    def commit(self, plan: ExportPlan, files: Sequence[DataFile]) -> None:
        """Commit the files as one append."""
        by = list(plan.format.get("partition_by", ()))
        actions = [_added(each, by) for each in files]
        columns = table_schema(plan.format, dict.fromkeys(each.topic for each in files))

        def add(table: deltalake.DeltaTable) -> None:
            if sorted(table.metadata().partition_columns, reverse=True) != by:
                raise ExportError(
                    f"the Delta table {self.title} is not partitioned by {by} any more, as its "
                    "exports are; nothing was committed: change it back and export again, or "
                    "export to another table"
                )
            check_still(self.title, columns, _schema(table), "delta")
            check_nullable(self.title, _schema(table))
            self._check_features(table)
            self._write(table, plan, actions, {}, [])

        if (found := self._once(plan, add)) is not None and self._is_given_up(
            found, plan.format, plan.number
        ):
            refuse_abandoned(self.title, plan)

    def give_up(self, plan: ExportPlan) -> None:
        """Abandon the plan by a commit with its transaction id.

        Of this commit and the plan's own, Delta refuses the second.
        """
        taken = Transaction(_given_up(plan.format, plan.number), 1)
        self._once(plan, lambda table: self._write(table, plan, [], {"given_up": True}, [taken]))

    def _once(
        self, plan: ExportPlan, add: Callable[[deltalake.DeltaTable], None]
    ) -> deltalake.DeltaTable | None:
        """Call ``add`` to make a commit, unless the plan's number is taken.

        Return the version of the table in which it was taken, or ``None`` after a commit.
        """

        def look() -> tuple[deltalake.DeltaTable, bool]:
            table = self._known(plan.format)
            return table, self._has(table, plan)

        def commit(table: deltalake.DeltaTable) -> None:
            with self._said(f"cannot commit to the Delta table {self.title}"):
                add(table)

        found = commit_with_retries(self.title, plan, look, commit, CommitFailedError, is_cut)
        # Outside of the attempts: they would take a failed fsync for a doubtful commit, find the
        # plan, and succeed.
        self._sync(uncut(lambda: self.version(plan)))
        return found

    def _write(
        self,
        table: deltalake.DeltaTable,
        plan: ExportPlan,
        actions: Sequence[AddAction],
        more: Mapping[str, Any],
        transactions: Sequence[Transaction],
    ) -> None:
        app_id = str(plan.format["app_id"])
        note = {"app_id": app_id, "plan": plan.number, "plan_id": plan.plan_id, **more}
        properties = CommitProperties(
            custom_metadata={"userMetadata": json.dumps({KEY: note})},
            app_transactions=[Transaction(app_id, plan.number), *transactions],
        )
        table.create_write_transaction(
            list(actions),
            "append",
            table.schema(),
            table.metadata().partition_columns,
            commit_properties=properties,
        )

    def _sync(self, version: int | None) -> None:
        if self._root is not None and version is not None:
            entry = self._root / "_delta_log" / f"{version:020d}.json"
            sync([entry] if entry.exists() else [])

    def version(self, plan: ExportPlan) -> int | None:
        """Return the version by the commit's own metadata."""
        table = self._known(plan.format)
        with self._said(f"cannot read the history of {self.title}"):
            for each in self._history(table):
                note = _note(each)
                if note is not None and (note["app_id"], note["plan"]) == (
                    plan.format["app_id"],
                    plan.number,
                ):
                    return int(each["version"])
        return None

    # DeltaTable.history() holds Python's global lock while it waits for the store: a store that
    # does not respond would stop the whole process, with the renewal of the lock and its clients.
    def _history(self, table: deltalake.DeltaTable) -> Iterator[Mapping[str, Any]]:
        """Yield the commits that the table's log still has, the newest first."""
        newest = table.version()
        done = newest + 1
        while done > 0:
            # Most searches end at the newest entry.
            first = max(0, done - _ENTRIES) if done <= newest else newest
            entries = self._store.each(self._entry, range(done - 1, first - 1, -1))
            responded()
            for entry in entries:
                if entry is None:
                    return
                yield entry
            done = first

    def _entry(self, version: int) -> Mapping[str, Any] | None:
        """Return the commit of a version; ``None`` if the log does not have it any more."""
        try:
            text = self._store.read_data(f"_delta_log/{version:020d}.json")
        except FileNotFoundError:
            return None
        actions = (json.loads(line) for line in text.splitlines() if b'"commitInfo"' in line)
        found = next((each["commitInfo"] for each in actions if "commitInfo" in each), None)
        return {**(found or {}), "version": version}

    def offsets(
        self, format: Mapping[str, Any], topic: str, partition: int, low: int, high: int
    ) -> Iterator[pa.Array]:
        """Yield offsets by a query over the files that may contain them."""
        quoted = topic.replace("'", "''")
        where = (
            f"topic = '{quoted}' AND partition = {partition} AND offset >= {low} AND offset < "
            f"{high}"
        )
        table = self._known(format)
        try:
            with self._said(f"cannot read the Delta table {self.title}"):
                for batch in pa.RecordBatchReader.from_stream(
                    table.scan(columns=["offset"], predicate=where)
                ):
                    yield batch.column(0)
        except ExportError as error:
            # repair() holds Python's global lock, too: it is not called for a silent store.
            if "not found" in str(error.__cause__ or error):
                self._tell_lost(table, error)
            raise

    def _tell_lost(self, table: deltalake.DeltaTable, error: ExportError) -> None:
        """Raise :exc:`ExportError` with all files of the table that are missing.

        That says more than the error about the first missing file.
        """
        with self._said(f"cannot read the Delta table {self.title}"):
            gone = table.repair(dry_run=True)["files_removed"]
        if gone:
            more = "" if len(gone) == 1 else f" and {len(gone) - 1:,} more"
            raise ExportError(
                f"the Delta table {self.title} lists files that do not exist ({gone[0]}{more}), "
                "so it cannot be read: restore them, or remove them from the table by "
                "deltalake.DeltaTable(...).repair(), after which a check lists the missing records"
            ) from error


def _given_up(format: Mapping[str, Any], number: int) -> str:
    return f"{format['app_id']}:given-up:{number}"


def _schema(table: deltalake.DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _note(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the export's metadata of a commit; ``None`` for other commits."""
    try:
        found = json.loads(entry.get("userMetadata") or "null")
        note = found[KEY]
        return {"app_id": str(note["app_id"]), "plan": int(note["plan"])}
    except (ValueError, KeyError, TypeError):
        return None


def _added(each: DataFile, by: Sequence[str]) -> AddAction:
    file, day = each.file, each.day
    values: dict[str, str | None] = {"topic": each.topic} if "topic" in by else {}
    if "date" in by:
        values["date"] = None if day is None else (_EPOCH + timedelta(days=day)).date().isoformat()
    lows: dict[str, Any] = {"partition": each.partition}
    highs = dict(lows)
    nulls = {"partition": 0}
    if "topic" not in by:
        lows["topic"] = highs["topic"] = each.topic
        nulls["topic"] = 0
    for name, bounds in (("offset", each.offsets), ("timestamp", each.times)):
        if bounds is not None:
            nulls[name] = bounds.nulls
            lows |= _bound_of(name, bounds, bounds.low)
            highs |= _bound_of(name, bounds, bounds.high)
    stats = {"numRecords": file.rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return AddAction(
        file.name, file.bytes, values, int(time.time() * 1000), True, json.dumps(stats)
    )


def _bound_of(name: str, bounds: Bounds, value: int) -> dict[str, Any]:
    if name == "offset":
        return {name: value}
    if bounds.low < _FIRST_TIME or bounds.high > _LAST_TIME:
        return {}
    moment = (_EPOCH + timedelta(microseconds=value)).replace(tzinfo=None)
    return {name: f"{moment.isoformat(timespec='microseconds')}Z"}
