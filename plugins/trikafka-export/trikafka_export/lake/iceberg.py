"""Iceberg tables, with ``pyiceberg``.

A plan becomes one snapshot. The same commit records the plan's number in the snapshot's summary and
in a table property.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog import _ENV_CONFIG, Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import index_by_name
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.utils.config import merge_config

from trikafka import ConfigurationError, ExportError
from trikafka.config.secrets import holds_secret, plain, secret
from trikafka.interfaces import ExportPlan, WrittenFile

from ..cut_responses import retried
from ..object_address import SCHEMES
from ..store import ExportStore
from .abandoned_plans import refuse_abandoned
from .catalog_faults import may_pass
from .footers import DataFile, read_footers
from .iceberg_files import data_file
from .library_errors import advised, explained
from .options import LakeOptions
from .stores import lake_store
from .table_fit import check_fit, check_ids, check_nullable, check_partitions
from .table_log import KEY, commit_with_retries, library_error, sync
from .vended_keys import VendedKeys, are_vended

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: The newest version of the format that pyiceberg can write.
_NEWEST = 2
#: The class of catalogs whose warehouse is a name, and not a path: only the server can read it.
_NAMED_WAREHOUSES = "RestCatalog"
_RETRIES = "commit.retry.num-retries"
#: Words in the names of catalog properties whose values are secret.
_SECRET_WORDS = ("password", "secret", "token", "credential", "auth", "key")
#: The properties of a table's store: the catalog's names, and trikafka's.
_STORE = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
}


# A plan must be committed only once:
#
# * Before the commit, the plan is looked up in a state of the table. The commit is based on exactly
#   that state. If two processes commit one plan, the catalog refuses the second, since its base is
#   no longer current. The next attempt loads the newer state and finds the plan there.
# * pyiceberg's own retries are switched off (commit.retry.num-retries = 0, in the loaded metadata
#   only). They would base the commit on a newer state in which the plan was not looked up.
# * The plan's number is a table property as well as a part of the snapshot's summary, because
#   snapshots expire.
# * pyiceberg removes the manifests of a refused commit. But a proxy, or the HTTP library of the
#   catalog, may repeat a request whose response was lost. Then the commit has succeeded, and only
#   its repetition is refused, while the table consists of these very manifests. Or the first
#   request still holds a lock, which is why its repetition is refused, and succeeds later. So the
#   removal is postponed (_Refused) until a state of the table lacks the snapshot and has another
#   one on top of its base. From then on the catalog refuses the late request, too, unless the table
#   is rolled back to that base. If the table has the plan, but its snapshot has expired, nothing
#   shows whose manifests it consists of, so all of them stay.
class IcebergLog:
    """The log of a table in an Iceberg catalog."""

    def __init__(self, options: LakeOptions) -> None:
        self.title = options.destination
        self._options = options
        self._secrets: tuple[str, ...] = tuple(_secrets_of(options.properties))
        if (
            "." not in self.title
            or any(not part.strip() for part in self.title.split("."))
            or "/" in self.title
        ):
            raise ConfigurationError(
                "with format=iceberg the destination is the name of a table, such as "
                f"lake.flights, not {self.title!r}"
            )
        self._catalog = self._loaded()

    def _loaded(self) -> Catalog:
        given = {name: plain(value) for name, value in self._options.properties.items()}
        name = self._options.catalog
        with self._said(f"cannot open the catalog {name or 'default'!r}"), advised():
            found = _opened(name, given)
        place = str(found.properties.get("warehouse", ""))
        if place and not any(kind.__name__ == _NAMED_WAREHOUSES for kind in type(found).__mro__):
            found.properties["warehouse"] = _absolute(place)
        self._secrets = tuple(_secrets_of(found.properties))
        return found

    def _said(self, what: str) -> Any:
        return explained(what, self._secrets)

    def _table(self) -> Table | None:
        """Return the newest state of the table; ``None`` if there is no table."""
        with self._said(f"cannot load the table {self.title}"):
            try:
                return self._catalog.load_table(self.title)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def _known(self, format: Mapping[str, Any]) -> Table:
        table = self._table()
        if table is None or str(table.metadata.table_uuid) != format["table"]:
            if table is None:
                raise ExportError(
                    f"the table {self.title} no longer exists: if it was renamed, export to its "
                    "new name; if it was dropped, choose another table"
                )
            raise ExportError(
                f"the table {self.title} is not the table that earlier exports wrote to: choose "
                "another table"
            )
        return table

    def place(self) -> ExportStore | None:
        """Return the store at the table's location; ``None`` if the table does not exist yet.

        Raises:
            ConfigurationError: Exports cannot write to that location.
        """
        table = self._table()
        if table is None:
            return None
        location = table.location()
        options = dict(self._options.store)
        scheme = urlsplit(location).scheme.lower()
        if scheme in SCHEMES:
            # Readers of Iceberg take a location as it is, and an address has its signs quoted.
            location = location.replace("%", "%25")
            offered = table.io.properties
            self._hide(offered)  # a catalog may issue temporary keys
            known = {
                f"store.{ours}": secret(str(offered[name]))
                for name, ours in _STORE.items()
                if name in offered
            }
            if not scheme.startswith("s3"):
                return lake_store(location, options)
            if "store.access_key_id" in options or not are_vended(
                offered, self._catalog.properties
            ):
                return lake_store(location, {**known, **options})
            rest = {
                name: value
                for name, value in known.items()
                if name in ("store.endpoint", "store.region")
            }
            return lake_store(location, {**rest, **options}, VendedKeys(offered, self._offered))
        if scheme not in ("", "file"):
            raise ConfigurationError(
                f"the table {self.title} is at {location}, where exports cannot write"
            )
        return lake_store(str(_folder(location)), {})

    def _offered(self) -> Mapping[str, Any]:
        """Return the current properties of the table's store, with the keys that were issued."""
        table = self._table()
        if table is None:
            raise ExportError(
                f"the table {self.title} no longer exists, so there are no keys for its store"
            )
        offered: Mapping[str, Any] = table.io.properties
        self._hide(offered)
        return offered

    def _hide(self, properties: Mapping[str, Any]) -> None:
        """Hide the secrets among these properties in errors.

        Duplicates are dropped, because a repeated export gets keys many times.
        """
        self._secrets = tuple(dict.fromkeys((*self._secrets, *_secrets_of(properties))))

    # --- before the first plan ---

    def pin(
        self, format: Mapping[str, Any], columns: pa.Schema, partition_by: Sequence[str] | None
    ) -> Mapping[str, Any]:
        """Create the table in the catalog, or accept the existing one.

        Raises:
            ConfigurationError: The columns or the partitions of the table do not fit.
            ExportError: The table has rows of an export whose plans are missing.
        """
        table = self._table()
        if table is None:
            table = self._made(columns, tuple(partition_by or ()))
        if table.metadata.format_version > _NEWEST:
            raise ConfigurationError(
                f"the table {self.title} is of format version {table.metadata.format_version}, "
                "which pyiceberg cannot write yet"
            )
        by = _partitioned_by(self.title, table)
        check_partitions(self.title, by, partition_by)
        check_fit(
            self.title,
            columns,
            schema_to_pyarrow(table.schema(), include_field_ids=False),
            "iceberg",
        )
        gone = [name for name in table.metadata.properties if name.startswith(f"{KEY}.")]
        if gone:
            raise ExportError(
                f"the table {self.title} has rows of an export whose plans are missing (see its "
                f"property {gone[0]}); this export would write these rows again: choose another "
                "table"
            )
        fields = dict(index_by_name(table.schema()))
        return {
            **format,
            "partition_by": list(by),
            "table": str(table.metadata.table_uuid),
            "fields": fields,
            "folder": "data",
            "location": table.location(),
        }

    def _made(self, columns: pa.Schema, by: Sequence[str]) -> Table:
        namespace = tuple(self.title.split("."))[:-1]
        location = None if self._options.location is None else _absolute(self._options.location)
        if location is not None:
            _check_location(location)

        def make() -> None:
            self._catalog.create_namespace_if_not_exists(namespace)
            making = self._catalog.create_table_transaction(
                self.title, columns, location=location, properties={"format-version": "2"}
            )
            # Without a location, the catalog derives one from a property of the namespace or from
            # its warehouse. Nothing is written before the commit.
            _check_location(making.table_metadata.location)
            if by:
                with making.update_spec() as spec:
                    if "topic" in by:
                        spec.add_identity("topic")
                    if "date" in by:
                        spec.add_field("timestamp", DayTransform(), "timestamp_day")
            making.commit_transaction()

        with self._said(f"cannot create the table {self.title}"), advised():
            # Another process may have created the table just now, or this one by a request whose
            # response was lost.
            with suppress(TableAlreadyExistsError, CommitFailedException):
                retried(make, may_pass)
        made = self._table()
        if made is None:
            raise ExportError(
                f"the table {self.title} was created by this export, and does not exist any more"
            )
        return made

    # --- plans ---

    def found(self, plan: ExportPlan) -> bool:
        """Return whether a table property or a snapshot names the plan."""
        return _has(self._known(plan.format), plan)

    def given_up(self, format: Mapping[str, Any], number: int) -> bool:
        """Return whether a table property marks the plan as abandoned."""
        return _given_up(format, number) in self._known(format).metadata.properties

    def read_files(self, store: ExportStore, files: Sequence[WrittenFile]) -> Sequence[DataFile]:
        """Return the entries for the table's log, read from the footers of the files."""
        return read_footers(store, files)

    def commit(self, plan: ExportPlan, files: Sequence[DataFile]) -> None:
        """Commit the files as one append."""

        def add(table: Table, refused: list[_Refused]) -> None:
            check_ids(self.title, plan.format["fields"], dict(index_by_name(table.schema())))
            check_nullable(self.title, schema_to_pyarrow(table.schema(), include_field_ids=False))
            by = _partitioned_by(self.title, table)
            if by and list(by) != list(plan.format["partition_by"]):
                raise ExportError(
                    f"the table {self.title} is partitioned by {list(by)} now, and was by "
                    f"{list(plan.format['partition_by'])} when the export was planned; nothing was "
                    "committed: change it back and export again, or export to another table"
                )
            self._append(table, plan, files, refused)

        if (found := self._once(plan, add)) is not None and _given_up(
            plan.format, plan.number
        ) in found.metadata.properties:
            refuse_abandoned(self.title, plan)

    def give_up(self, plan: ExportPlan) -> None:
        """Abandon the plan with a snapshot that has no files.

        To set only a property would not change the table's snapshot. A late commit of the plan,
        based on the same snapshot, could then still succeed.
        """
        taken = {_given_up(plan.format, plan.number): "true"}
        self._once(plan, lambda table, refused: self._append(table, plan, (), refused, taken))

    def _once(self, plan: ExportPlan, add: Callable[[Table, list[_Refused]], None]) -> Table | None:
        """Call ``add`` to make a commit, unless the table has one of this plan already.

        Return the state of the table with the earlier commit, or ``None`` after a new commit.
        """
        refused: list[_Refused] = []

        def look() -> tuple[Table, bool]:
            table = self._known(plan.format)
            refused[:] = [each for each in refused if not each.tidy(table, plan)]
            return table, _has(table, plan)

        def commit(table: Table) -> None:
            with self._said(f"cannot commit to the table {self.title}"):
                add(table, refused)
            refused.pop()  # this one has succeeded

        found = commit_with_retries(self.title, plan, look, commit, CommitFailedException, may_pass)
        # Outside of the attempts: they would take a failed fsync for a doubtful commit, find the
        # plan, and succeed.
        newest = found
        if newest is None:
            newest, _ = retried(look, lambda error: may_pass(library_error(error)))
        self._sync(newest)
        return found

    def _append(
        self,
        table: Table,
        plan: ExportPlan,
        files: Sequence[DataFile],
        refused: list[_Refused],
        more: Mapping[str, str] | None = None,
    ) -> None:
        own = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": own})  # not committed
        note = {
            f"{KEY}.app-id": str(plan.format["app_id"]),
            f"{KEY}.plan": str(plan.number),
            f"{KEY}.plan-id": plan.plan_id,
        }
        with table.transaction() as transaction:
            transaction.set_properties({_property(plan): str(plan.number), **(more or {})})
            with transaction.update_snapshot(snapshot_properties=note).fast_append() as append:
                refused.append(_Refused(append))
                for each in files:
                    append.append_data_file(data_file(table, each, plan.format["fields"]))

    def _sync(self, table: Table) -> None:
        if urlsplit(table.location()).scheme in ("", "file"):
            named = [table.metadata_location]
            snapshot = table.current_snapshot()
            if snapshot is not None:
                named += [
                    snapshot.manifest_list,
                    *(each.manifest_path for each in snapshot.manifests(table.io)),
                ]
            sync([path for path in map(_folder, named) if path.exists()])

    def version(self, plan: ExportPlan) -> int | None:
        """Return the id of the plan's snapshot."""
        return _snapshot_of(self._known(plan.format), plan)

    def offsets(
        self, format: Mapping[str, Any], topic: str, partition: int, low: int, high: int
    ) -> Iterator[pa.Array]:
        """Yield the offsets from ``low`` to ``high`` that the table has of a partition."""
        table = self._known(format)
        names = {
            name: table.schema().find_column_name(format["fields"][name])
            for name in ("topic", "partition", "offset")
        }
        if None in names.values():
            raise ExportError(
                f"the table {self.title} has lost its columns topic, partition or offset"
            )
        at = str(names["offset"])
        where = And(
            And(EqualTo(str(names["topic"]), topic), EqualTo(str(names["partition"]), partition)),
            And(GreaterThanOrEqual(at, low), LessThan(at, high)),
        )
        with self._said(f"cannot read the table {self.title}"):
            for batch in table.scan(
                row_filter=where, selected_fields=(at,)
            ).to_arrow_batch_reader():
                yield batch.column(0)


