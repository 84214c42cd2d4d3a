"""Apache Ivy, which downloads the jars of one Kafka version.

This module knows the modules that a broker needs, and the form of Ivy's output.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import IO

from .errors import DownloadError
from .guardian import Guardian
from .waiting import pause

#: Modules that a broker can do without. Releases of Kafka have appeared on Maven before their
#: tools.
_OPTIONAL = frozenset({"kafka-tools", "kafka-tools-api"})

# Maven Central only: no settings of the user, no local repository.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

_MODULE = """\
<ivy-module version="2.0">
  <info organisation="trikafka" module="kafka-{version}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class Ivy:
    """A runnable Ivy: the Java, the jar, its cache, and the descriptor of the cache's lock."""

    java: Path
    jar: Path
    cache: Path
    lock: int

    def retrieve(
        self,
        guardian: Guardian,
        version: str,
        target: Path,
        log_file: Path,
        report: Callable[[str], None],
    ) -> None:
        """Put the jars of a Kafka version into `target/libs`.

        Raises:
            DownloadError: The jars could not be downloaded.
        """
        without: frozenset[str] = frozenset()
        while True:
            code = self._run(guardian, version, without, target, log_file, report)
            text = log_file.read_text(errors="replace")
            if code == 0 and any((target / "libs").glob("kafka_2.13-*.jar")):
                return
            missing = _optional_missing(text)
            if not missing or missing <= without:
                raise DownloadError(
                    f"The jars of Kafka {version} could not be downloaded: {_reason(text)} (the "
                    f"whole output: {log_file})",
                    log_file,
                )
            without |= missing
            report(f"Kafka {version} has no {', '.join(sorted(missing))} (yet): going on without")

    def _run(
        self,
        guardian: Guardian,
        version: str,
        without: frozenset[str],
        target: Path,
        log_file: Path,
        report: Callable[[str], None],
    ) -> int:
        settings = target / "ivysettings.xml"
        module = target / "ivy.xml"
        settings.write_text(_SETTINGS, encoding="ascii")
        module.write_text(_module(version, without), encoding="ascii")
        command = [
            str(self.java),
            "-jar",
            str(self.jar),
            "-settings",
            str(settings),
            "-ivy",
            str(module),
        ]
        command += ["-cache", str(self.cache), "-types", "jar", "bundle"]
        command += ["-retrieve", f"{target}/libs/[artifact]-[revision].[ext]"]
        process = guardian.spawn(command, PIPE, keep_open=(self.lock,))
        try:
            assert process.stdout is not None
            with process.stdout as output, log_file.open("wb") as log:
                _follow(output, log, report)
            return process.wait()
        finally:
            guardian.kill(process)


def _follow(output: IO[bytes], log: IO[bytes], report: Callable[[str], None]) -> None:
    """Copy Ivy's output to the log and report the jars."""
    found = fetched = 0
    for raw in _lines(output):
        log.write(raw)
        log.flush()
        line = raw.decode(errors="replace").strip()
        if line.startswith("found "):
            found += 1
            if found % 10 == 0:
                report(f"resolving: {found} modules so far")
        elif line.startswith("[SUCCESSFUL ]"):
            fetched += 1
            jar = re.sub(r".*!([^\s(]+).*", r"\1", line)
            report(f"{fetched} of {found} jars: {jar}")


def _lines(output: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a pipe; check for cancellation in between."""
    pending = b""
    while True:
        if not select.select([output], [], [], 0)[0]:
            pause()
            continue
        chunk = os.read(output.fileno(), 65536)
        if not chunk:
            break
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if pending:
        yield pending


def _module(version: str, without: frozenset[str]) -> str:
    major = int(version.split(".")[0])
    # Kafka's clients bind slf4j 1.7, so the bridge to log4j 2 is log4j-slf4j-impl; with
    # log4j-slf4j2-impl nothing is logged. Kafka 3 needs log4j 1.
    logger = (
        ("org.slf4j", "slf4j-reload4j", "1.7.36")
        if major < 4
        else ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1")
    )
    wanted = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-tools", version),
        logger,
    ]
    # With `runtime` alone, Ivy omits the named modules themselves.
    lines = [
        (
            f'    <dependency org="{organisation}" name="{name}" rev="{revision}" '
            'conf="default->master,runtime"/>'
        )
        for organisation, name, revision in wanted
        if name not in without
    ]
    lines += [f'    <exclude org="org.apache.kafka" module="{name}"/>' for name in sorted(without)]
    return _MODULE.format(version=version, dependencies="\n".join(lines))


def _optional_missing(text: str) -> frozenset[str]:
    """Return the missing modules if all are optional and the repository responded."""
    if re.search(
        r"SERVER ERROR|Server access error|Host \S+ not found|FAILED|timed out", text, re.IGNORECASE
    ):
        return frozenset()
    missing = frozenset(re.findall(r"module not found: org\.apache\.kafka#([\w.-]+);", text))
    others = re.search(r"module not found: (?!org\.apache\.kafka#)", text)
    return missing if missing <= _OPTIONAL and not others else frozenset()


def _reason(text: str) -> str:
    """Return the last informative lines of Ivy's output as one line."""
    lines = [line.strip() for line in text.splitlines()]
    failures = [
        line for line in lines if re.search(r"error|not found|fail|exception", line, re.IGNORECASE)
    ]
    shown = failures or [line for line in lines if re.search(r"\w", line)]
    return "; ".join(dict.fromkeys(shown[-4:])) or "Ivy printed nothing"
