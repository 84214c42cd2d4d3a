"""Object stores alone: refused destinations, a lost lock, lost responses, hidden secrets."""

from __future__ import annotations

import builtins
import dataclasses
import importlib.util
import logging
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from s3_server import S3Server
from test_stores import Bucket, export, finish, piece_of, planned, write
from trikafka_broker.waiting import wait_until
from trikafka_export.checking import check
from trikafka_export.destination import find_sink, store_of
from trikafka_export.lake.stores import lake_store
from trikafka_export.object_address import ObjectAddress, ObjectStoreError
from trikafka_export.object_store import ObjectStore
from trikafka_export.objects import together
from trikafka_export.piece_log import ExportPiece, StagedFile
from trikafka_export.plan import complete
from trikafka_export.sink import FileSink

from trikafka import ConfigurationError, ExportError, open_exporter

SECRET = "the-secret-word"


@pytest.fixture
def place(s3: S3Server) -> Bucket:
    return Bucket(s3, s3.bucket())


# --- refused destinations ---


@pytest.mark.parametrize("kind", ["careless", "unskilled"])
def test_store_without_conditions_is_refused(s3: S3Server, kind: str) -> None:
    """A store that does not honour conditional writes is refused, and nothing is left there."""
    bucket = s3.bucket(kind)
    with pytest.raises(
        ConfigurationError, match=rf"s3://{bucket}/p: this store does not honour conditional writes"
    ):
        store_of(f"s3://{bucket}/p", s3.options)[0].open()
    assert s3.objects(bucket) == {}, "and nothing is left there"


def test_missing_package_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "obstore" else found(name)
    )
    with pytest.raises(
        ConfigurationError,
        match=r"s3:// destinations need the package obstore: .*trikafka-export\[stores\]",
    ):
        find_sink("s3://bucket/prefix", {})


def test_directories_need_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        assert not name.startswith("obstore")
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert find_sink(str(tmp_path), {}) is not None


@pytest.mark.parametrize(
    ("destination", "options", "said"),
    [
        (f"s3://me:{SECRET}@bucket/x", {}, "has no user and password"),
        (f"s3://bucket/x?token={SECRET}", {}, "without '[?]' and '#'"),
        ("s3:///x", {}, "does not name a place in an object store; write s3://bucket/prefix"),
        ("s3://bucket/a/../b", {}, "does not name a place"),
        (
            "s3://bucket",
            {"store.secret_acces_key": SECRET},
            "unknown option 'store.secret_acces_key' of s3://bucket",
        ),
        (
            "s3://bucket",
            {"store.lease": "0"},
            "store.lease must be a number of seconds from 1 to 3600",
        ),
        *(
            (
                "s3://bucket",
                {"store.endpoint": wrong},
                "s3://bucket cannot be used: store.endpoint must be a URL",
            )
            for wrong in (
                "localhost:9000",
                "http//host:9000",
                "http://",
                "http://host:port",
                "http://host:99999",
                "http://a b",
            )
        ),
        (
            "s3://bucket",
            {"store.endpoint": "no url", "store.secret_access_key": SECRET},
            "s3://bucket cannot be used",
        ),
        (
            "s3://bucket",
            {"max_bytes_per_file": "5368709120"},
            "max_bytes_per_file must be at most 4294967296 in an object store",
        ),
        ("file:///tmp/x", {"store.endpoint": "http://x"}, "unknown option 'store.endpoint'"),
    ],
)
def test_invalid_address_hides_the_secrets(destination: str, options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        FileSink.from_options({"destination": destination, **options})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("a b", "a b"),
        ("a%20b", "a b"),
        ("a%2520b", "a%20b"),
        ("a%3Fb", "a?b"),
        ("a%23b", "a#b"),
        ("100%", "100%"),
        ("a%20", "a "),
    ],
)
def test_quoted_sign_is_part_of_the_prefix(place: Bucket, prefix: str, name: str) -> None:
    """An address is read once: a prefix that has a quoted sign is no shorter prefix."""
    store, _ = store_of(f"s3://{place.bucket}/{prefix}", place.server.options)
    store.open()
    store.close()
    assert [*place.server.objects(place.bucket)] == [f"{name}/_trikafka/lock"]


