"""The search for Java and Ivy, and the cache of jars, with stand-ins for both programs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from trikafka_broker import BrokerError, DownloadError, JavaError, KafkaCluster, fetch_jars, jars
from trikafka_broker.java import find_java, parse_version
from trikafka_broker.settings import DEFAULT_VERSION, OLDEST_VERSION, TOOLS_VERSION

# A stand-in for `java`: answers -version, and writes jars to the place of -retrieve as Ivy does.
FAKE_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2025-04-15' >&2; exit 0; fi
for last; do :; done
folder=$(dirname "$last")
{ivy}
"""
DOWNLOADS = """
mkdir -p "$folder"
echo run >> {runs}
echo "	found org.apache.kafka#kafka_2.13;9.9.9 in central"
echo "	[SUCCESSFUL ] org.apache.kafka#kafka_2.13;9.9.9!kafka_2.13.jar (1ms)"
touch "$folder/kafka_2.13-9.9.9.jar"
"""
NO_TOOLS = """
echo run >> {runs}
if grep -q 'name="kafka-tools"' "$(dirname "$folder")/ivy.xml"; then
  echo "		module not found: org.apache.kafka#kafka-tools;9.9.9"; exit 1
fi
mkdir -p "$folder"
touch "$folder/kafka_2.13-9.9.9.jar"
"""
FAILS = """
echo "	Server access error at url x.pom (java.net.UnknownHostException: x)"
echo "		module not found: org.apache.kafka#kafka-tools;9.9.9"
exit 1
"""


class Machine:
    """A machine with a `java` of our own, an Ivy jar and an empty cache."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = folder / "cache"
        self.runs = folder / "runs"
        self._bin = folder / "bin"
        self._bin.mkdir()
        ivy = folder / "ivy.jar"
        ivy.touch()
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", f"{self._bin}:/usr/bin:/bin")
        monkeypatch.setenv("TRIKAFKA_CACHE", str(self.cache))
        monkeypatch.setenv("TRIKAFKA_IVY_JAR", str(ivy))

    def install_java(self, version: str = "21.0.1", ivy: str = "exit 9") -> None:
        java = self._bin / "java"
        java.write_text(FAKE_JAVA.format(version=version, ivy=ivy.format(runs=self.runs)))
        java.chmod(0o755)

    def downloads(self) -> int:
        return len(self.runs.read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def two_free_ports() -> int:
    """Return the first of two consecutive free ports."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as first, contextlib.suppress(OSError):
            port: int = first.getsockname()[1]
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port
    raise AssertionError("all ports are in use")


@pytest.mark.parametrize(
    ("options", "listener"), [({}, "PLAINTEXT"), ({"sasl": ["scram"]}, "SECURED")]
)
def test_given_port_is_for_clients(options: Any, listener: str) -> None:
    """The given port is that of the listener for clients."""
    for attempt in range(10):
        port = two_free_ports()
        cluster = KafkaCluster(brokers=2, port=port, **options)
        try:
            first = cluster._choose_ports(0, {})
            second = cluster._choose_ports(1, {"CONTROLLER": 1})
            break
        except BrokerError:  # another program has taken one of them meanwhile
            cluster._ports.release()
            if attempt == 9:
                raise
    try:
        assert (first[listener], second[listener]) == (port, port + 1)
        assert len({*first.values(), *second.values()}) == len(first) + len(second)
        assert set(first) == {"PLAINTEXT", "CONTROLLER", *cluster.settings.client_listeners}
    finally:
        cluster._ports.release()


def test_missing_java_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        JavaError, match="No Java was found in JAVA_HOME or PATH: install Java 17 or newer"
    ):
        KafkaCluster().start()


def test_old_java_is_an_error(machine: Machine) -> None:
    machine.install_java("1.8.0_302")
    with pytest.raises(JavaError, match="is Java 8, and Kafka needs Java 17 or newer"):
        KafkaCluster().start()


