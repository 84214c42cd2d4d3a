"""The archive of classes and the formatted directories in the cache: made once, used, never in the way."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trikafka_broker import BrokerError, BrokerStartError, KafkaCluster, archive, fetch_jars, formatting
from trikafka_broker.java import find_java
from trikafka_broker.settings import DEFAULT_VERSION

# Stands in for `java`: says its version, and takes an archive for good if it holds the word.
JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "21.0.1" {kind}' >&2; exit 0; fi
for option; do case "$option" in -XX:SharedArchiveFile=*) grep -q good "${{option#*=}}"; exit; esac; done
exit 1
"""


def jars_of(libs: Path) -> archive.Jars:
    return archive.Jars(libs, f"{libs}/*", libs.parent)


class Place:
    """A cache with two jars, a Java, and how often it was told and written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.libs, self.java = folder, folder / "kafka" / "libs", folder / "java"
        self.libs.mkdir(parents=True)
        for name in "ab":
            (self.libs / f"{name}.jar").write_text(name)
        self.install("OpenJDK")
        self.written = self.told = 0

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


def test_it_is_written_once_and_told(place: Place) -> None:
    file = place.prepare()
    assert file is not None
    assert file.read_text() == "good"
    assert place.prepare() == file
    assert place.written == place.told == 1
    assert place.left() == [file.parent.name, f"{file.parent.name}.attempts"]
    assert archive.using_options(file, ["-Xmx1g"])[-1] == f"-XX:SharedArchiveFile={file}"


@pytest.mark.parametrize("change", ["another Java", "another jar", "a changed jar", "a missing jar"])
def test_another_java_and_other_jars_have_another(place: Place, change: str) -> None:
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


def test_options_of_the_environment_make_no_other(place: Place) -> None:
    file = place.prepare()
    told = "echo 'Picked up JAVA_TOOL_OPTIONS: -Dx=y' >&2; echo "
    place.java.write_text(place.java.read_text().replace("echo ", told, 1))
    os.utime(place.java, (1, 1))
    assert place.prepare() == file
    assert place.written == 1


@pytest.mark.parametrize("failure", ["raises", "writes nothing", "writes what is no archive"])
def test_a_failure_costs_no_start_and_is_repeated_twice_at_most(place: Place, failure: str) -> None:
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


def test_a_cache_that_cannot_be_written_is_used_as_it_is(place: Place) -> None:
    file = place.prepare()
    assert file is not None
    (notes := file.parent.with_suffix(".attempts")).unlink()
    notes.mkdir()  # what the superuser, too, cannot open
    assert place.prepare() == file
    file.unlink()
    assert place.prepare() is None
    assert place.written == 1


@pytest.mark.parametrize("damage", ["cut off", "changed", "without its hash"])
def test_a_damaged_one_is_written_anew(place: Place, damage: str) -> None:
    file = place.prepare()
    assert file is not None
    if damage == "without its hash":
        file.with_suffix(".sha256").unlink()
    else:
        file.write_text("good, and damaged" if damage == "changed" else "go")
    assert place.prepare() == file
    assert (place.written, file.read_text()) == (2, "good")


def test_a_full_disk_gets_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_ROOM", 1 << 62)
    assert place.prepare() is None
    assert place.written == 0


def test_another_kind_of_java_gets_none(place: Place) -> None:
    place.install("Eclipse OpenJ9")
    assert place.prepare() is None
    assert place.left() == []


def test_of_two_at_once_one_writes_and_the_other_goes_without(place: Place) -> None:
    began, go_on = threading.Event(), threading.Event()
    found: list[Path | None] = []

    def slow(file: Path) -> None:
        began.set()
        assert go_on.wait(20)
        place.write(file)

    thread = threading.Thread(target=lambda: found.append(place.prepare(slow)))
    thread.start()
    assert began.wait(20)
    assert place.prepare() is None
    go_on.set()
    thread.join()
    assert place.written == 1
    assert found == [place.prepare()]


def test_interrupted_it_leaves_nothing_and_counts_nothing(place: Place) -> None:
    def interrupted(file: Path) -> None:
        place.write(file)
        raise KeyboardInterrupt

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            place.prepare(interrupted)
    assert len(place.left()) == 1
    assert place.prepare() is not None


def test_what_a_killed_one_has_left_goes(place: Place) -> None:
    file = place.prepare()
    assert file is not None
    file.unlink()
    (left := file.parent.with_name(f".{file.parent.name}-old")).mkdir()
    (left / "half").touch()
    assert place.prepare() == file
    assert left.name not in place.left()


def test_what_another_java_is_writing_stays(place: Place) -> None:
    """Before, the second removed what the first was writing, whose attempt failed by that."""

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


@pytest.mark.parametrize("option", ["-Xshare:off", "-XX:SharedArchiveFile=own", "-XX:ArchiveClassesAtExit=own"])
def test_who_gives_such_options_gets_no_others(option: str) -> None:
    assert archive.using_options(Path("ours"), ["-Xmx1g", option]) == []


class Tool:
    """Stands in for Kafka's storage tool: formats one directory, and counts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.runs = directory, 0

    def __call__(self, cluster_id: str) -> None:
        self.runs += 1
        self.directory.mkdir(parents=True)
        (self.directory / "bootstrap.checkpoint").write_bytes(b"records")
        ids = f"cluster.id={cluster_id}\nnode.id=0\ndirectory.id=d\n"
        (self.directory / "meta.properties").write_text(f"version=1\n{ids}")


