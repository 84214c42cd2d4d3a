"""The archive of classes and the formatted directories in the cache, each made once and used.

Neither may ever prevent a start.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from trikafka_broker import (
    BrokerError,
    BrokerStartError,
    KafkaCluster,
    archive,
    fetch_jars,
    formatting,
)
from trikafka_broker.java import find_java
from trikafka_broker.settings import DEFAULT_VERSION, TOOLS_VERSION

# A stand-in for `java`: prints its version, and accepts an archive with the word "good".
JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "21.0.1" {kind}' >&2; exit 0; fi
for option; do case "$option" in -XX:SharedArchiveFile=*) grep -q good "${{option#*=}}"; exit; esac; done
exit 1
"""


def jars_of(libs: Path) -> archive.Jars:
    return archive.Jars(libs, f"{libs}/*", libs.parent)


class Place:
    """A cache with two jars and a Java, with the numbers of reports and of written archives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libs = folder / "kafka" / "libs"
        self.java = folder / "java"
        self.libs.mkdir(parents=True)
        for name in "ab":
            (self.libs / f"{name}.jar").write_text(name)
        self.install("OpenJDK")
        self.written = 0
        self.told = 0

    def install(self, kind: str) -> None:
        self.java.write_text(JAVA.format(kind=kind))
        self.java.chmod(0o755)

    def write(self, file: Path, text: str = "good") -> None:
        self.written += 1
        file.write_text(text)

    def prepare(self, write: Callable[[Path], None] | None = None) -> Path | None:
        return archive.prepare(self.java, jars_of(self.libs), write or self.write, self.tell)

    def tell(self) -> None:
        self.told += 1

    def left(self) -> list[str]:
        return sorted(path.name for path in self.libs.parent.iterdir() if path.name != "libs")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_archive_is_written_once_and_announced(place: Place) -> None:
    file = place.prepare()
    assert file is not None
    assert file.read_text() == "good"
    assert place.prepare() == file
    assert place.written == place.told == 1
    assert place.left() == [file.parent.name, f"{file.parent.name}.attempts"]
    assert archive.using_options(file, ["-Xmx1g"])[-1] == f"-XX:SharedArchiveFile={file}"


@pytest.mark.parametrize(
    "change", ["another Java", "another jar", "a changed jar", "a missing jar"]
)
def test_other_java_or_jars_have_another_archive(place: Place, change: str) -> None:
    first = place.prepare()
    if change == "another Java":
        place.install("OpenJDK of another vendor")
        os.utime(place.java, (1, 1))
    elif change == "another jar":
        (place.libs / "c.jar").touch()
    elif change == "a changed jar":
        os.utime(place.libs / "a.jar", (1, 1))
    else:
        (place.libs / "b.jar").unlink()
    assert place.prepare() not in (None, first)
    assert place.written == 2


def test_environment_options_keep_the_archive(place: Place) -> None:
    file = place.prepare()
    told = "echo 'Picked up JAVA_TOOL_OPTIONS: -Dx=y' >&2; echo "
    place.java.write_text(place.java.read_text().replace("echo ", told, 1))
    os.utime(place.java, (1, 1))
    assert place.prepare() == file
    assert place.written == 1


@pytest.mark.parametrize("failure", ["raises", "writes nothing", "writes what is no archive"])
def test_failed_archive_is_tried_three_times(place: Place, failure: str) -> None:
    """A failure to write the archive prevents no start, and is repeated twice at most."""
    calls = 0

    def write(file: Path) -> None:
        nonlocal calls
        calls += 1
        if failure == "raises":
            raise BrokerStartError("no", file, "")
        if failure == "writes what is no archive":
            place.write(file, "half of a file")

    assert [place.prepare(write) for _ in range(5)] == [None] * 5
    assert calls == 3
    (name,) = place.left()
    assert name.endswith(".attempts")
    notes = place.libs.parent / name
    yesterday = notes.stat().st_mtime - 90_000
    os.utime(notes, (yesterday, yesterday))
    assert place.prepare() is not None


def test_read_only_cache_is_used(place: Place) -> None:
    """An archive in a cache that cannot be written is used, and none is written there."""
    file = place.prepare()
    assert file is not None
    (notes := file.parent.with_suffix(".attempts")).unlink()
    notes.mkdir()  # what the superuser, too, cannot open
    assert place.prepare() == file
    file.unlink()
    assert place.prepare() is None
    assert place.written == 1


@pytest.mark.parametrize("damage", ["cut off", "changed", "without its hash"])
def test_damaged_archive_is_replaced(place: Place, damage: str) -> None:
    file = place.prepare()
    assert file is not None
    if damage == "without its hash":
        file.with_suffix(".sha256").unlink()
    else:
        file.write_text("good, and damaged" if damage == "changed" else "go")
    assert place.prepare() == file
    assert (place.written, file.read_text()) == (2, "good")


def test_full_disk_gets_no_archive(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_ROOM", 1 << 62)
    assert place.prepare() is None
    assert place.written == 0


def test_other_kinds_of_java_get_no_archive(place: Place) -> None:
    place.install("Eclipse OpenJ9")
    assert place.prepare() is None
    assert place.left() == []


def test_one_of_two_starts_writes_the_archive(place: Place) -> None:
    began, go_on = threading.Event(), threading.Event()
    found: list[Path | None] = []

    def slow(file: Path) -> None:
        began.set()
        assert go_on.wait(240)
        place.write(file)

    thread = threading.Thread(target=lambda: found.append(place.prepare(slow)))
    thread.start()
    assert began.wait(240)
    assert place.prepare() is None
    go_on.set()
    thread.join()
    assert place.written == 1
    assert found == [place.prepare()]


def test_interrupt_leaves_no_archive(place: Place) -> None:
    """An interrupt leaves no files, and does not count as a failure."""

    def interrupted(file: Path) -> None:
        place.write(file)
        raise KeyboardInterrupt

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            place.prepare(interrupted)
    assert len(place.left()) == 1
    assert place.prepare() is not None


def test_leftovers_of_a_killed_start_are_removed(place: Place) -> None:
    file = place.prepare()
    assert file is not None
    file.unlink()
    (left := file.parent.with_name(f".{file.parent.name}-old")).mkdir()
    (left / "half").touch()
    assert place.prepare() == file
    assert left.name not in place.left()


def test_archive_in_progress_stays(place: Place) -> None:
    """An archive that another Java is writing stays.

    Previously the second process removed it, and the attempt of the first failed.
    """

    def write(file: Path) -> None:
        place.write(file)
        if place.written == 1:
            place.install("OpenJDK of another vendor")
            os.utime(place.java, (1, 1))
            assert place.prepare(write) is not None

    first = place.prepare(write)
    assert place.written == 2
    assert first is not None
    assert first.with_name("classes.sha256").exists()
    assert first.parent.with_suffix(".attempts").stat().st_size == 0


@pytest.mark.parametrize(
    "option", ["-Xshare:off", "-XX:SharedArchiveFile=own", "-XX:ArchiveClassesAtExit=own"]
)
def test_own_archive_options_disable_ours(option: str) -> None:
    assert archive.using_options(Path("ours"), ["-Xmx1g", option]) == []


#: The folders to which Kafka's storage tool writes the first records: up to 4.3, and from 4.4 on.
CHECKPOINTS = [
    "bootstrap.checkpoint",
    "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint",
]


class Tool:
    """A stand-in for Kafka's storage tool that formats one directory, and counts its runs."""

    def __init__(self, directory: Path, checkpoint: str) -> None:
        self.directory = directory
        self.checkpoint = checkpoint
        self.runs = 0

    def __call__(self, cluster_id: str) -> None:
        self.runs += 1
        (self.directory / self.checkpoint).parent.mkdir(parents=True)
        (self.directory / self.checkpoint).write_bytes(b"records")
        ids = f"cluster.id={cluster_id}\nnode.id=0\ndirectory.id=d\n"
        (self.directory / "meta.properties").write_text(f"version=1\n{ids}")