class _Refused:
    """A commit under way or refused. Its files stay until the table can no longer get them."""

    def __init__(self, append: Any) -> None:
        self._snapshot = append.snapshot_id
        self._base = append._parent_snapshot_id
        self._remove = append._clean_all_uncommitted
        append._clean_all_uncommitted = lambda: None

    def tidy(self, table: Table, plan: ExportPlan) -> bool:
        """Remove the files if the table can no longer get them.

        ``table`` is a state that was loaded after the commit was refused. Returns False if a later
        state has to decide.
        """
        has_it = table.metadata.snapshot_by_id(self._snapshot) is not None
        if has_it or (_has(table, plan) and _snapshot_of(table, plan) is None):
            return True
        # The state may also be older than the base, where several servers serve the catalog.
        states = [
            each.snapshot_id for each in ancestors_of(table.current_snapshot(), table.metadata)
        ]
        if not states or (self._base is not None and self._base not in states[1:]):
            return False
        self._remove()
        return True


def _opened(name: str | None, given: Mapping[str, Any]) -> Catalog:
    """Open a catalog as pyiceberg does, but with time limits for the calls of a REST catalog."""
    name = name or _ENV_CONFIG.get_default_catalog_name()
    whole = merge_config(_ENV_CONFIG.get_catalog_config(name) or {}, dict(given))
    uri = str(whole.get("uri", ""))
    type = str(whole.get("type") or "").lower()
    is_rest = type == "rest" or (not type and uri.startswith("http"))
    if is_rest and uri and not given.get("py-catalog-impl"):
        from .rest_catalog import TimedRestCatalog

        return TimedRestCatalog(name, **whole)
    return load_catalog(name, **given)


