"""The jars of Kafka versions, downloaded once. Owns the cache directory.

Layout: `kafka-<version>/libs/*.jar`, `ivy/` (what Ivy has downloaded already), `download.lock`, `kafka-<version>.log`.
A version's folder appears by one rename when it is complete, so a folder that is there can be used without asking.
Beside its `libs` is then put what makes brokers start quickly: see `archive` and `formatting`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from . import ivy
from .errors import BrokerError, DownloadError
from .guardian import Guardian
from .java import find_java
from .settings import DEFAULT_VERSION
from .waiting import pause

Progress = Callable[[str], None]
#: A file a version, as sha256sum writes it, below lines that say where they are from.
_HASHES = Path(__file__).with_name("hashes")


def cache_directory() -> Path:
    """`$TRIKAFKA_CACHE`, or `trikafka` in `$XDG_CACHE_HOME` or in `~/.cache`."""
    own = os.environ.get("TRIKAFKA_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "trikafka"


def find_ivy() -> Path:
    """Apache Ivy: `$TRIKAFKA_IVY_JAR`, or the jar inside an installed pyspark, which is not imported.

    Raises `BrokerError` when there is neither.
    """
    named = os.environ.get("TRIKAFKA_IVY_JAR")
    if named:
        if not Path(named).is_file():
            raise BrokerError(f"TRIKAFKA_IVY_JAR names {named}, which is not a file")
        return Path(named)
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar"), reverse=True):
            return jar
    raise BrokerError(
        "Kafka's jars are downloaded by Apache Ivy, which was not found: install it with"
        " pip install 'trikafka-broker[ivy]', or let TRIKAFKA_IVY_JAR name an Ivy jar"
    )


def fetch_jars(version: str = DEFAULT_VERSION, *, progress: Progress | None = None) -> Path:
    """The folder with the jars of this Kafka version, downloaded if need be.

    Raises `JavaError`; `BrokerError` for a version that is none, or when Ivy is missing; `DownloadError`. When it is
    interrupted or cancelled, the download ends and leaves only what makes the next one shorter. If another process
    downloads at the same time, it waits for that one.
    """
    if not re.fullmatch(r"\d+(\.\d+)+([.-]\w+)*", version):
        raise BrokerError(f"{version!r} is not a version of Kafka; an example of one is {DEFAULT_VERSION}")
    cache = cache_directory()
    libs = cache / f"kafka-{version}" / "libs"
    if libs.is_dir():
        return libs
    java, ivy_jar = find_java(), find_ivy()
    report = progress or (lambda line: None)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "download.lock", report) as lock:
            if not libs.is_dir():
                _download(cache, version, ivy.Ivy(java, ivy_jar, cache / "ivy", lock), report)
    except OSError as error:
        raise DownloadError(f"The jars of Kafka {version} cannot be put into {cache}: {error}") from error
    return libs


def _download(cache: Path, version: str, resolver: ivy.Ivy, report: Progress) -> None:
    """Fill a folder aside, then publish it. The caller holds the lock."""
    prefix = f".kafka-{version}-"
    for leftover in cache.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    log_file = cache / f"kafka-{version}.log"
    aside = Path(tempfile.mkdtemp(prefix=prefix, dir=cache))
    guardian = Guardian()
    try:
        guardian.start()
        guardian.own_directory(aside)
        report(f"downloading Kafka {version} into {cache}")
        resolver.retrieve(guardian, version, aside, log_file, report)
        _check(version, aside / "libs", report)
        guardian.disown_directory(aside)
        aside.chmod(0o755)
        aside.rename(cache / f"kafka-{version}")
        report(f"downloaded Kafka {version}")
    finally:
        guardian.close()
        shutil.rmtree(aside, ignore_errors=True)


def _check(version: str, libs: Path, report: Progress) -> None:
    """Compare the jars with the hashes that this package has for the version. Raises `DownloadError`."""
    known = known_hashes(version)
    if known is None:
        report(f"no hashes are known of Kafka {version}: its jars are as the repository gave them")
        return
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in libs.iterdir()}
    wrong = sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name))
    if wrong:
        raise DownloadError(
            f"What was downloaded as Kafka {version} is not what it was when trikafka-broker was written, and is not"
            f" used: {', '.join(wrong)}"
        )


def known_hashes(version: str) -> dict[str, str] | None:
    """The SHA-256 of each jar of a version, by the name of its file; None if they are not known."""
    try:
        text = (_HASHES / f"kafka-{version}.sha256").read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return {name: digest for digest, name in (line.split() for line in text.splitlines() if not line.startswith("#"))}


@contextlib.contextmanager
def _locked(path: Path, report: Progress) -> Iterator[int]:
    """Hold a lock among processes. The kernel releases it when the last process that has the file open is gone."""
    with path.open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    report("waiting for a download in another process")
                told = True
                pause()
        yield file.fileno()