def formatted(
    folder: Path, template: Path | None, brokers: int = 2, checkpoint: str = CHECKPOINTS[0]
) -> tuple[int, list[dict[str, str]]]:
    directories = {node: folder / str(node) for node in range(brokers)}
    tool = Tool(directories[0], checkpoint)
    formatting.format_all(directories, template, tool)
    found = [
        (directory / "meta.properties").read_text().split() for directory in directories.values()
    ]
    assert all(
        (directory / checkpoint).read_bytes() == b"records" for directory in directories.values()
    )
    return tool.runs, [dict(line.split("=") for line in lines) for lines in found]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_storage_tool_runs_once(tmp_path: Path, checkpoint: str) -> None:
    """The storage tool runs once, and each cluster has ids of its own."""
    template = formatting.template_of(tmp_path / "libs", {"a": 1}, [])
    runs = [formatted(tmp_path / name, template, checkpoint=checkpoint) for name in ("one", "two")]
    assert [count for count, _ in runs] == [1, 0]
    ids = [[meta["cluster.id"] for meta in metas] for _, metas in runs]
    assert ids[0][0] == ids[0][1] != ids[1][0] == ids[1][1]
    assert [[meta["node.id"] for meta in metas] for _, metas in runs] == [["0", "1"]] * 2
    assert len({meta["directory.id"] for _, metas in runs for meta in metas}) == 4
    again = formatted(tmp_path / "one", template, checkpoint=checkpoint)
    assert again == (0, runs[0][1]), "what is formatted stays as it is"


def test_other_properties_have_another_template(tmp_path: Path) -> None:
    """Other properties and other users have a template of their own."""
    known = [({}, []), ({"a": 1}, []), ({"a": 2}, []), ({}, ["--add-scram", "x"])]
    assert (
        len(
            {
                formatting.template_of(tmp_path / "libs", properties, options)
                for properties, options in known
            }
        )
        == 4
    )