def test_java_home_precedes_the_path(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.install_java("11.0.2")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(FAKE_JAVA.format(version="25", ivy=""))
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home / "bin" / "java"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('java version "1.8.0_302"', 8),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" x', 25),
    ],
)
def test_java_version_is_parsed(text: str, version: int) -> None:
    assert parse_version(text) == version


def test_unreadable_java_version_is_an_error() -> None:
    with pytest.raises(JavaError, match="names no version: 'what'"):
        parse_version("what")


def test_download_is_done_once_and_reported(machine: Machine) -> None:
    machine.install_java(ivy=DOWNLOADS)
    lines: list[str] = []
    libs = fetch_jars("9.9.9", progress=lines.append)
    assert libs == machine.cache / "kafka-9.9.9" / "libs"
    assert "1 of 1 jars: kafka_2.13.jar" in lines
    assert fetch_jars("9.9.9") == libs
    assert machine.downloads() == 1


def test_download_is_compared_with_its_hashes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install_java(ivy=DOWNLOADS)
    lines: list[str] = []
    known = {"kafka_2.13-9.9.9.jar": hashlib.sha256(b"other").hexdigest(), "x.jar": ""}
    with monkeypatch.context() as patch:
        patch.setattr(jars, "known_hashes", lambda version: known)
        with pytest.raises(
            DownloadError,
            match=r"Jars of Kafka 9.9.9 have other .* not used: kafka_2.13-9.9.9.jar, x.jar",
        ):
            fetch_jars("9.9.9")
        assert list(machine.cache.glob("*kafka-9.9.9*/")) == []
        known = {"kafka_2.13-9.9.9.jar": hashlib.sha256(b"").hexdigest()}
        assert fetch_jars("9.9.9", progress=lines.append).is_dir()
    assert not [line for line in lines if "no hashes" in line]


