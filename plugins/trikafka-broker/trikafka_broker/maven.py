"""The jars of a known Kafka version, from a Maven repository.

The files in the folder `hashes` list each jar's path in the repository and its SHA-256. So no
dependency is resolved, and a jar that differs is refused. This module owns the folder `downloads`
of the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from .errors import BrokerError, DownloadError
from .guardian import Guardian
from .waiting import pause

CENTRAL = "https://repo1.maven.org/maven2"
#: How often a jar is requested, and the seconds before the second attempt.
_ATTEMPTS, _WAIT = 4, 1.0
#: Seconds without a byte after which a connection counts as dead.
_SILENCE = 20.0
_CHUNK = 1 << 16


def repository() -> str:
    """Return the address of the Maven repository.

    That is `$TRIKAFKA_MAVEN`, or the mirror of Maven Central in `~/.m2/settings.xml`, or Maven
    Central.

    Raises:
        BrokerError: The address does not begin with https://, http:// or file://.
    """
    found = os.environ.get("TRIKAFKA_MAVEN") or _mirror(Path.home() / ".m2" / "settings.xml")
    address = (found or CENTRAL).rstrip("/")
    if not address.startswith(("https://", "http://", "file://")):
        raise BrokerError(
            f"the address of the Maven repository, {address!r} (from TRIKAFKA_MAVEN or "
            "~/.m2/settings.xml), must begin with https://, http:// or file://"
        )
    return address


def _mirror(settings: Path) -> str | None:
    """Return the address of the first mirror of Maven Central in Maven's settings."""
    try:
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        address = (mirror.findtext("{*}url") or "").strip()
        blocked = (mirror.findtext("{*}blocked") or "").strip() == "true"
        if "!central" in of or blocked or not address:
            continue
        if {"*", "external:*", "central"} & set(of):
            return address
    return None


@dataclass(frozen=True)
class Maven:
    """A Maven repository, and a cache that keeps the complete jars of an interrupted download."""

    address: str
    cache: Path
    #: path in the repository -> SHA-256
    jars: Mapping[str, str]

    def retrieve(
        self,
        guardian: Guardian,
        version: str,
        target: Path,
        log_file: Path,
        report: Callable[[str], None],
    ) -> None:
        """Put the jars of a Kafka version into `target/libs`.

        Args:
            guardian: Not used: no process is started.
            version: The Kafka version, for errors.
            target: The folder in which `libs` is made.
            log_file: Not used: no process writes a log.
            report: Called with a line of text after each jar.

        Raises:
            DownloadError: A jar could not be downloaded, or is not the known one.
        """
        kept = self.cache / "downloads"
        kept.mkdir(exist_ok=True)
        libs = target / "libs"
        libs.mkdir()
        for number, (path, digest) in enumerate(self.jars.items(), start=1):
            name = path.rpartition("/")[2]
            whole = kept / f"{digest}.jar"
            if not whole.exists() or _digest(whole) != digest:
                self._fetch(path, digest, whole, version)
            report(f"{number} of {len(self.jars)} jars: {name}")
        # Moved only when all are there. The complete jars of an interrupted download stay in the
        # cache, and the next attempt does not download them again.
        for path, digest in self.jars.items():
            (kept / f"{digest}.jar").rename(libs / path.rpartition("/")[2])
        with contextlib.suppress(OSError):  # another version's jars may be there
            kept.rmdir()

    def _fetch(self, path: str, digest: str, whole: Path, version: str) -> None:
        """Download one jar to `whole`; retry after a failure or a wrong digest."""
        address = f"{self.address}/{path}"
        part = whole.with_suffix(".part")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                found = hashlib.sha256()
                with part.open("wb") as file:
                    for chunk in _chunks(address):
                        found.update(chunk)
                        file.write(chunk)
            except (OSError, http.client.HTTPException) as error:
                gone = isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404)
                if attempt < _ATTEMPTS and not gone:
                    _sleep(_WAIT * attempt)
                    continue
                raise DownloadError(
                    f"The jars of Kafka {version} could not be downloaded: {address}: {error} "
                    "(TRIKAFKA_MAVEN, or a mirror in ~/.m2/settings.xml, names another repository)"
                ) from error
            if found.hexdigest() == digest:
                part.rename(whole)
                return
        part.unlink()
        raise DownloadError(
            f"A jar of Kafka {version} has another SHA-256 than trikafka-broker knows, and is not "
            f"used: {path.rpartition('/')[2]} from {address} (TRIKAFKA_MAVEN, or a mirror in "
            "~/.m2/settings.xml, names another repository)"
        )


def _chunks(address: str) -> Iterator[bytes]:
    """Yield the content at an address; raise IncompleteRead if it ends too early."""
    request = urllib.request.Request(address, headers={"User-Agent": "trikafka-broker"})
    with urllib.request.urlopen(request, timeout=_SILENCE) as response:
        expected = response.headers.get("Content-Length")
        count = 0
        while chunk := response.read(_CHUNK):
            count += len(chunk)
            yield chunk
    if expected is not None and count != int(expected):
        raise http.client.IncompleteRead(b"", int(expected) - count)


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pause()


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
