"""The destination directory: the lock, what is atomic, what is cleared, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_export_plan import plan_of

from trikafka import ConfigurationError, ExportError
from trikafka._api.export_plan import complete
from trikafka._api.export_store import DirectoryStore
from trikafka.interfaces import ExportPlan, WrittenFile


def written(root: Path, plan: ExportPlan) -> list[WrittenFile]:
    for file in plan.files:
        (root / file.name).write_bytes(b"data")
    return [WrittenFile(file, file.name, 1, 4) for file in plan.files]


def opened(root: Path) -> DirectoryStore:
    store = DirectoryStore(root)
    store.open()
    return store


def test_a_plan_without_its_manifest_is_unfinished(tmp_path: Path) -> None:
    store, plan = opened(tmp_path / "a" / "b"), plan_of(0, 25)
    assert store.load().last_number == 0
    store.store_plan(plan)
    assert store.load().unfinished == plan
    assert store.load().positions == {}, "nothing counts before the manifest"
    store.publish(complete(plan, written(store.root, plan)))
    state = store.load()
    assert (state.unfinished, state.last_number, state.positions) == (None, 1, plan.positions)
    store.close()


def test_a_plan_is_never_replaced(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.store_plan(plan_of(0, 5))
    with pytest.raises(ExportError, match="is there already"):
        store.store_plan(plan_of(0, 9))
    assert store.load().unfinished is not None
    assert store.load().unfinished.files == plan_of(0, 5).files  # type: ignore[union-attr]
    store.close()


def test_a_manifest_is_not_published_over_a_missing_or_short_file(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 5)
    store.store_plan(plan)
    files = written(tmp_path, plan)
    (tmp_path / plan.files[0].name).write_bytes(b"da")
    with pytest.raises(ExportError, match="does not have the 4 bytes"):
        store.publish(complete(plan, files))
    (tmp_path / plan.files[0].name).unlink()
    with pytest.raises(ExportError, match="cannot publish"):
        store.publish(complete(plan, files))
    assert store.load().unfinished is not None
    store.close()


def test_of_two_attempts_at_one_file_the_first_stays(tmp_path: Path) -> None:
    first, second, final = DirectoryStore.partial_path(tmp_path), DirectoryStore.partial_path(tmp_path), tmp_path / "f.parquet"
    assert first != second
    first.write_text("first")
    second.write_text("second")
    DirectoryStore.publish_file(first, final)
    DirectoryStore.publish_file(second, final)
    assert final.read_text() == "first"
    assert not first.exists()
    assert not second.exists()


def test_leavings_of_a_dead_run_go_at_the_next_and_at_the_end(tmp_path: Path) -> None:
    store = opened(tmp_path)
    os.close(store._lock)  # type: ignore[arg-type]  # as the kernel does when a process is killed
    DirectoryStore.partial_path(tmp_path).write_text("half")
    (tmp_path / "_trikafka" / ".plan-000001.json.x.tmp").write_text("half")
    again = opened(tmp_path)
    assert again.load().last_number == 0
    DirectoryStore.partial_path(tmp_path).write_text("half")
    again.close()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["_trikafka/lock"]


def test_the_lock_keeps_another_process_out_and_goes_with_its_holder(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from trikafka._api.export_store import DirectoryStore as D\n"
        "D(Path(sys.argv[1])).open(); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ExportError, match=rf"another export .*:{holder.pid}\)"):
            opened(tmp_path)
        holder.kill()
    opened(tmp_path).close()


def test_parquet_files_of_somebody_else_are_not_mixed_with(tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_text("x")
    store = opened(tmp_path)
    with pytest.raises(ExportError, match=r"no export's manifest lists \(such as mine.parquet\)"):
        store.load()
    store.close()


def test_a_missing_plan_is_damage(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 5)
    store.store_plan(plan)
    store.publish(complete(plan, written(tmp_path, plan)))
    (tmp_path / "_trikafka" / "plan-000001.json").unlink()
    with pytest.raises(ExportError, match="is damaged"):
        store.load()
    store.close()


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"[" * 100_000, b"", b"{}"], ids=["not UTF-8", "deep", "empty", "bare"])
def test_a_damaged_plan_is_one_sentence_with_its_file(tmp_path: Path, text: bytes) -> None:
    store = opened(tmp_path)
    (tmp_path / "_trikafka" / "plan-000001.json").write_bytes(text)
    with pytest.raises(ExportError, match=r"_trikafka/plan-000001\.json is not an export plan or manifest"):
        store.load()
    store.close()


def test_a_plan_under_anothers_number_is_damage(tmp_path: Path) -> None:
    store, plan = opened(tmp_path), plan_of(0, 5)
    store.store_plan(plan)
    store.publish(complete(plan, written(tmp_path, plan)))
    own = tmp_path / "_trikafka"
    (own / "plan-000002.json").write_bytes((own / "plan-000001.json").read_bytes())
    with pytest.raises(ExportError, match=r"plan-000002\.json is damaged: it says that it is number 1"):
        store.load()
    store.close()


@pytest.mark.parametrize("where", ["file", "file/deeper", "/proc/nowhere"])
def test_a_place_that_cannot_be_written_is_one_sentence_with_its_cause(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match=r"cannot write to .*: ") as caught:
        opened(tmp_path / where)
    assert isinstance(caught.value.__cause__, OSError)


def test_addresses_of_directories() -> None:
    assert DirectoryStore.directory_of("file:///data/with%20space") == Path("/data/with space")
    assert DirectoryStore.directory_of("some/where") == Path.cwd() / "some/where"
    for wrong in ("file://elsewhere/data", "file://"):
        with pytest.raises(ConfigurationError, match="does not name a directory of this machine"):
            DirectoryStore.directory_of(wrong)
