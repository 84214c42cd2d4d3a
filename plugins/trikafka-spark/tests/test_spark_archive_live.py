"""A job whose executors have trikafka from an environment that is shipped with it (``--archives``), compiled parts and all."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pyspark
import trikafka_spark
import trio
from packaging.requirements import Requirement
from spark_kafka import check_whole
from test_spark_write_live import records

import trikafka

CHILD = Path(__file__).with_name("standalone_child.py")
SITE = Path(sysconfig.get_path("purelib"))
OWN = [Path(trikafka.__file__).parent, Path(trikafka_spark.__file__).parent]
OWN.append(OWN[1].parent / "pyspark_trikafka")


def packed_environment(directory: Path) -> Path:
    """An environment, and the archive of it, as docs/spark.md makes them; its packages are copied from this one.

    Spark itself is not in it.
    """
    environment = directory / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for package in OWN:
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
    for name in needed("trikafka", "pyarrow"):
        for file in {Path(*each.parts[:1]) for each in metadata.files(name) or () if each.parts[0] != ".."}:
            if (SITE / file).is_dir():  # headers and tests of pyarrow's are not wanted
                skipped = shutil.ignore_patterns("__pycache__", "tests", "include", "src")
                shutil.copytree(SITE / file, site / file, dirs_exist_ok=True, ignore=skipped)
            elif (SITE / file).is_file():
                shutil.copy(SITE / file, site / file)
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0) as packed:
        packed.add(environment, ".")
    return archive


def needed(*names: str) -> set[str]:
    """Packages, but our own, and what they need without any extra."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for requirement in map(Requirement, metadata.requires(name) or ()):
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name not in found:
                found.add(requirement.name)
                waiting.append(requirement.name)
    return found | {name for name in names if not name.startswith("trikafka")}


@contextmanager
def no_logs_left() -> Iterator[None]:
    """Spark leaves the executors' logs in its own folder, from where they are removed."""
    logs = Path(pyspark.__file__).parent / "work"
    before = set(logs.iterdir()) if logs.exists() else set()
    try:
        yield
    finally:
        for path in (set(logs.iterdir()) if logs.exists() else set()) - before:
            shutil.rmtree(path, ignore_errors=True)


async def test_a_job_with_an_environment_that_is_shipped(kafka_broker: Any, new_topic: Any, tmp_path: Path) -> None:
    """Read, exactly-once write and export by two executors, which have nothing of ours but what is in the archive."""
    topic, target, root = await new_topic(800), await new_topic(0), tmp_path / "out"
    archive = await trio.to_thread.run_sync(packed_environment, tmp_path)
    given = [archive.name, kafka_broker.bootstrap_servers, topic, target, str(root)]
    command = [sys.executable, str(CHILD), "local-cluster[2,1,1024]", *given]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": "./environment/bin/python"}
    environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # which executors would look for on the path
    with trio.fail_after(150), no_logs_left():
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, env=environment, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert (found["counted"], found["exported"]) == ([100] * 4, 800)
    for path, form, _ in found["looks"]:
        assert "/environment/lib/" in path
        assert not path.startswith(str(tmp_path / "environment")), "unpacked where the executor works"
        assert form.startswith("native"), "with what is compiled"
    check_whole(root, 800, 4)
    assert len(await records(kafka_broker, target)) == 400