def formatted(folder: Path, template: Path | None, brokers: int = 2) -> tuple[int, list[dict[str, str]]]:
    directories = {node: folder / str(node) for node in range(brokers)}
    tool = Tool(directories[0])
    formatting.format_all(directories, template, tool)
    found = [(directory / "meta.properties").read_text().split() for directory in directories.values()]
    assert all((directory / "bootstrap.checkpoint").read_bytes() == b"records" for directory in directories.values())
    return tool.runs, [dict(line.split("=") for line in lines) for lines in found]


def test_the_storage_tool_runs_once_and_each_cluster_has_ids_of_its_own(tmp_path: Path) -> None:
    template = formatting.template_of(tmp_path / "libs", {"a": 1}, [])
    runs = [formatted(tmp_path / name, template) for name in ("one", "two")]
    assert [count for count, _ in runs] == [1, 0]
    ids = [[meta["cluster.id"] for meta in metas] for _, metas in runs]
    assert ids[0][0] == ids[0][1] != ids[1][0] == ids[1][1]
    assert [[meta["node.id"] for meta in metas] for _, metas in runs] == [["0", "1"]] * 2
    assert len({meta["directory.id"] for _, metas in runs for meta in metas}) == 4
    assert formatted(tmp_path / "one", template) == (0, runs[0][1]), "what is formatted stays as it is"


def test_other_properties_and_other_users_are_formatted_anew(tmp_path: Path) -> None:
    known = [({}, []), ({"a": 1}, []), ({"a": 2}, []), ({}, ["--add-scram", "x"])]
    assert len({formatting.template_of(tmp_path / "libs", properties, options) for properties, options in known}) == 4


def test_where_a_template_cannot_be_kept_the_tool_runs_each_time(tmp_path: Path) -> None:
    nowhere = tmp_path / "none" / "formatted-1"
    assert [formatted(tmp_path / name, nowhere)[0] for name in ("one", "two")] == [1, 1]


@pytest.mark.parametrize("damage", ["empty", "no checkpoint's contents", "no text", "cannot be read"])
def test_a_damaged_template_is_made_anew(tmp_path: Path, damage: str) -> None:
    """Before, a start failed by it, and so did each one after that."""
    template = formatting.template_of(tmp_path / "libs", {}, [])
    assert template is not None
    formatted(tmp_path / "one", template)
    if damage == "empty":
        (template / "meta.properties").write_text("")
    elif damage == "no text":
        (template / "meta.properties").write_bytes(b"\xff\xfe\0")
    elif damage == "cannot be read":
        (template / "meta.properties").unlink()
        (template / "meta.properties").mkdir()  # what the superuser, too, cannot read
    else:
        (template / "bootstrap.checkpoint").write_bytes(b"")
    assert [formatted(tmp_path / name, template)[0] for name in ("two", "three")] == [1, 0]


def test_of_many_templates_the_one_goes_that_was_not_used_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, of more than two hundred none was kept any more."""
    monkeypatch.setattr(formatting, "_MOST", 2)
    first, second, third = (formatting.template_of(tmp_path / "libs", {"a": which}, []) for which in range(3))
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
def test_of_brokers_with_data_the_first_is_not_formatted_anew(tmp_path: Path, kept: bool) -> None:
    """Before, it got another cluster's id, and never started again."""
    template = formatting.template_of(tmp_path / "libs", {}, []) if kept else None
    formatted(tmp_path / "one", template)
    shutil.rmtree(tmp_path / "one" / "0")
    with pytest.raises(BrokerError, match="has no data of a broker, but .+ has: put it back"):
        formatted(tmp_path / "one", template)
    assert not (tmp_path / "one" / "0").exists()


@pytest.mark.parametrize("name", ["log.dir", "log.dirs", "metadata.log.dir"])
def test_what_is_formatted_elsewhere_too_is_not_copied(tmp_path: Path, name: str) -> None:
    assert formatting.template_of(tmp_path / "libs", {name: "x"}, []) is None
    assert [formatted(tmp_path / run, None)[0] for run in ("one", "two")] == [1, 1]


def test_real_brokers_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = fetch_jars()
    monkeypatch.setenv("TRIKAFKA_CACHE", str(tmp_path))
    (tmp_path / f"kafka-{DEFAULT_VERSION}").mkdir()
    (tmp_path / f"kafka-{DEFAULT_VERSION}" / "libs").symlink_to(jars)
    reported: list[str] = []
    for _ in range(2):
        with KafkaCluster(progress=reported.append) as cluster:
            file = archive.prepare(find_java(), jars_of(fetch_jars()), lambda file: None, lambda: None)
            assert reported == [f"preparing Kafka {DEFAULT_VERSION} to start more quickly from now on"]
            assert file is not None
            assert str(file) in Path(f"/proc/{cluster.brokers[0].pid}/maps").read_text()
            version = cluster.run_tool("org.apache.kafka.tools.TopicCommand", "--version")
            assert (version.stdout.split()[0], version.stderr) == (DEFAULT_VERSION, "")
