"""Changes of a table by others, and lost responses, at the moment of a plan's commit.

No Kafka: a plan's files are written by hand.
"""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
import trio.testing
from lakes import IcebergLake, Lake, StoredDelta, make_lake
from lossy_catalog import FaultyCatalog
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
    ServiceUnavailableError,
)
from requests.exceptions import ConnectionError, ConnectTimeout, ProxyError, SSLError, Timeout
from s3_server import S3Server
from sqlalchemy.exc import OperationalError
from trikafka_export.directory_store import DirectoryStore
from trikafka_export.lake.catalog_faults import may_pass
from trikafka_export.lake.columns import TableColumns, table_schema
from trikafka_export.lake.delta import DeltaLog
from trikafka_export.lake.footers import DataFile, read_footers
from trikafka_export.lake.formats import open_table
from trikafka_export.lake.options import lake_options
from trikafka_export.lake.sink import LakeSink
from trikafka_export.plugin import trikafka_sink

from trikafka import ConfigurationError, ExportError
from trikafka.interfaces import ExportPlan, PlannedRange, TableLog, WrittenFile

TIME = 1_700_000_000_000_000


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made = make_lake(request.param, tmp_path / "lake")
    made.root.mkdir(parents=True, exist_ok=True)
    return made


def log_of(lake: Lake, **options: str) -> TableLog:
    return open_table(lake_options({**lake.options, **options, "destination": lake.destination}))


def pinned(log: TableLog, lake: Lake) -> Mapping[str, Any]:
    return log.pin({"name": lake.format, "app_id": "the-app"}, columns(lake), None)


def columns(lake: Lake) -> pa.Schema:
    return table_schema({"name": lake.format}, [])


def plan_of(format: Mapping[str, Any], number: int, rows: int = 10) -> ExportPlan:
    planned = PlannedRange("t", 0, (number - 1) * rows, number * rows, f"t-{number}.parquet")
    return ExportPlan(
        number, f"id-{number}", "", None, {"t": None}, "read_committed", (planned,), {}, format
    )


def files_of(
    lake: Lake,
    log: TableLog,
    plan: ExportPlan,
    time: int = TIME,
    put: Callable[[str, bytes], Any] | None = None,
) -> list[DataFile]:
    """Write the plan's one file, as the tasks would."""
    (planned,) = plan.ranges
    name = f"{plan.format['folder']}/{planned.name}" if "folder" in plan.format else planned.name
    store = log.place()
    assert store is not None
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp": time,
            "value": b"v%d" % offset,
        }
        for offset in range(planned.start, planned.end)
    ]
    schema = TableColumns(plan.format, None).numbered(columns(lake))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, columns(lake)).cast(schema), sink)
    data = sink.getvalue().to_pybytes()
    put(name, data) if put is not None else at(lake.root / name).write_bytes(data)
    written = WrittenFile(planned, name, planned.start, planned.end, len(rows), len(data))
    return read_footers(store, [written])


def at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def offsets(lake: Lake) -> Sequence[int]:
    return sorted(lake.read()["offset"].to_pylist())


@pytest.mark.parametrize("catalog", ["ResendingCatalog", "LateCatalog"])
def test_commit_sent_twice_leaves_the_table_whole(catalog: str, tmp_path: Path) -> None:
    """A commit that was sent twice, and carried out early or late, leaves the table whole.

    One of both requests is refused, and the library then removes files that the other one adds.
    """
    lake = make_lake("iceberg", tmp_path / "lake")
    lake.create(columns(lake))
    log = log_of(
        lake, **{"catalog.type": "", "catalog.py-catalog-impl": f"lossy_catalog.{catalog}"}
    )
    plan = plan_of(pinned(log, lake), 1)
    log.commit(plan, files_of(lake, log, plan))
    assert offsets(lake) == [*range(10)]
    assert log.version(plan) is not None


def first_plan(path: Path) -> tuple[IcebergLake, TableLog, ExportPlan, list[DataFile]]:
    """Return a new Iceberg table, its log, and the first plan with its files."""
    lake = make_lake("iceberg", path / "lake")
    lake.create(columns(lake))
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    assert isinstance(lake, IcebergLake)
    return lake, log, plan, files_of(lake, log, plan)


