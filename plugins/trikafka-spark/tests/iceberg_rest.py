"""Iceberg's reference implementation (Java) of a REST catalog, as a process, and its reader.

The reader is independent of pyiceberg.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from trikafka_broker.java import find_java

from benchmarks.spark_jars import spark_jars

VERSION = "1.11.0"
_JETTY = "12.0.16"
_SQLITE = "3.49.1.0"
#: Dependencies that Spark's jars already have. (Without ORC the reader does not start.)
_BROUGHT = "org.apache.hadoop org.slf4j org.apache.logging.log4j org.scala-lang"
_MODULE = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="trikafka" module="iceberg-rest"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{VERSION}" conf="default->master,runtime">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-data" rev="{VERSION}" conf="default->master,runtime"/>
    <dependency org="org.apache.iceberg" name="iceberg-orc" rev="{VERSION}" conf="default->master,runtime"/>
    <dependency org="org.apache.iceberg" name="iceberg-parquet" rev="{VERSION}" conf="default->master,runtime"/>
    <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="{_JETTY}" conf="default->master,runtime"/>
    <dependency org="org.xerial" name="sqlite-jdbc" rev="{_SQLITE}" conf="default->master,runtime"/>
    {"".join(f'<exclude org="{name}"/>' for name in _BROUGHT.split())}
  </dependencies>
</ivy-module>
"""
_PROGRAM = Path(__file__).with_name("IcebergServer.java")
_numbers = itertools.count()


@dataclass
class Read:
    """The content of a table as Java reads it.

    A row is (topic, partition, offset, microseconds since 1970, value in hexadecimal digits).
    """

    columns: dict[str, str] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    rows: list[tuple[str, int, int, int, str]] = field(default_factory=list)
    some: list[tuple[str, int, int, int, str]] = field(default_factory=list)


class RestCatalogServer:
    """The server as a test sees it."""

    def __init__(self, process: subprocess.Popen[str], warehouse: Path) -> None:
        assert process.stdout is not None
        self._process = process
        self.warehouse = warehouse
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def new_table(self) -> str:
        """Return the name of a table that does not exist."""
        return f"shop.flights_{next(_numbers)}"

    def read(self, table: str, partition: int = 0, offset: int = 0) -> Read:
        """Read all rows of the table, and those that a filter lets through."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(table, partition, offset, file=self._process.stdin, flush=True)
        found = Read()
        while line := self._process.stdout.readline().strip():
            kind, *fields = line.split(" ")
            if kind == "column":
                found.columns[fields[0]] = fields[1]
            elif kind == "file":
                found.partitions.append(fields[0] if fields else "")
            else:
                row: Any = (
                    fields[0],
                    int(fields[1]),
                    int(fields[2]),
                    int(fields[3]),
                    fields[4] if len(fields) > 4 else "",
                )
                (found.rows if kind == "row" else found.some).append(row)
        found.rows.sort()
        found.some.sort()
        return found


@contextmanager
def rest_catalog(warehouse: Path) -> Iterator[RestCatalogServer]:
    """Start a catalog, and end it with the block."""
    jars = spark_jars("iceberg", VERSION, _MODULE, "iceberg-core-*.jar")
    sparks = Path(pyspark.__file__).parent / "jars"
    brought = [
        path
        for name in ("hadoop-client-*", "slf4j-api-*", "commons-logging-*")
        for path in sparks.glob(f"{name}.jar")
    ]
    path = ":".join([*jars, *map(str, brought)])
    quick = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [str(find_java()), *quick, "-cp", path, str(_PROGRAM), str(warehouse)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        try:
            yield RestCatalogServer(process, warehouse)
        finally:
            process.stdin.close()
            process.wait(600)