@pytest.mark.parametrize(("prefix", "former"), [("a%2520b", "a b"), ("a%3Fb", "a")])
def test_export_at_a_former_prefix_is_named(place: Bucket, prefix: str, former: str) -> None:
    """Earlier versions read a quoted sign twice: their export does not begin again elsewhere."""
    old, _ = store_of(f"s3://{place.bucket}/{former}", place.server.options)
    old.open()
    new, _ = store_of(f"s3://{place.bucket}/{prefix}", place.server.options)
    new.open()
    assert new.load().last_number == 0
    export(old, 6)
    table = lake_store(f"s3://{place.bucket}/{prefix}", place.server.options)
    for store in (new, table):
        with pytest.raises(
            ExportError, match=f"has no export, but 's3://{place.bucket}/{former}' has"
        ):
            store.load()
    new.close()
    old.close()


def test_endless_conflict_is_an_error_of_the_store(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.bucket("embattled")
    monkeypatch.setattr("trikafka_export.obstore_objects._DELAYS", (0, 0))
    with pytest.raises(ExportError, match="/lock: the store refuses the write because of another"):
        store_of(f"s3://{bucket}/x", s3.options)[0].open()


def test_unknown_format_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="no plugin writes format=orc"):
        find_sink("s3://bucket/x", {"format": "orc"})
    assert not list(tmp_path.iterdir())


def test_missing_bucket_and_dead_store_are_errors(
    s3: S3Server,
) -> None:
    with pytest.raises(
        ExportError, match="cannot write to s3://nowhere/x: there is no such bucket: s3://nowhere/x"
    ):
        store_of("s3://nowhere/x", s3.options)[0].open()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        options = {
            **s3.options,
            "store.endpoint": f"http://127.0.0.1:{unused.getsockname()[1]}",
        }
        with pytest.raises(ExportError, match="Connection refused"):
            store_of("s3://bucket/x", options)[0].open()


# --- the environment, and what is secret ---


def test_options_override_the_usual_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Credentials are read from the usual variables; options override them."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://general",
        "AWS_ENDPOINT_URL_S3": "http://exact",
    }.items():
        monkeypatch.setenv(name, value)
    address = ObjectAddress.of("s3a://bucket//", {"store.region": "eu-west-1"})
    assert address.url == "s3://bucket"
    assert dict(address.config) == {
        "access_key_id": "key",
        "secret_access_key": SECRET,
        "region": "eu-west-1",
        "endpoint": "http://exact",
    }
    assert address.client["allow_http"] is True


def test_wrong_endpoint_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "exact:9000")
    with pytest.raises(
        ConfigurationError, match="used: the environment variable AWS_ENDPOINT_URL_S"
    ):
        ObjectAddress.of("s3://bucket", {})
    with pytest.raises(ConfigurationError, match=r"used: store\.endpoint must be a URL"):
        ObjectAddress.of("s3://bucket", {"store.endpoint": "wrong"})


