"""Calls to HDFS whose responses are lost or late, or that meet those of another process.

The name node is in memory: what :mod:`hdfs_native` does with it, call by call.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from hdfs_server import hdfs_server
from trikafka_export import hdfs_objects
from trikafka_export.hdfs_objects import HdfsObjects
from trikafka_export.object_address import ObjectAddress, ObjectStoreError
from trikafka_export.object_store import ObjectStore
from trikafka_export.objects import objects_at


class Reader(io.BytesIO):
    """An open file with a length, as the client's."""

    def __len__(self) -> int:
        return len(self.getbuffer())

    def read_range(self, offset: int, length: int) -> bytes:
        return self.getvalue()[offset : offset + length]


class NameNode:
    """All files, by their paths; folders are ``None``. ``before`` is called ahead of each call."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.paths: dict[str, bytes | None] = {"/": None}
        self.before: Callable[..., None] = lambda *call: None
        self.after: Callable[..., None] = lambda *call: None
        self.modified = 0
        #: So many opened files are still without their last block.
        self.unreported = 0

    def _folders(self, path: str) -> None:
        for folder in PurePosixPath(path).parents:
            self.paths.setdefault(str(folder), None)

    def get_file_info(self, path: str) -> Any:
        self.before("info", path)
        if path not in self.paths:
            raise FileNotFoundError(path)
        body = self.paths[path]
        return SimpleNamespace(
            path=path,
            isdir=body is None,
            length=len(body or b""),
            modification_time=self.modified,
        )

    def list_status(self, path: str, recursive: bool) -> Iterator[Any]:
        self.before("list", path)
        if path not in self.paths:
            raise FileNotFoundError(path)
        for name in sorted(self.paths):
            if name != path and str(PurePosixPath(name).parent) == path and name in self.paths:
                status = self.get_file_info(name)
                yield status
                if status.isdir and recursive:
                    yield from self.list_status(name, True)

    def read(self, path: str) -> Any:
        self.before("read", path)
        if path not in self.paths:
            raise FileNotFoundError(path)
        if self.unreported:
            self.unreported -= 1
            return Reader()
        return Reader(self.paths[path] or b"")

    def create(self, path: str, options: Any) -> Any:
        self.before("create", path)
        if path in self.paths and not options.overwrite:
            raise FileExistsError(path)
        if not options.create_parent and str(PurePosixPath(path).parent) not in self.paths:
            raise FileNotFoundError(path)
        self._folders(path)
        self.paths[path] = b""
        self.after("create", path)
        return Writer(self, path)

    def mkdirs(self, path: str, mode: int, create_parent: bool) -> None:
        self.before("mkdirs", path)
        self._folders(path)
        self.paths.setdefault(path, None)

    def rename(self, source: str, target: str) -> None:
        self.before("rename", source, target)
        if source not in self.paths or str(PurePosixPath(target).parent) not in self.paths:
            raise FileNotFoundError(source)
        if target in self.paths:
            raise FileExistsError(target)
        for name in self._below(source):
            self.paths[target + name.removeprefix(source)] = self.paths.pop(name)
        self.after("rename", source, target)

    def delete(self, path: str, recursive: bool = False) -> bool:
        self.before("delete", path)
        below = self._below(path)
        if len(below) > 1 and not recursive:
            raise RuntimeError(f"{path} is non empty")
        for name in below:
            del self.paths[name]
        return bool(below)

    def _below(self, path: str) -> list[str]:
        return [name for name in self.paths if name == path or name.startswith(f"{path}/")]


class Writer:
    def __init__(self, node: NameNode, path: str) -> None:
        self.node = node
        self.path = path

    def write(self, data: bytes) -> None:
        self.node.before("write", self.path)
        self.node.paths[self.path] = (self.node.paths[self.path] or b"") + bytes(data)

    def close(self) -> None:
        self.node.before("close", self.path)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> NameNode:
    node = NameNode()
    monkeypatch.setattr(hdfs_objects, "Client", lambda *given, **more: node)
    return node


@pytest.fixture
def objects(node: NameNode) -> HdfsObjects:
    return HdfsObjects(ObjectAddress("hdfs://name:1/lake"))


@pytest.fixture
def store(objects: HdfsObjects, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr("trikafka_export.object_store.objects_at", lambda address: objects)
    return ObjectStore(ObjectAddress("hdfs://name:1/lake"))


def files(node: NameNode) -> list[str]:
    return sorted(name for name, body in node.paths.items() if body is not None)


def test_folder_may_vanish_while_listed(node: NameNode, objects: HdfsObjects) -> None:
    for name in ("_trikafka/work/000001-a/x", "t=1/a.parquet", "z.parquet"):
        objects.put_new(name, b"1")

    def gone(call: str, path: str, *more: str) -> None:
        if (call, path) == ("list", "/lake/_trikafka/work/000001-a"):
            node.before = lambda *call: None
            node.delete(path, recursive=True)

    node.before = gone
    assert list(objects.names()) == ["t=1/a.parquet", "z.parquet"]


def test_leftover_of_a_killed_process_is_removed(node: NameNode, store: ObjectStore) -> None:
    store.open()
    store.close()
    before = files(node)
    node.paths |= {
        "/lake/_trikafka/probe-1": None,
        "/lake/_trikafka/probe-1/v": b"{}",
        "/lake/_trikafka/probe-1/at-v": b"",
        "/lake/_trikafka/probe-2": b"",
    }
    again = ObjectStore(ObjectAddress("hdfs://name:1/lake"))
    again.open()
    assert again._now is not None
    again._now = again._now.replace(year=2100)
    again.close()
    left = [name for name in node.paths if "probe-" in name]
    assert left == []
    assert len(files(node)) == len(before)


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Return what ``check`` returns in a fork of this process, which has a limit of 30 s."""
    gc.collect()  # clients of other tests, which the fork could not drop
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os._exit(not check())
    return os.waitpid(pid, 0)[1] == 0