@pytest.mark.parametrize("known", [True, False])
def test_cached_jars_are_compared_at_each_use(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    machine.install_java(ivy=DOWNLOADS)
    if known:
        hashes = {"kafka_2.13-9.9.9.jar": hashlib.sha256(b"").hexdigest()}
        monkeypatch.setattr(jars, "known_hashes", lambda version: hashes)
    libs = fetch_jars("9.9.9")
    jar = libs / "kafka_2.13-9.9.9.jar"
    before = jar.stat()
    jar.write_bytes(b"x")
    os.utime(jar, ns=(before.st_atime_ns, before.st_mtime_ns))
    says = rf"not run: kafka_2.13-9.9.9.jar; remove {libs.parent} to have them downloaded again"
    with pytest.raises(BrokerError, match=says):
        fetch_jars("9.9.9")
    with pytest.raises(BrokerError, match="are not those that were downloaded"):
        KafkaCluster(version="9.9.9").start()
    jar.write_bytes(b"")
    assert fetch_jars("9.9.9") == libs
    (libs / "added.jar").touch()
    with pytest.raises(BrokerError, match=r"not run: added\.jar;"):
        fetch_jars("9.9.9")
    assert machine.downloads() == 1


def test_cache_without_hashes_records_them(machine: Machine) -> None:
    libs = machine.cache / "kafka-9.9.9" / "libs"
    libs.mkdir(parents=True)
    (libs / "a.jar").write_bytes(b"a")
    assert fetch_jars("9.9.9") == libs
    (libs / "a.jar").write_bytes(b"b")
    with pytest.raises(BrokerError, match=r"not run: a\.jar;"):
        fetch_jars("9.9.9")


def test_version_without_hashes_is_reported(machine: Machine) -> None:
    machine.install_java(ivy=DOWNLOADS)
    lines: list[str] = []
    fetch_jars("9.9.9", progress=lines.append)
    assert "no hashes are known of Kafka 9.9.9: its jars are as the repository gave them" in lines


@pytest.mark.parametrize("version", [OLDEST_VERSION, TOOLS_VERSION, DEFAULT_VERSION])
def test_hashes_are_those_of_the_used_jars(version: str) -> None:
    known = jars.known_hashes(version)
    assert known == {
        jar.name: hashlib.sha256(jar.read_bytes()).hexdigest()
        for jar in fetch_jars(version).iterdir()
    }


def test_one_damaged_byte_is_found(tmp_path: Path) -> None:
    for jar in fetch_jars().iterdir():
        (tmp_path / jar.name).symlink_to(jar)
    jars._check(DEFAULT_VERSION, tmp_path, print)
    damaged = min(tmp_path.glob("kafka-clients-*.jar"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.unlink()
    damaged.write_bytes(content)
    with pytest.raises(DownloadError, match=f"are not used: {damaged.name}"):
        jars._check(DEFAULT_VERSION, tmp_path, print)


def test_hashes_name_their_source() -> None:
    files = list(Path(jars.__file__).with_name("hashes").iterdir())
    assert len(files) == 6
    for file in files:
        assert "published" in "".join(
            line for line in file.read_text().splitlines() if line.startswith("#")
        )
        known = jars.known_hashes(file.name.removeprefix("kafka-").removesuffix(".sha256"))
        assert known
        assert {len(bytes.fromhex(digest)) for digest in known.values()} == {32}


def test_missing_tools_are_left_out(machine: Machine) -> None:
    machine.install_java(ivy=NO_TOOLS)
    lines: list[str] = []
    assert list(fetch_jars("9.9.9", progress=lines.append).iterdir())
    assert machine.downloads() == 2
    assert "Kafka 9.9.9 has no kafka-tools (yet): going on without" in lines


def test_failed_download_names_its_log(machine: Machine) -> None:
    """The error of a failed download quotes Ivy's error and names its log file."""
    machine.install_java(ivy=FAILS)
    with pytest.raises(
        DownloadError, match=r"Kafka 9.9.9 could not be downloaded: .*UnknownHostException"
    ) as caught:
        fetch_jars("9.9.9")
    assert caught.value.log_file is not None
    assert caught.value.log_file.exists()
    assert not (machine.cache / "kafka-9.9.9").exists()
    assert list(machine.cache.glob(".kafka-*")) == []


def test_leftover_of_a_killed_download_is_removed(machine: Machine) -> None:
    machine.install_java(ivy=DOWNLOADS)
    (machine.cache / ".kafka-9.9.9-killed" / "libs").mkdir(parents=True)
    assert list(fetch_jars("9.9.9").iterdir())
    assert list(machine.cache.glob(".kafka-*")) == []


def test_parallel_starts_download_once(machine: Machine) -> None:
    machine.install_java(ivy="sleep 0.3\n" + DOWNLOADS)
    program = [
        sys.executable,
        "-c",
        "from trikafka_broker import fetch_jars; print(fetch_jars('9.9.9'))",
    ]
    other = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    threads = [threading.Thread(target=fetch_jars, args=("9.9.9",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    stdout, _ = other.communicate(timeout=400)
    assert stdout.strip() == str(machine.cache / "kafka-9.9.9" / "libs")
    assert machine.downloads() == 1


def test_unwritable_cache_is_an_error(machine: Machine) -> None:
    machine.install_java(ivy=DOWNLOADS)
    machine.cache.touch()
    with pytest.raises(DownloadError, match="cannot be put into"):
        fetch_jars("9.9.9")


def test_missing_ivy_is_an_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install_java()
    monkeypatch.delenv("TRIKAFKA_IVY_JAR")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        BrokerError, match=r"TRIKAFKA_IVY_JAR .* choose a known version: .*, 4\.4\.0"
    ):
        fetch_jars("9.9.9")


def test_wrong_path_of_ivy_is_an_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install_java()
    monkeypatch.setenv("TRIKAFKA_IVY_JAR", "/nowhere/ivy.jar")
    with pytest.raises(BrokerError, match=r"TRIKAFKA_IVY_JAR names /nowhere/ivy.jar"):
        fetch_jars("9.9.9")


@pytest.mark.parametrize("version", ["", "newest", "4.3.1/../..", "4"])
def test_invalid_version_is_refused(version: str) -> None:
    with pytest.raises(BrokerError, match="is not a version of Kafka"):
        fetch_jars(version)


def test_java_home_without_java_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="JAVA_HOME is"):
        find_java()