@pytest.mark.parametrize(
    ("url", "variables", "config"),
    [
        ("gs://bucket/x", {"GOOGLE_SERVICE_ACCOUNT_KEY": SECRET}, {"service_account_key": SECRET}),
        (
            "abfs://container@account.dfs.core.windows.net/x",
            {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": SECRET},
            {"account_name": "account", "account_key": SECRET},
        ),
    ],
)
def test_other_stores_have_their_own_variables(
    url: str, variables: dict[str, str], config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    address = ObjectAddress.of(url, {})
    assert (address.url, dict(address.config)) == (url, config)
    assert SECRET not in repr(address)
    with pytest.raises(ConfigurationError, match=r"unknown option 'store.nonsense' of " + url):
        store_of(url, {"store.nonsense": "x"})


def test_secrets_reach_workers_and_no_log(place: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """Secrets are sent to workers with their tasks, and are never shown or stored."""
    caplog.set_level(logging.DEBUG)
    sink = FileSink.from_options(
        {"destination": f"s3://{place.bucket}/lake/t", **place.server.options}
    )
    store = sink._store
    assert isinstance(store, ObjectStore)
    store.open()
    export(store, 8)
    plan = planned(store, 12)
    assert plan is not None
    workplace = pickle.loads(pickle.dumps(store.place(plan)))  # as Spark's workers get it
    store.store_plan(plan)
    (whole,) = plan.ranges
    write(workplace.pieces(whole), whole)
    finish(store, plan)
    store.close()
    shown = (
        repr(
            [
                sink,
                store,
                vars(store),
                vars(sink),
                workplace,
                store._address,
                dict(store._address.config),
            ]
        )
        + caplog.text
    )
    assert SECRET not in shown
    stored = place.server.objects(place.bucket)
    assert not [
        name for name, body in stored.items() if SECRET.encode() in body or b"the-key" in body
    ]
    assert sorted(place.read()) == list(range(12))


async def test_options_of_an_exporter_are_hidden(place: Bucket) -> None:
    options = place.server.options
    async with open_exporter(
        "t", f"s3://{place.bucket}/x", bootstrap_servers="localhost:1", sink_options=options
    ) as exporter:
        assert SECRET not in repr(vars(exporter._sink))
        assert SECRET not in repr(exporter._options)


# --- responses that are lost ---


def test_write_with_lost_response_counts(s3: S3Server) -> None:
    place = Bucket(s3, s3.bucket("forgetful"))
    store = place.store()
    store.open()
    export(store, 12)
    store.close()
    assert sorted(place.read()) == list(range(12))


def test_write_that_met_another_is_repeated(s3: S3Server) -> None:
    """A store that refuses a new object, because of another write of it, has no such object."""
    place = Bucket(s3, s3.bucket("contended"))
    store = place.store()
    store.open()
    export(store, 12)
    store.close()
    assert sorted(place.read()) == list(range(12))


def test_request_with_cut_response_is_repeated(s3: S3Server, tmp_path: Path) -> None:
    """Listings, copies, deletions and uploads of parts are repeated, as obstore does not."""
    place = Bucket(s3, s3.bucket("broken"))
    store = place.store()
    assert isinstance(store, ObjectStore)
    store.open()
    export(store, 12)
    store.close()
    assert sorted(place.read()) == list(range(12))
    names = [name for name in s3.objects(place.bucket) if "/_trikafka/" not in name]
    assert sorted(f"lake/t/{name}" for name in store.data_files()) == sorted(names)
    (large := tmp_path / "large").write_bytes(bytes(11_000_000))
    store._objects.upload("large", large)
    assert store._objects.look("large").size == 11_000_000


def test_removal_skips_missing_objects(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's store refuses to delete a missing object, and obstore stops there."""
    delete = obstore.delete

    def one_by_one(store: Any, names: str | list[str]) -> None:
        for name in [names] if isinstance(names, str) else names:
            obstore.head(store, name)
            delete(store, name)

    monkeypatch.setattr(obstore, "delete", one_by_one)
    place = Bucket(s3, s3.bucket())
    store = place.store()
    assert isinstance(store, ObjectStore)
    objects = store._objects
    objects.put_new("first", b"1")
    objects.put_new("last", b"2")
    objects.remove(["first", "missing", "last"])
    assert not list(objects.names())


def test_published_plan_is_published_without_tidying(
    place: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that refuses to remove objects ends no plan.

    One warning says so at once, and the end of the export reports it.
    """

    def refuse(folder: str) -> None:
        raise ObjectStoreError("403")

    store = place.store()
    assert isinstance(store, ObjectStore)
    store.open()
    with monkeypatch.context() as patched:
        patched.setattr(store._objects, "remove_folder", refuse)
        export(store, 6)
        export(store, 12)
        assert caplog.text.count("cannot tidy up") == 1
        assert store.load().unfinished is None
        with pytest.raises(ExportError, match=r"cannot tidy up .*: 403"):
            store.close()
    assert sorted(place.read()) == list(range(12))


def test_upload_of_many_parts_appears_whole(place: Bucket, tmp_path: Path) -> None:
    store = place.store()
    store.open()
    plan = planned(store, 6)
    assert plan is not None
    store.store_plan(plan)
    pieces = store.pieces(plan, plan.ranges[0])
    staged = pieces.stage()
    staged.write_bytes(b"0\n1\n2\n3\n4\n5\n" + b" " * 11_000_000)
    size = staged.stat().st_size
    pieces.decide(ExportPiece(0, 6, (StagedFile(staged.name, plan.ranges[0].name, 6, size),)))
    assert not staged.exists(), "the local copy is gone"
    finish(store, plan)
    store.close()
    assert sorted(place.read()) == list(range(6))
    names = list(place.server.objects(place.bucket))
    assert not [name for name in names if "/work/" in name], "nothing is left of the work"


# --- a lock that another export takes over ---


def taken_over(place: Bucket) -> tuple[ObjectStore, ObjectStore]:
    """Return two exports at work, of which the second has taken the lock over.

    The first slept until its lock expired.
    """
    first: Any = place.store(lease="600")
    first.open()
    plan = planned(first, 12)
    assert plan is not None
    first.store_plan(plan)
    write(first.pieces(plan, plan.ranges[0]), plan.ranges[0])
    first._lease._ended.set()  # it sleeps
    second: Any = place.store()
    with pytest.raises(ExportError, match="its lock was renewed"):
        second.open()
    # From now on its lease is a short one, so that no time of the test itself counts.
    short = lock_of(place).replace(b'"seconds": 600.0', b'"seconds": 1.0')
    obstore.put(place.server.store(place.bucket), "lake/t/_trikafka/lock", short)

    def is_taken() -> bool:
        try:
            second.open()
        except ExportError:
            return False
        return True

    assert wait_until(is_taken, 240)  # the store's clock has a resolution of a second
    return first, second


def test_overtaken_export_does_no_harm(
    place: Bucket,
) -> None:
    """An export that slept while another took over does no harm at any step."""
    first, second = taken_over(place)
    plan = second.load().unfinished
    assert plan is not None
    asleep, late = first.pieces(plan, plan.ranges[1]), first.pieces(plan, plan.ranges[1])
    stale = planned_by_hand(first, 30)
    here = second.pieces(plan, plan.ranges[1])
    here.decide(piece_of(here, 6, 9))
    assert asleep.decide(piece_of(asleep, 6, 12)).end == 9, (
        "it goes on from what the other has decided"
    )
    results = first.settle(plan, plan.ranges)  # the sleeper ends the plan: both work on it now
    with pytest.raises(ExportError, match="has ended, here or in another process"):
        here.decide(piece_of(here, 9, 12))
    again = second.load()
    assert again.settled
    assert (
        [result.reached for result in second.settle(plan, plan.ranges)]
        == [result.reached for result in results]
        == [6, 9]
    )
    finish(second, plan)
    with pytest.raises(ExportError, match="is there already"):
        first.publish(dataclasses.replace(complete(plan, results), finished="later"))
    with pytest.raises(ExportError, match="no longer exists"):
        late.decide(piece_of(late, 9, 12))
    first._clear()
    export(second, 30)
    with pytest.raises(ExportError, match="is there already"):
        first.store_plan(stale)
    first._clear()
    assert sorted(place.read()) == list(range(30))
    second.close()
    first.close()
    assert not place_is_locked(place)
    whole = place.store()
    whole.open()
    assert whole.load().carried == ()
    whole.close()


def planned_by_hand(store: ObjectStore, end: int) -> Any:
    """Return plan 2 of an export that knows only the first manifest."""
    state = store.load()
    assert state.unfinished is not None
    return dataclasses.replace(state.unfinished, number=2, plan_id="of the sleeper")


def place_is_locked(place: Bucket) -> bool:
    return b'"released": false' in place.server.objects(place.bucket)["lake/t/_trikafka/lock"]


def test_owner_keeps_or_reports_its_lock(place: Bucket) -> None:
    """A live owner keeps its lock, also after a lost response; one that lost it reports that."""
    store: Any = place.store(lease="1")
    store.open()
    before = lock_of(place)
    assert wait_until(lambda: lock_of(place) != before, 240)
    # A renewal of its own, whose response was lost.
    unheard = lock_of(place).replace(b'"beat"', b'"beat": 0, "beat"')
    obstore.put(place.server.store(place.bucket), "lake/t/_trikafka/lock", unheard)
    assert wait_until(lambda: lock_of(place) != unheard, 240)
    assert not store._lease.lost
    # Another export has taken it.
    obstore.put(place.server.store(place.bucket), "lake/t/_trikafka/lock", b"{}")
    assert wait_until(lambda: bool(store._lease.lost), 240)
    plan = planned(store, 6)
    assert plan is not None
    with pytest.raises(
        ExportError,
        match=r"another export holds the lock of s3://.* no record is lost or doubled",
    ):
        store.store_plan(plan)
    store.close()
    assert lock_of(place) == b"{}", "it does not touch what is not its own"
    with pytest.raises(ExportError, match="is not a lock of an export; remove it"):
        place.store().open()


def test_unreleased_lock_stops_no_own_export(place: Bucket) -> None:
    """The store fails at the end of an export, and the same process exports again."""
    store = place.store()
    store.open()
    place.server.allow(place.bucket, 0)
    with pytest.raises(ExportError, match="cannot tidy up"):
        store.close()
    place.server.allow(place.bucket, -1)
    again = place.store()
    again.open()
    with pytest.raises(ExportError, match=r"another export .* is at work"):
        place.store().open()
    again.close()


def test_silent_store_stops_no_own_export(place: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store does not respond to the end of an export, and the same process exports again."""
    responds = threading.Event()
    store: Any = place.store(lease="600")
    store.open()
    clear = store._clear
    monkeypatch.setattr(store, "_clear", lambda: responds.wait() and clear())
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    store.give_up()
    again = place.store()
    again.open()
    responds.set()
    closing.join()
    with pytest.raises(ExportError, match=r"another export .* is at work"):
        place.store().open()
    again.close()


def test_lock_is_released_after_a_lost_renewal(
    place: Bucket,
) -> None:
    """A lock is released although the response to its last renewal was lost."""
    store: Any = place.store(lease="600")
    store.open()
    unheard = lock_of(place).replace(b'"beat"', b'"beat": 0, "beat"')
    obstore.put(place.server.store(place.bucket), "lake/t/_trikafka/lock", unheard)
    store.close()
    assert not place_is_locked(place)
    next_one: Any = place.store()
    next_one.open()
    next_one.close()


def lock_of(place: Bucket) -> bytes:
    return place.server.objects(place.bucket)["lake/t/_trikafka/lock"]


# --- checks ---


def test_check_finds_lost_and_foreign_objects(place: Bucket, tmp_path: Path) -> None:
    store = place.store(lease="600")  # requests are counted, and none renews the lock
    store.open()
    plan = planned(store, 18)
    assert plan is not None
    store.store_plan(plan)
    for whole in plan.ranges:
        pieces = store.pieces(plan, whole)
        staged = pieces.stage()
        pq.write_table(pa.table({"offset": list(range(whole.start, whole.end))}), staged)
        size = staged.stat().st_size
        pieces.decide(
            ExportPiece(whole.start, whole.end, (StagedFile(staged.name, whole.name, 6, size),))
        )
    finish(store, plan)
    found = check(store)
    assert (found.files, found.rows, found.problems) == (3, 18, ())
    try:
        place.server.allow(place.bucket, 2)  # the list of manifests, and the one there is
        with pytest.raises(ExportError, match=r"cannot check s3://.*: the store responded 403"):
            check(store)  # an error of the store, previously reported as "not a whole Parquet file"
    finally:
        place.server.allow(place.bucket, -1)
    stopped = threading.Event()
    stopped.set()
    place.server.allow(place.bucket, -1)
    with pytest.raises(ExportError, match="was cancelled"):
        check(store, stopped)
    assert place.server.allow(place.bucket, -1) == 2, "no file was looked at"
    bucket, names = place.server.store(place.bucket), [whole.name for whole in plan.ranges]
    obstore.delete(bucket, f"lake/t/{names[0]}")
    obstore.put(bucket, f"lake/t/{names[1]}", b"not Parquet")
    obstore.put(bucket, "lake/t/date=1/more.parquet", b"x")
    problems = check(store).problems
    store.close()
    assert [problem.partition(" is ")[0] for problem in problems] == [
        names[0],
        names[1],
        "date=1/more.parquet",
    ]
    for word, problem in zip(("lost", "not a whole", "in no manifest"), problems, strict=True):
        assert word in problem


def test_damaged_ledger_is_named(place: Bucket) -> None:
    store: Any = place.store()
    store.open()
    plan = planned(store, 6)
    assert plan is not None
    store.store_plan(plan)
    pieces = store.pieces(plan, plan.ranges[0])
    for body in (
        b"",
        b"[]",
        b"\xff",
        b'{"version": 1, "range": ["t", 0, 0, 6], "closed": false, "pieces": [{"from": 3}]}',
    ):
        obstore.put(place.server.store(place.bucket), f"lake/t/{pieces._ledger}", body)
        with pytest.raises(ExportError, match=r"s3://.*\.json is not the ledger of a range"):
            pieces.pieces()
    store.close()


async def test_cancelled_export_skips_a_silent_store() -> None:
    """A cancelled export does not wait for a store that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "store.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "store.region": "x",
        }
        options |= {"store.access_key_id": "k", "store.secret_access_key": "s"}
        began = trio.current_time()
        with trio.move_on_after(0.3) as scope:
            async with open_exporter(
                "t", "s3://bucket/x", bootstrap_servers="localhost:1", sink_options=options
            ):
                pass
        assert scope.cancelled_caught
        assert trio.current_time() - began < 45


async def test_cancelled_exporter_leaves_its_lock(
    place: Bucket,
) -> None:
    """A cancelled exporter does not wait for a silent store to release its lock."""
    destination, options = f"s3://{place.bucket}/lake/t", place.server.options
    try:
        with trio.CancelScope() as scope:
            async with open_exporter(
                "t", destination, bootstrap_servers="localhost:1", sink_options=options
            ):
                place.server.allow(place.bucket, 0, hold="yes")
                began = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert trio.current_time() - began < 45
    finally:
        place.server.allow(place.bucket, -1)


def test_check_sends_requests_in_parallel(place: Bucket, s3: S3Server) -> None:
    """A check sends many requests at a time.

    It needs a manifest and some files of each export so far. Previously each request waited for the
    one before.
    """
    store = place.store(lease="600")  # requests are counted, and none renews the lock
    store.open()
    for number in range(1, 9):
        export(store, 3 * number)
    listed = store.listed()
    assert [file.start for file in listed] == sorted(file.start for file in listed)
    assert len(listed) == 16
    s3.allow(place.bucket, 1, hold="yes")  # the list of manifests
    failed: list[BaseException] = []

    def look() -> None:
        try:
            store.listed()
        except ExportError as error:
            failed.append(error)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    assert wait_until(lambda: s3.held() >= 8, 240), "they wait for each other"
    s3.allow(place.bucket, -1)  # the waiting requests are refused
    looking.join(240)
    assert len(failed) == 1
    assert store.listed() == listed
    store.close()


def test_failures_of_all_threads_are_kept() -> None:
    both = threading.Barrier(2)

    def fail(number: int) -> None:
        both.wait(240)
        raise OSError(f"object {number}")

    with pytest.raises(OSError, match="object") as caught:
        together(fail, [0, 1])
    named = [str(caught.value), *caught.value.__notes__]
    assert all(any(f"object {number}" in line for line in named) for number in (0, 1))
