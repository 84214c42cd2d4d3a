"""``--check --deep`` notices a change of any byte, in a directory and in an object store."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import obstore
import pyarrow.parquet as pq
import pytest
from made_batches import batch
from s3_server import S3Server
from test_formats_dead_letters import row
from test_stores import Bucket, Directory, Place, finish, planned
from trikafka_export.checking import check
from trikafka_export.formats.dead_letters import FileLetters
from trikafka_export.piece_log import ExportPiece
from trikafka_export.pieces import PieceWriter, Shape
from trikafka_export.plan_json import files_from_json, plan_from_json
from trikafka_export.store import ExportStore

from trikafka import ExportError
from trikafka.interfaces import ExportCheck

FLIPS = 200


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Directory(tmp_path / "lake")
    server: S3Server = request.getfixturevalue("s3")
    return Bucket(server, server.bucket())


def export(place: Place, compression: str = "zstd") -> ExportStore:
    """Export a partition of three ranges, some thousand rows each; return the store, closed."""
    store = place.store()
    store.open()
    plan = planned(store, 3_000, most=1_000)
    assert plan is not None
    store.store_plan(plan)
    for each in plan.ranges:
        writer = PieceWriter(
            store.pieces(plan, each), each, each.start, Shape(compression, row_group_rows=400), {}
        )
        for at in range(each.start, each.end, 200):
            writer.add(batch(at, [b"value-%d" % offset for offset in range(at, at + 200)]))
        writer.finish(each.end)
    finish(store, plan)
    store.close()
    return store


def files(place: Place) -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """Return the bytes of all data files, and a function that replaces them."""
    if isinstance(place, Directory):
        return {
            str(path): (path.read_bytes(), path.write_bytes)
            for path in place.root.rglob("*.parquet")
        }
    assert isinstance(place, Bucket)
    store = place.server.store(place.bucket)
    found = place.server.objects(place.bucket)
    return {
        name: (body, lambda new, name=name: obstore.put(store, name, new))
        for name, body in found.items()
        if name.endswith(".parquet") and "_trikafka" not in name
    }


def checked(store: ExportStore, *, deep: bool = True) -> ExportCheck:
    return check(store, deep=deep)


def test_each_flipped_byte_is_found(place: Place) -> None:
    store, chance = export(place), random.Random(21)
    assert (
        checked(store)
        == checked(store, deep=False)
        == ExportCheck(3, 3_000, sum(len(b) for b, _ in files(place).values()), ())
    )
    stands = files(place)
    flips = FLIPS if isinstance(place, Directory) else 20
    for _ in range(flips):
        name, (body, put) = chance.choice(sorted(stands.items()))
        at = chance.randrange(len(body))
        put(body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :])
        (problem,) = checked(store).problems
        assert "has changed: its CRC-32C is" in problem
        assert Path(name).name in problem
        put(body)
    assert checked(store).problems == ()


def test_export_without_checksums_is_decoded(tmp_path: Path) -> None:
    """An export whose manifest has no checksums is decoded.

    Pages of our files have checksums of their own, which detect flipped bits.
    """
    place = Directory(tmp_path / "lake")
    store = export(place, "none")
    (manifest,) = place.root.rglob("manifest-*.json")
    body = json.loads(manifest.read_text())
    del body["checksum"]  # of the manifest itself: older releases had none, either
    for each in body["ranges"]:
        for file in each["files"]:
            assert len(file.pop("crc32c")) == 8
    manifest.write_text(json.dumps(body))
    assert checked(store) == ExportCheck(3, 3_000, body["bytes"], (), unhashed=3)
    assert checked(store, deep=False).unhashed == 0
    name, (body_of_file, put) = sorted(files(place).items())[0]
    column = pq.read_metadata(name).row_group(0).column(1)
    at = column.data_page_offset + column.total_compressed_size // 2
    put(body_of_file[:at] + bytes([body_of_file[at] ^ 1]) + body_of_file[at + 1 :])
    assert "is not a whole Parquet file" in checked(store).problems[0]


def test_strange_checksum_damages_the_manifest(tmp_path: Path) -> None:
    place = Directory(tmp_path / "lake")
    store = export(place)
    (manifest,) = place.root.rglob("manifest-*.json")
    body = manifest.read_text().replace('"crc32c": "', '"crc32c": "x')
    manifest.write_text(re.sub(r',\n "checksum".*', "", body))
    with pytest.raises(Exception, match="is not an export manifest: ValueError: crc32c is 'x"):
        checked(store)


def test_each_flipped_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    """A changed position looks like any other: the next export would skip or repeat records."""
    place, chance = Directory(tmp_path / "lake"), random.Random(7)
    store = export(place)
    (manifest,) = place.root.rglob("manifest-*.json")
    (plan,) = place.root.rglob("plan-*.json")
    for path in (manifest, plan):
        body = path.read_bytes()
        for at in {*chance.choices(range(len(body)), k=FLIPS), *range(len(body) - 30, len(body))}:
            damaged = body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :]
            with pytest.raises(ExportError):
                (files_from_json if path is manifest else plan_from_json)(damaged, str(path))
        path.write_bytes(body.replace(b"3000", b"2000"))
        if path is manifest:
            with pytest.raises(
                ExportError, match=r"manifest-000001\.json cannot be used: its check"
            ):
                checked(store)
            with pytest.raises(ExportError, match="it has changed since it was written"):
                place.store().load()
        path.write_bytes(body)
    assert checked(store).problems == ()


def test_dead_letters_are_compared(tmp_path: Path) -> None:
    """The deep check compares files of dead letters with their checksums; they may be missing."""
    place = Directory(tmp_path / "lake")
    store = place.store()
    store.open()
    plan = planned(store, 6)
    assert plan is not None
    store.store_plan(plan)
    pieces = store.pieces(plan, plan.ranges[0])
    letters = FileLetters(pieces)
    letters.add([(row(0), "no"), (row(5), "\u4e00")])
    staged = letters.staged(0)
    assert staged is not None
    pieces.decide(ExportPiece(0, 6, (staged,), dead_letters=2))
    finish(store, plan)
    store.close()
    assert checked(store) == ExportCheck(0, 0, 0, ())
    (file,) = place.root.rglob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b"no", b"on"))
    assert checked(store, deep=False).problems == ()
    (problem,) = checked(store).problems
    assert problem.startswith(f"_dead_letters/{file.name} has changed: its CRC-32C is ")
    file.unlink()
    assert checked(store).problems == ()


def test_missing_last_byte_is_found(tmp_path: Path) -> None:
    place = Directory(tmp_path / "lake")
    store = export(place)
    (body, put), *_ = files(place).values()
    put(body[:-1])
    assert len(checked(store).problems) == 1