def test_files_of_an_expired_snapshot_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot may expire before the export looks at the table that has its rows."""
    lake, log, plan, files = first_plan(tmp_path)
    known = log._known  # type: ignore[attr-defined]
    looks = []

    def after_others(format: Any) -> Any:
        looks.append(1)
        if len(looks) == 2:
            own = lake.table.current_snapshot()
            row = {"topic": "u", "partition": 0, "offset": 99}
            lake.table.append(pa.Table.from_pylist([row], columns(lake)))
            lake.table.maintenance.expire_snapshots().by_id(own.snapshot_id).commit()
        return known(format)

    monkeypatch.setattr(log, "_known", after_others)
    log.commit(plan, files)
    assert len(looks) == 2
    assert offsets(lake) == [*range(10), 99]


def test_refused_commit_leaves_no_metadata_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata files of a commit that was refused and repeated are removed."""
    lake, log, plan, files = first_plan(tmp_path)
    other, table = lake.table, lake.table
    known, states = log._known, [table]  # type: ignore[attr-defined]
    monkeypatch.setattr(log, "_known", lambda format: states.pop() if states else known(format))
    other.append(
        pa.Table.from_pylist([{"topic": "u", "partition": 0, "offset": 99}], columns(lake))
    )
    log.commit(plan, files)
    assert offsets(lake) == [*range(10), 99]
    used, found = metadata_files(lake)
    assert used == found


