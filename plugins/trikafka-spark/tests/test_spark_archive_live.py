"""A job whose executors use trikafka from a shipped environment (``--archives``).

The environment has the compiled parts.
"""

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
import trikafka_export
import trikafka_spark
import trio
from known_topics import check_whole
from packaging.requirements import Requirement
from test_spark_write_live import records

import trikafka

CHILD = Path(__file__).with_name("standalone_child.py")
SITE = Path(sysconfig.get_path("purelib"))
OWN = [Path(package.__path__[0]) for package in (trikafka, trikafka_export, trikafka_spark)]
OWN.append(OWN[-1].parent / "pyspark_trikafka")


def packed_environment(directory: Path) -> Path:
    """Make an environment and its archive as docs/spark-clusters.md does.

    The packages are copied from this environment. Spark itself is not included.
    """
    environment = directory / "environment"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for package in OWN:
        shutil.copytree(
            package, site / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.c")
        )
    for name in needed("trikafka", "pyarrow"):
        for file in {
            Path(*each.parts[:1]) for each in metadata.files(name) or () if each.parts[0] != ".."
        }:
            if (SITE / file).is_dir():  # without pyarrow's headers and tests
                skipped = shutil.ignore_patterns("__pycache__", "tests", "include", "src")
                shutil.copytree(SITE / file, site / file, dirs_exist_ok=True, ignore=skipped)
            elif (SITE / file).is_file():
                shutil.copy(SITE / file, site / file)
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0) as packed:
        packed.add(environment, ".")
    return archive


def needed(*names: str) -> set[str]:
    """Return the packages, other than ours, that ours need without any extra."""
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
    """Remove the executors' logs from Spark's own folder, where Spark leaves them."""
    logs = Path(pyspark.__file__).parent / "work"
    before = set(logs.iterdir()) if logs.exists() else set()
    try:
        yield
    finally:
        for path in (set(logs.iterdir()) if logs.exists() else set()) - before:
            shutil.rmtree(path, ignore_errors=True)


async def test_job_uses_a_shipped_environment(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """An executor reads, writes exactly once and exports, with nothing of ours but the archive."""
    topic, target, root = await new_topic(800), await new_topic(0), tmp_path / "out"
    archive = await trio.to_thread.run_sync(packed_environment, tmp_path)
    given = [archive.name, kafka_broker.bootstrap_servers, topic, target, str(root)]
    command = [sys.executable, str(CHILD), "local-cluster[1,2,1024]", *given]
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYSPARK_PYTHON": "./environment/bin/python",
    }
    # Executors would search the path for it.
    environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    with trio.fail_after(900), no_logs_left():
        done = await trio.run_process(
            command,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=environment,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert (found["counted"], found["exported"]) == ([100] * 4, 800)
    for path, form, _ in found["looks"]:
        assert "/environment/lib/" in path
        assert not path.startswith(str(tmp_path / "environment")), (
            "unpacked where the executor works"
        )
        assert form.startswith("native"), "with what is compiled"
    check_whole(root, 800, 4)
    assert len(await records(kafka_broker, target)) == 400