def test_fork_has_its_own_client(node: NameNode) -> None:
    """The parent's has threads that a fork does not have, and so never responds there."""
    address = ObjectAddress("hdfs://name:1/forked")
    parent = objects_at(address)
    assert objects_at(address) is parent
    assert in_a_fork(lambda: objects_at(address) is not parent)


def test_fork_drops_no_client_of_its_parent(node: NameNode) -> None:
    """A client that is dropped waits for its threads, which the fork does not have."""
    addresses = [ObjectAddress(f"hdfs://name:1/many-{number}") for number in range(8)]
    parents = [weakref.ref(objects_at(address)) for address in addresses]
    assert all(parent() for parent in parents)

    def check() -> bool:
        for address in addresses:
            objects_at(address)
        gc.collect()
        return all(parent() for parent in parents)

    assert in_a_fork(check)


def test_failed_swaps_leave_nothing(node: NameNode, objects: HdfsObjects) -> None:
    version = objects.begin("lock", b"0")
    before = files(node)

    def no_data_node(call: str, *paths: str) -> None:
        if call == "write":
            raise RuntimeError("no data node")

    node.before = no_data_node
    for _ in range(3):
        with pytest.raises(ObjectStoreError, match="no data node"):
            objects.swap("lock", b"1", version)
    node.before = lambda *call: None
    assert files(node) == before
    assert objects.swap("lock", b"1", version)
    assert objects.current("lock")[0] == b"1"


@pytest.mark.parametrize("call", ["create", "rename"])
@pytest.mark.parametrize("at", range(5))
def test_request_with_lost_response_is_repeated(
    node: NameNode, objects: HdfsObjects, call: str, at: int
) -> None:
    """hdfs-native repeats the request, and meets what the first one has done."""
    seen = 0

    def lost(done: str, path: str, *more: str) -> None:
        nonlocal seen
        seen += done == call
        if done == call and seen == at + 1:
            raise FileExistsError(path) if call == "create" else FileNotFoundError(path)

    node.after = lost
    assert objects.put_new("_trikafka/plan-1.json", b"1")
    version = objects.begin("_trikafka/work/1/ledger", b"0")
    assert version
    assert objects.swap("_trikafka/work/1/ledger", b"1", version)
    assert objects.current("_trikafka/work/1/ledger")[0] == b"1"
    assert objects.read("_trikafka/plan-1.json") == b"1"
    assert not objects.put_new("_trikafka/plan-1.json", b"2")
    assert objects.begin("_trikafka/work/1/ledger", b"2") is None


def test_file_without_its_last_block_is_opened_again(
    node: NameNode, objects: HdfsObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed file looks empty until a data node has reported its block."""
    monkeypatch.setattr(hdfs_objects, "_REPORT_PAUSE", 0)
    objects.put_new("manifest", b"all of it")
    node.unreported = 3
    assert objects.read("manifest") == b"all of it"
    node.unreported = 3
    assert objects.part("manifest", 4, 9) == b"of it"
    version = objects.begin("ledger", b"{}")
    node.unreported = 3
    body, found = objects.current("ledger")
    assert (body, found.version) == (b"{}", version)


def test_block_that_is_never_reported_is_an_error(
    node: NameNode, objects: HdfsObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_objects, "_REPORT_LIMIT", 0.01)
    objects.put_new("manifest", b"all of it")
    node.unreported = 1_000_000
    with pytest.raises(ObjectStoreError, match="only 0 of 9 bytes can be read: no data node"):
        objects.read("manifest")


def test_late_report_of_a_block_hides_no_bytes(tmp_path: Path) -> None:
    """The same with Hadoop's own name node, to which the data nodes report each two seconds."""
    late = "dfs.blockreport.incremental.intervalMsec=2000"
    with hdfs_server(tmp_path, late) as server:
        objects = HdfsObjects(ObjectAddress.of(f"hdfs://{server.address}/late", {}))
        names = [f"manifest-{number}" for number in range(4)]
        plain = []
        for name in names:
            assert objects.put_new(name, b"all of it")
            plain.append(server.read(f"/late/{name}"))
        assert b"" in plain, "the client by itself sees a closed file as empty"
        assert [objects.read(name) for name in names] == [b"all of it"] * 4