UNKNOWN = CommitStateUnknownException("InternalServerError: try later")
FAULTS = {
    "unknown": UNKNOWN,
    "away": ServiceUnavailableError("closed for a while"),
    "no server": ServerError("bandwidth limit exceeded"),
    "cut": ConnectionError("http://catalog cannot be reached: Connection reset by peer"),
    "database": OperationalError("COMMIT", {}, Exception("server closed the connection")),
}


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergLake:
    """Return a table whose catalog has the faults of a script."""
    monkeypatch.setattr("trikafka_export.cut_responses.DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr("trikafka_export.lake.table_log.DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(FaultyCatalog, "script", [])
    monkeypatch.setattr(FaultyCatalog, "requests", [])
    made = make_lake("iceberg", tmp_path / "lake")
    assert isinstance(made, IcebergLake)
    return made


def faulty_log(lake: IcebergLake) -> TableLog:
    return log_of(
        lake, **{"catalog.type": "", "catalog.py-catalog-impl": "lossy_catalog.FaultyCatalog"}
    )


def metadata_files(lake: IcebergLake) -> tuple[set[str], set[str]]:
    """Return the names of the metadata files that the snapshots use, and of those on the disk."""
    used = {Path(each.manifest_list).name for each in lake.table.snapshots()}
    for snapshot in lake.table.snapshots():
        used |= {Path(each.manifest_path).name for each in snapshot.manifests(lake.table.io)}
    return used, {path.name for path in (lake.root / "metadata").glob("*.avro")}


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_doubtful_commit_is_looked_up(
    fault: str, is_carried_out: bool, faulty: IcebergLake, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit that ends with an error is committed again only if the table lacks it."""
    caplog.set_level("INFO", "trikafka.export")
    faulty.create(columns(faulty))
    log = faulty_log(faulty)
    format = pinned(log, faulty)
    first, second = plan_of(format, 1), plan_of(format, 2)
    log.commit(first, files_of(faulty, log, first))
    FaultyCatalog.script.append((FAULTS[fault], is_carried_out))
    log.commit(second, files_of(faulty, log, second))
    assert offsets(faulty) == [*range(20)]
    assert len(FaultyCatalog.requests) == (2 if is_carried_out else 3)
    used, found = metadata_files(faulty)
    assert used == found
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("cannot commit to the table shop.flights: ")
    assert said.endswith(
        "; the export looks for plan 2 in the table in 0 s, and commits it if it is not there"
    )


@pytest.mark.parametrize(
    ("error", "commits"), [(UNKNOWN, 4), (Timeout("late"), 1), (ForbiddenError("no"), 1)]
)
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_doubtful_commits_have_a_bound(
    error: Exception, commits: int, is_carried_out: bool, faulty: IcebergLake
) -> None:
    """After the last error, the table decides; the files of the commits stay."""
    faulty.create(columns(faulty))
    log = faulty_log(faulty)
    plan = plan_of(pinned(log, faulty), 1)
    files = files_of(faulty, log, plan)
    FaultyCatalog.script += [(error, False)] * (commits - 1) + [(error, is_carried_out)]
    if is_carried_out:
        log.commit(plan, files)
        assert offsets(faulty) == [*range(10)]
    else:
        with pytest.raises(ExportError, match="cannot commit to the table"):
            log.commit(plan, files)
        assert len(metadata_files(faulty)[1]) == 2 * commits, "a list and a manifest each"
    assert len(FaultyCatalog.requests) == commits
    log.commit(plan, files)
    assert offsets(faulty) == [*range(10)]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (UNKNOWN, True),
        (ConnectionError("http://catalog cannot be reached: Connection refused"), True),
        (ConnectTimeout("too slow"), False),
        (SSLError("certificate verify failed"), False),
        (ProxyError("no such proxy"), False),
        (OperationalError("UPDATE timeouts", {}, Exception("database is locked")), True),
        (CommitStateUnknownException("GatewayTimeoutException: upstream request timeout"), True),
        (OperationalError("COMMIT", {}, Exception("connection timed out")), False),
        (ForbiddenError("no"), False),
    ],
)
def test_only_passing_faults_are_repeated(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


def test_fault_after_the_commit_ends_no_export(
    faulty: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files to sync are looked up in the table, by a request that is repeated."""
    faulty.create(columns(faulty))
    log = faulty_log(faulty)
    plan = plan_of(pinned(log, faulty), 1)
    files = files_of(faulty, log, plan)
    load = FaultyCatalog.load_table
    failed = []

    def load_table(catalog: FaultyCatalog, name: Any) -> Any:
        if FaultyCatalog.requests and not failed:
            failed.append(name)
            raise FAULTS["away"]
        return load(catalog, name)

    monkeypatch.setattr(FaultyCatalog, "load_table", load_table)
    log.commit(plan, files)
    assert failed
    assert offsets(faulty) == [*range(10)]


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_failed_fsync_of_a_commit_is_raised(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the plan, but a loss of power might take it away again."""
    lake = make_lake(kind, tmp_path / "lake")
    lake.root.mkdir(parents=True, exist_ok=True)
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    files = files_of(lake, log, plan)

    def fail(paths: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(f"trikafka_export.lake.{kind}.sync", fail)
        for _ in range(2):  # the second call finds the commit, and syncs it, too
            with pytest.raises(OSError, match="Input/output error"):
                log.commit(plan, files)
    log.commit(plan, files)
    assert offsets(lake) == [*range(10)]


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_doubtful_creation_is_repeated(is_carried_out: bool, faulty: IcebergLake) -> None:
    log = faulty_log(faulty)
    FaultyCatalog.script.append((UNKNOWN, is_carried_out))
    plan = plan_of(pinned(log, faulty), 1)
    log.commit(plan, files_of(faulty, log, plan))
    assert offsets(faulty) == [*range(10)]


def test_replaced_column_refuses_the_commit(lake: Lake) -> None:
    log = log_of(lake)
    format = pinned(log, lake)
    first, second = plan_of(format, 1), plan_of(format, 2)
    log.commit(first, files_of(lake, log, first))
    if lake.format == "delta":
        import deltalake

        rows = lake.read().set_column(1, "value", pa.array(["x"] * 10))
        deltalake.write_deltalake(lake.destination, rows, mode="overwrite", schema_mode="overwrite")
    else:
        assert isinstance(lake, IcebergLake)
        with lake.table.update_schema() as update:
            update.delete_column("value")
        from pyiceberg.types import StringType

        with lake.table.update_schema() as update:
            update.add_column("value", StringType())
    before = offsets(lake)
    with pytest.raises(
        ExportError, match=r"the column value of the table .* nothing was committed"
    ):
        log.commit(second, files_of(lake, log, second))
    assert offsets(lake) == before


def test_column_made_required_refuses_the_commit(tmp_path: Path) -> None:
    """Another program forbids nulls between two exports, and records without a key have some."""
    lake, log, first, files = first_plan(tmp_path)
    log.commit(first, files)
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("key", required=True)
    second = plan_of(first.format, 2)
    with pytest.raises(
        ExportError, match=r"the column key of the table .* must have a value now.* nothing was"
    ):
        log.commit(second, files_of(lake, log, second))
    assert offsets(lake) == [*range(10)]
    with lake.table.update_schema() as update:
        update.make_column_optional("key")
    log.commit(second, files_of(lake, log, second))
    assert offsets(lake) == [*range(20)]


def test_new_partitioning_refuses_the_commit(lake: Lake) -> None:
    log = log_of(lake)
    first = plan_of(pinned(log, lake), 1)
    log.commit(first, files_of(lake, log, first))
    if lake.format == "delta":
        import deltalake

        rows = lake.read()
        deltalake.write_deltalake(
            lake.destination,
            rows,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=["topic"],
        )
    else:
        assert isinstance(lake, IcebergLake)
        with lake.table.update_spec() as update:
            update.add_identity("topic")
    before = offsets(lake)
    second = plan_of(first.format, 2)
    with pytest.raises(ExportError, match=r"partitioned by .* nothing was committed: change it"):
        log.commit(second, files_of(lake, log, second))
    assert offsets(lake) == before


def test_new_constraint_refuses_the_commit(tmp_path: Path) -> None:
    """Delta's engine would check the rows, and files that are added are not checked."""
    lake = make_lake("delta", tmp_path / "lake")
    lake.root.mkdir(parents=True)
    log = log_of(lake)
    first = plan_of(pinned(log, lake), 1)
    log.commit(first, files_of(lake, log, first))
    lake.table.alter.add_constraint({"early": "offset < 15"})  # type: ignore[attr-defined]
    second = plan_of(first.format, 2)
    with pytest.raises(ConfigurationError, match=r"has delta\.constraints\.early"):
        log.commit(second, files_of(lake, log, second))
    assert offsets(lake) == [*range(10)]


def test_added_dropped_and_wider_columns_are_fine(lake: Lake) -> None:
    """A plan is committed although others added, dropped, renamed or widened columns."""
    log = log_of(lake)
    format = pinned(log, lake)
    first, second = plan_of(format, 1), plan_of(format, 2)
    log.commit(first, files_of(lake, log, first))
    if lake.format == "delta":
        import deltalake

        lake.table.alter.add_columns(deltalake.Field("noted", "string"))  # type: ignore[attr-defined]
    else:
        from pyiceberg.types import LongType, StringType

        with lake.table.update_schema() as update:  # type: ignore[attr-defined]
            update.add_column("noted", StringType())
            update.delete_column("headers")
            update.update_column("partition", LongType())
            update.rename_column("value", "payload")
    log.commit(second, files_of(lake, log, second))
    assert offsets(lake) == [*range(20)]
    found = lake.read()
    assert {
        bytes(value)[:1]
        for value in found[("value" if lake.format == "delta" else "payload")].to_pylist()
    } == {b"v"}
    store = log.place()
    assert store is not None
    assert sum(len(batch) for batch in log.offsets(format, "t", 0, 0, 20)) == 20


def test_early_times_have_years_of_four_digits(tmp_path: Path) -> None:
    """Delta's statistics write years before 1000 with four digits."""
    lake = make_lake("delta", tmp_path / "lake")
    lake.root.mkdir(parents=True)
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    log.commit(plan, files_of(lake, log, plan, time=-46_388_592_000_000_000))
    text = (
        (lake.root / "_delta_log" / f"{1:020d}.json").read_text().replace("\\", "").replace(" ", "")
    )
    assert '"timestamp":"0' in text, "four digits"


def test_unwritable_format_version_is_refused(
    tmp_path: Path,
) -> None:
    """A table of a format version that pyiceberg cannot write is refused before there is a plan."""
    lake = make_lake("iceberg", tmp_path / "lake")
    lake.create(columns(lake))
    assert isinstance(lake, IcebergLake)
    path = Path(lake.table.metadata_location.removeprefix("file://"))
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0})
    )
    with pytest.raises(
        ConfigurationError, match="format version 3, which pyiceberg cannot write yet"
    ):
        pinned(log_of(lake), lake)