def test_without_a_template_the_tool_runs_again(tmp_path: Path) -> None:
    nowhere = tmp_path / "none" / "formatted-1"
    assert [formatted(tmp_path / name, nowhere)[0] for name in ("one", "two")] == [1, 1]


@pytest.mark.parametrize(
    "damage", ["empty", "no checkpoint", "no checkpoint's contents", "no text", "cannot be read"]
)
def test_damaged_template_is_replaced(tmp_path: Path, damage: str) -> None:
    """A damaged template is made again.

    Previously it failed this start and every later one.
    """
    template = formatting.template_of(tmp_path / "libs", {}, [])
    assert template is not None
    formatted(tmp_path / "one", template)
    if damage == "empty":
        (template / "meta.properties").write_text("")
    elif damage == "no text":
        (template / "meta.properties").write_bytes(b"\xff\xfe\0")
    elif damage == "no checkpoint":
        (template / "bootstrap.checkpoint").unlink()
    elif damage == "cannot be read":
        (template / "meta.properties").unlink()
        (template / "meta.properties").mkdir()  # what the superuser, too, cannot read
    else:
        (template / "bootstrap.checkpoint").write_bytes(b"")
    assert [formatted(tmp_path / name, template)[0] for name in ("two", "three")] == [1, 0]


def test_least_recently_used_template_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many templates the least recently used one is removed.

    Previously none was kept beyond two hundred.
    """
    monkeypatch.setattr(formatting, "_MOST", 2)
    first, second, third = (
        formatting.template_of(tmp_path / "libs", {"a": which}, []) for which in range(3)
    )
    assert first is not None
    assert second is not None
    assert third is not None
    for number, template in enumerate((first, second)):
        formatted(tmp_path / f"made {number}", template)
        os.utime(template, (number + 1, number + 1))
    assert formatted(tmp_path / "used", first)[0] == 0
    assert formatted(tmp_path / "new", third)[0] == 1
    assert [template.exists() for template in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("kept", [False, True])
def test_broker_beside_data_is_not_formatted(tmp_path: Path, kept: bool) -> None:
    """The first of several brokers with data is not formatted again.

    Previously it got another cluster's id, and never started again.
    """
    template = formatting.template_of(tmp_path / "libs", {}, []) if kept else None
    formatted(tmp_path / "one", template)
    shutil.rmtree(tmp_path / "one" / "0")
    with pytest.raises(BrokerError, match=r"has no data of a broker, but .+ has: put it back"):
        formatted(tmp_path / "one", template)
    assert not (tmp_path / "one" / "0").exists()


@pytest.mark.parametrize(
    "name", ["group.share.heartbeat.interval.ms", "num.io.threads", "listener.name.secured.x"]
)
def test_unrelated_properties_share_a_template(tmp_path: Path, name: str) -> None:
    """The storage tool writes the same files whatever the value of such a property is."""
    templates = [
        formatting.template_of(tmp_path, properties, []) for properties in ({}, {name: 500})
    ]
    assert templates[0] == templates[1]


@pytest.mark.parametrize("name", ["log.dir", "log.dirs", "metadata.log.dir"])
def test_other_log_directories_have_no_template(tmp_path: Path, name: str) -> None:
    assert formatting.template_of(tmp_path / "libs", {name: "x"}, []) is None
    assert [formatted(tmp_path / run, None)[0] for run in ("one", "two")] == [1, 1]


def test_real_brokers_use_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The cluster's tools are those of another version, whose jars are not to be downloaded again.
    jars = {version: fetch_jars(version) for version in (DEFAULT_VERSION, TOOLS_VERSION)}
    monkeypatch.setenv("TRIKAFKA_CACHE", str(tmp_path))
    for version, folder in jars.items():
        (tmp_path / f"kafka-{version}").mkdir()
        (tmp_path / f"kafka-{version}" / "libs").symlink_to(folder)
    # The tools get an archive as the broker does; a second real one would show nothing more.
    asked: list[str] = []
    find_archive = KafkaCluster._find_archive

    def find(cluster: KafkaCluster, java: Path, libs: Path, version: str) -> Path | None:
        asked.append(version)
        return None if version == TOOLS_VERSION else find_archive(cluster, java, libs, version)

    monkeypatch.setattr(KafkaCluster, "_find_archive", find)
    reported: list[str] = []
    for _ in range(2):
        with KafkaCluster(progress=reported.append) as cluster:
            file = archive.prepare(
                find_java(), jars_of(fetch_jars()), lambda file: None, lambda: None
            )
            assert file is not None
            assert str(file) in Path(f"/proc/{cluster.brokers[0].pid}/maps").read_text()
            tool = cluster.run_tool("org.apache.kafka.tools.TopicCommand", "--version")
            assert (tool.stdout.split()[0], tool.stderr) == (TOOLS_VERSION, "")
    assert reported == [f"preparing Kafka {DEFAULT_VERSION} to start more quickly from now on"]
    assert set(asked) == {DEFAULT_VERSION, TOOLS_VERSION}
