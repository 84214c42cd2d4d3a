"""Invalid destinations in HDFS, and name nodes that cannot be reached."""

from __future__ import annotations

import importlib.util
import os
import pickle
import socket
from typing import Any

import pytest
import trio
from trikafka_export import hdfs_objects
from trikafka_export.destination import find_sink, store_of
from trikafka_export.object_address import ObjectAddress
from trikafka_export.sink import FileSink

from trikafka import ConfigurationError, ExportError, open_exporter

SECRET = "the-secret-word"
QUICK = {"store.dfs.client.failover.max.attempts": "1"}


@pytest.mark.parametrize(
    ("destination", "options", "said"),
    [
        ("hdfs:///x", {}, "hdfs://HOST:PORT/path, of the name node, or hdfs://NAMESERVICE/path"),
        ("hdfs://name:port/x", {}, "hdfs://HOST:PORT/path, of the name node"),
        (
            f"hdfs://me:{SECRET}@name:8020/x",
            {},
            "has no user: that is the variable HADOOP_USER_NAME",
        ),
        ("hdfs://name:8020/x?user.name=me", {}, r"without '\?' and '#'"),
        ("hdfs://name:8020/a/../b", {}, "does not name a place"),
        (
            "hdfs://name:8020/x",
            {"store.endpoint": SECRET},
            "unknown option 'store.endpoint' of hdfs://name:8020/x: settings of",
        ),
        (
            "hdfs://name:8020/x",
            {"store.lease": "0"},
            "store.lease must be a number of seconds from 1 to 3600",
        ),
        (
            "hdfs://service/x",
            {},
            "'service' has no port, so it names a service whose name nodes must be configured",
        ),
        ("hdfs://name:8020/x", {"format": "delta"}, "tables are not written to hdfs://"),
    ],
)
def test_invalid_address_is_refused(
    destination: str, options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigurationError, match=said) as caught:
        find_sink(destination, options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "folder"), [("a%20b", "/a b"), ("a%2520b", "/a%20b"), ("a%3Fb", "/a?b")]
)
def test_quoted_sign_is_part_of_the_folder(path: str, folder: str) -> None:
    """An address is read once."""
    objects = hdfs_objects.HdfsObjects(ObjectAddress.of(f"hdfs://name:8020/{path}", {}))
    assert objects._path("x") == f"{folder}/x"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "hdfs_native" else found(name)
    )
    with pytest.raises(
        ConfigurationError, match=r"need the package hdfs-native: .*trikafka-export\[hdfs\]"
    ):
        find_sink("hdfs://name:8020/x", {})


def test_settings_keep_case_and_reach_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings of Hadoop keep their case, and a pickled address has the user and the secrets."""
    monkeypatch.setenv("HADOOP_USER_NAME", "me")
    name = "dfs.client.failover.resolver.useFQDN"
    address = ObjectAddress.of(
        "hdfs://name:8020/x/", {f"store.{name}": "false", "store.kerberos_keytab": SECRET}
    )
    assert SECRET not in repr(address)
    carried = pickle.loads(pickle.dumps(address))
    assert carried.url == "hdfs://name:8020/x"
    assert carried.config[name] == "false"
    assert carried.client == {"kerberos_keytab": SECRET, "user": "me"}


def test_large_files_are_accepted() -> None:
    FileSink.from_options({"destination": "hdfs://name:8020/x", "max_bytes_per_file": 8 << 30})


def test_unreachable_name_node_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"hdfs://127.0.0.1:{unused.getsockname()[1]}/x"
        with pytest.raises(ExportError, match=f"cannot write to {address}: .*Connection refused"):
            store_of(address, QUICK)[0].open()


def test_silent_name_node_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_objects, "_ANSWER_LIMIT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(ExportError, match=f"cannot write to {address}: .*no response for 0 s"):
            store_of(address, {})[0].open()


async def test_cancelled_export_skips_silent_name_node() -> None:
    """A cancelled export does not wait for a name node that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/x"
        began = trio.current_time()
        with trio.move_on_after(0.3) as scope:
            async with open_exporter("t", address, bootstrap_servers="localhost:1"):
                pass
        assert scope.cancelled_caught
        assert trio.current_time() - began < 45


def test_user_in_the_environment_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    store_of("hdfs://name:8020/of-nobody", {})
    assert "HADOOP_USER_NAME" not in os.environ