def _property(plan: ExportPlan) -> str:
    return f"{KEY}.{plan.format['app_id']}"


def _given_up(format: Mapping[str, Any], number: int) -> str:
    return f"{KEY}.{format['app_id']}.given-up.{number}"


def _has(table: Table, plan: ExportPlan) -> bool:
    """Return whether the table has the plan, even if its snapshot has expired."""
    return (
        int(table.metadata.properties.get(_property(plan), "0")) >= plan.number
        or _snapshot_of(table, plan) is not None
    )


def _snapshot_of(table: Table, plan: ExportPlan) -> int | None:
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        note = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if (note.get(f"{KEY}.app-id"), note.get(f"{KEY}.plan")) == (
            plan.format["app_id"],
            str(plan.number),
        ):
            return int(snapshot.snapshot_id)
    return None


def _partitioned_by(title: str, table: Table) -> tuple[str, ...]:
    """Return the names that the option ``partition_by`` has for the table's partitioning.

    Raises:
        ConfigurationError: The table is partitioned in another way.
    """
    found = []
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        if name == "topic" and isinstance(field.transform, IdentityTransform):
            found.append("topic")
        elif name == "timestamp" and isinstance(field.transform, DayTransform):
            found.append("date")
        else:
            raise ConfigurationError(
                f"the table {title} is partitioned by {field.transform} of {name}; exports can "
                "write only tables that are partitioned by topic or the day of timestamp"
            )
    return tuple(sorted(found, reverse=True))


def _absolute(location: str) -> str:
    """Return the absolute location.

    A catalog stores the location as given, and a process in another directory would look elsewhere.
    """
    return location if urlsplit(location).scheme else str(Path(location).expanduser().absolute())


def _check_location(location: str) -> None:
    """Check the location of a table that is to be created.

    Raises:
        ConfigurationError: The location is an address with a ``?`` or ``#``. pyiceberg leaves out
            what follows it, in each scheme, so all files of the table would have one name.
    """
    address = urlsplit(location)
    if address.scheme and (address.query or address.fragment):
        raise ConfigurationError(
            "the location of a new table, or of its warehouse, must not have a '?' or '#' in its "
            f"address: {location}"
        )


def _folder(location: str) -> Path:
    return Path(location.removeprefix("file://").removeprefix("file:"))


def _secrets_of(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, value in properties.items():
        text = str(plain(value))
        if any(word in name.lower() for word in _SECRET_WORDS):
            yield text
        elif holds_secret(text):
            yield text
            if (password := urlsplit(text).password) is not None:
                yield password