async def test_silent_catalog_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trikafka_export.lake.sink._LIMIT", 1.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        where = {
            "catalog": "lake",
            "catalog.type": "rest",
            "catalog.uri": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        sink = trikafka_sink(
            "file", {"format": "iceberg", "destination": "shop.flights", **where}, ()
        )
        assert sink is not None
        with (
            trio.fail_after(240),
            pytest.raises(ExportError, match=r"catalog or store has not responded for 1 s"),
        ):
            async with sink:
                pass


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize(
    "why", ["request or response body error", "operation timed out", "retry timeout: 180s"]
)
def test_doubtful_commit_to_delta_is_looked_up(
    why: str, is_carried_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of which the response was cut is repeated; after other errors the table decides."""
    import deltalake

    monkeypatch.setattr("trikafka_export.lake.table_log.DELAYS", (0.0, 0.0, 0.0))
    lake = make_lake("delta", tmp_path / "lake")
    lake.root.mkdir(parents=True)
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    files = files_of(lake, log, plan)
    commit = deltalake.DeltaTable.create_write_transaction
    commits = []

    def lose(*args: Any, **options: Any) -> None:
        commits.append(1)
        if is_carried_out or len(commits) > 1:
            commit(*args, **options)
        if len(commits) == 1:
            raise OSError(f"Generic S3 error: PUT http://store/x: {why}")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lose)
    if is_carried_out or why.startswith("request"):
        log.commit(plan, files)
        assert offsets(lake) == [*range(10)]
    else:
        with pytest.raises(ExportError, match="cannot commit to the Delta table"):
            log.commit(plan, files)
    assert len(commits) == (2 if why.startswith("request") and not is_carried_out else 1)


@pytest.mark.parametrize("kind", ["forgetful", "broken"])
def test_lost_responses_commit_each_plan_once(kind: str, s3: S3Server) -> None:
    """Lost and cut responses of a store leave each plan once.

    If the response to a conditional write was lost, delta-rs sends the write again, and is refused
    because of its own first write. Requests with a cut response are sent again by the export.
    """
    import obstore

    bucket = s3.bucket(kind)
    lake = StoredDelta(f"s3://{bucket}/lake", {"format": "delta", **s3.options}, Path(bucket))
    log, store = log_of(lake), s3.store(bucket)
    format = pinned(log, lake)
    for number in (1, 2, 3):
        plan = plan_of(format, number)
        files = files_of(
            lake, log, plan, put=lambda name, data: obstore.put(store, f"lake/{name}", data)
        )
        log.commit(plan, files)
        assert log.found(plan)
    assert offsets(lake) == [*range(30)]


def test_error_of_a_delta_table_names_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The endpoint is shown, and the credentials are hidden."""
    url = "http://127.0.0.1:1"
    options = {
        "store.endpoint": url,
        "store.region": "here",
        "store.access_key_id": "the-key",
        "store.secret_access_key": "the-secret",
    }
    lake = StoredDelta("s3://bucket/lake", {"format": "delta", **options}, tmp_path)
    log = log_of(lake)

    def refuse(*_: Any, **given: Any) -> None:
        raise OSError(f"GET {url}: {given['storage_options']}")

    monkeypatch.setattr("deltalake.DeltaTable", refuse)
    with pytest.raises(ExportError, match=rf"GET {url}: .*here") as caught:
        pinned(log, lake)
    assert "the-" not in str(caught.value)


def test_location_in_a_store_is_taken_as_it_is(s3: S3Server, tmp_path: Path) -> None:
    """Readers of Iceberg decode nothing in the location of a table."""
    import obstore

    bucket = s3.bucket()
    made = make_lake("iceberg", tmp_path)
    keys = {
        "endpoint": s3.url,
        "region": "us-east-1",
        "access-key-id": "the-key",
        "secret-access-key": "the-secret-word",
    }
    options = made.options | {f"catalog.s3.{name}": value for name, value in keys.items()}
    options["catalog.warehouse"] = f"s3://{bucket}/a%20b"
    lake = IcebergLake(made.destination, options, Path(bucket))
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    folder = lake.table.location().removeprefix(f"s3://{bucket}/")
    assert folder.startswith("a%20b/")
    store = s3.store(bucket)
    files = files_of(
        lake, log, plan, put=lambda name, data: obstore.put(store, f"{folder}/{name}", data)
    )
    log.commit(plan, files)
    assert offsets(lake) == [*range(10)]


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_history_is_read_without_deltalake(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Its function holds Python's lock, so a silent store would stop the whole process."""
    import deltalake
    import obstore

    lake: Lake
    if place == "folder":
        lake = make_lake("delta", tmp_path / "lake")
        lake.root.mkdir(parents=True)
        store, root = obstore.store.LocalStore(lake.root), ""
    else:
        s3: S3Server = request.getfixturevalue("s3")
        bucket = s3.bucket()
        lake = StoredDelta(f"s3://{bucket}/lake", {"format": "delta", **s3.options}, Path(bucket))
        store, root = s3.store(bucket), "lake/"
    monkeypatch.delattr(deltalake.DeltaTable, "history")
    monkeypatch.setattr("trikafka_export.lake.delta._ENTRIES", 2)
    log = log_of(lake)
    assert isinstance(log, DeltaLog)
    format = pinned(log, lake)
    plans = [plan_of(format, number) for number in range(1, 6)]
    for plan in plans:
        files = files_of(
            lake, log, plan, put=lambda name, data: obstore.put(store, root + name, data)
        )
        log.commit(plan, files)
    assert [log.version(plan) for plan in plans] == [1, 2, 3, 4, 5]
    assert log.version(plan_of(format, 6)) is None
    table = log._table()
    assert table is not None
    table.create_checkpoint()
    entries = [f"{root}_delta_log/{version:020d}.json" for version in range(4)]
    obstore.delete(store, entries[:2])  # as Delta does when it cleans up the log
    obstore.put(store, entries[2], b'{"txn":{"appId":"x","version":1}}\n')
    obstore.put(store, entries[3], b'{"commitInfo":null}\n')
    assert [log.version(plan) for plan in plans] == [None, None, None, 4, 5]
    if place == "s3":
        s3.allow(bucket, -1)
        assert [each["version"] for each in log._history(table)] == [5, 4, 3, 2]
        assert s3.allow(bucket, -1) == 5, "one for each entry, and the one that is gone"
    with pytest.raises(ExportError, match=r"plans are missing \(version 5 of the table\)"):
        log.pin({"name": "delta", "app_id": "another"}, columns(lake), None)


@pytest.mark.parametrize("ended", ["never", "early"])
async def test_long_history_is_read_whole(
    ended: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """The limit is one for each response; a search that is abandoned ends with the next one."""
    lake = make_lake("delta", tmp_path / "lake")
    lake.root.mkdir(parents=True)
    log = log_of(lake)
    format = pinned(log, lake)
    for number in (1, 2, 3):
        plan = plan_of(format, number)
        log.commit(plan, files_of(lake, log, plan))
    monkeypatch.setattr("trikafka_export.lake.delta._ENTRIES", 1)
    sink = trikafka_sink("file", {**lake.options, "destination": lake.destination}, ())
    assert isinstance(sink, LakeSink)
    read = DirectoryStore.read_data
    names = []
    scope = trio.CancelScope()

    def slowly(store: DirectoryStore, name: str) -> bytes:
        names.append(name)
        trio.from_thread.run_sync(mock_clock.jump, 400)
        if ended == "early":
            trio.from_thread.run_sync(scope.cancel)
        return read(store, name)

    monkeypatch.setattr(DirectoryStore, "read_data", slowly)
    with scope:
        assert await sink._asked(lambda: log.version(plan_of(format, 4))) is None
    while sink._log_limiter.borrowed_tokens:
        await trio.testing.wait_all_tasks_blocked()
    assert len(names) == (4 if ended == "never" else 1)


@pytest.mark.parametrize(("prefix", "name"), [("a%23b", "a#b"), ("a%3Fb", "a?b")])
def test_table_at_an_odd_prefix_is_whole(prefix: str, name: str, s3: S3Server) -> None:
    import obstore

    bucket = s3.bucket()
    lake = StoredDelta(f"s3://{bucket}/{prefix}", {"format": "delta", **s3.options}, Path(bucket))
    log, store = log_of(lake), s3.store(bucket)
    format = pinned(log, lake)
    for number in (1, 2):
        plan = plan_of(format, number)
        files = files_of(
            lake, log, plan, put=lambda to, data: obstore.put(store, f"{name}/{to}", data)
        )
        log.commit(plan, files)
        assert log.found(plan)
        assert log.version(plan) == number
    assert offsets(lake) == [*range(20)]
    assert {each.split("/")[0] for each in s3.objects(bucket)} == {name}


def test_incomplete_delta_table_names_the_repair(tmp_path: Path) -> None:
    lake = make_lake("delta", tmp_path / "lake")
    lake.root.mkdir(parents=True)
    log = log_of(lake)
    format = pinned(log, lake)
    for number in (1, 2, 3):
        plan = plan_of(format, number)
        log.commit(plan, files_of(lake, log, plan))
    for name in ("t-1.parquet", "t-3.parquet"):
        next(lake.root.rglob(name)).unlink()
    with pytest.raises(
        ExportError,
        match=r"lists files that do not exist \(.*t-\d\.parquet and 1 more\), .*repair\(\)",
    ) as caught:
        list(log.offsets(format, "t", 0, 0, 30))
    assert caught.value.__cause__ is not None


def test_unreadable_delta_table_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a missing file is a reason to look for others: the search holds Python's lock."""
    import deltalake

    lake = make_lake("delta", tmp_path / "lake")
    lake.root.mkdir(parents=True)
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    log.commit(plan, files_of(lake, log, plan))
    at(lake.root / "t-1.parquet").write_bytes(b"no Parquet")
    monkeypatch.delattr(deltalake.DeltaTable, "repair")
    with pytest.raises(ExportError, match="cannot read the Delta table"):
        list(log.offsets(plan.format, "t", 0, 0, 10))
