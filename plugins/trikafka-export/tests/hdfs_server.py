"""A small HDFS on this machine: Hadoop's own name node and data node, as a process.

Hadoop's jars are downloaded once, into the cache of the brokers' jars.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hdfs_native import Client, WriteOptions
from trikafka_broker import archive
from trikafka_broker.java import find_java

from benchmarks.spark_jars import spark_jars

_MODULE = """\
<ivy-module version="2.0">
  <info organisation="trikafka" module="hdfs"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_HADOOP = "3.5.0"
#: The jars: organisation, name, release.
_JARS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", _HADOOP),
    ("org.apache.hadoop", "hadoop-client-api", _HADOOP),
    ("org.apache.hadoop", "hadoop-client-runtime", _HADOOP),
    ("org.slf4j", "slf4j-api", "2.0.17"),
    ("org.slf4j", "jcl-over-slf4j", "2.0.17"),
)
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" transitive="false" conf="default->master"/>'
_PROGRAM = Path(__file__).with_name("HdfsServer.java")
_QUICK = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_numbers = itertools.count()


class HdfsServer:
    """The name node as a test sees it, with direct access to all files of HDFS."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.client = Client(f"hdfs://{self.address}")

    def folder(self) -> str:
        """Return the path of a folder that does not exist."""
        return f"/lakes/{next(_numbers)}"

    def files(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, relative to the folder."""
        try:
            found = list(self.client.list_status(folder, True))
        except FileNotFoundError:
            return []
        return sorted(each.path.removeprefix(f"{folder}/") for each in found if not each.isdir)

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        with self.client.read(path) as file:
            return bytes(file.read())

    def write(self, path: str, body: bytes) -> None:
        """Write a file, also over another one."""
        with self.client.create(path, WriteOptions(overwrite=True, create_parent=True)) as file:
            file.write(body)


@contextmanager
def hdfs_server(folder: Path, *settings: str) -> Iterator[HdfsServer]:
    """Start an HDFS below the folder, and end it with the block.

    Args:
        folder: An existing folder for its files.
        settings: Further settings of Hadoop, as ``name=value``.
    """
    command = _command(folder)
    with _running(command, folder, settings) as port:
        yield HdfsServer(port)


def _command(folder: Path) -> list[str]:
    """Return the command that starts the servers, with an archive of their classes.

    The first process writes the archive.
    """
    module = _MODULE.format(dependencies="\n".join(_DEPENDENCY.format(*jar) for jar in _JARS))
    jars = spark_jars("hadoop", _HADOOP, module, "hadoop-client-minicluster-*.jar")
    path = ":".join([str(_pages()), *jars])
    java = find_java()
    begin = [str(java), *_QUICK]
    end = ["-cp", path, str(_PROGRAM)]

    def write(file: Path) -> None:
        with _running([*begin, *archive.writing_options(file), *end], folder / "first"):
            pass

    kept = archive.prepare(
        java, archive.Jars(Path(jars[0]).parent, path, Path(sys.prefix)), write, lambda: None
    )
    return [*begin, *archive.using_options(kept, []), *end]


def _pages() -> Path:
    """Return an archive of the servers' own sites, all of them empty.

    Without it Jetty would unpack all 50 MB of Hadoop to find the sites.
    """
    pages = Path(sys.prefix) / "hdfs-pages.jar"
    if not pages.exists():
        aside = pages.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(aside, "w") as jar:
            for name in ("hdfs", "datanode", "static"):
                jar.writestr(f"webapps/{name}/", "")
        aside.rename(pages)
    return pages


@contextmanager
def _running(command: list[str], folder: Path, settings: Sequence[str] = ()) -> Iterator[int]:
    """Run the servers below a folder during the block; yield the port of the name node."""
    folder.mkdir(exist_ok=True)
    java, *arguments = command
    whole = [java, f"-Djava.io.tmpdir={folder}", *arguments, str(folder / "hdfs"), *settings]
    with (
        (folder / "said").open("w") as said,
        subprocess.Popen(
            whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, (folder / "said").read_text()
            yield int(line)
        finally:
            process.stdin.close()
            process.wait(600)  # the first process writes its archive now
