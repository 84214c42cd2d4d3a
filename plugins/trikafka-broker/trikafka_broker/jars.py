"""The jars of Kafka versions, downloaded once. Owns the cache directory.

Layout: `kafka-<version>/libs/*.jar`, `kafka-<version>/libs.sha256`, `ivy/` (Ivy's own downloads),
`downloads/` (jars of an interrupted download), `download.lock`, `kafka-<version>.log`. A version's
folder appears by one rename when it is complete. Files that make brokers start quickly are kept
beside its `libs`: see `archive` and `formatting`.
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
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from . import ivy, maven
from .errors import BrokerError, DownloadError
from .guardian import Guardian
from .java import find_java
from .settings import DEFAULT_VERSION
from .waiting import pause

Progress = Callable[[str], None]
#: One file per version, in the form of sha256sum, below lines that name the source.
_HASHES = Path(__file__).with_name("hashes")


def cache_directory() -> Path:
    """Return `$TRIKAFKA_CACHE`, or `trikafka` in `$XDG_CACHE_HOME` or in `~/.cache`."""
    own = os.environ.get("TRIKAFKA_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "trikafka"


def find_ivy() -> Path:
    """Return the jar of Apache Ivy.

    That is `$TRIKAFKA_IVY_JAR`, or the jar inside an installed pyspark, which is not imported.

    Raises:
        BrokerError: There is neither.
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
        "trikafka-broker does not know which jars a Kafka of this version needs. Apache Ivy can "
        "find out, and was not found: let TRIKAFKA_IVY_JAR name an Ivy jar, install pyspark, "
        f"which contains one, or choose a known version: {', '.join(known_versions())}"
    )


def fetch_jars(version: str = DEFAULT_VERSION, *, progress: Progress | None = None) -> Path:
    """Return the folder with the jars of a Kafka version; download them if necessary.

    If interrupted or cancelled, the download ends and leaves only files that shorten the next one.
    If another process downloads, the call waits for that process.

    Args:
        version: The version of Kafka, as on Maven.
        progress: Called with lines about the progress.

    Raises:
        JavaError: There is no Java, or it is too old.
        BrokerError: The version is malformed, a cached jar has changed, or the jars of the version
            are not known and Ivy is missing.
        DownloadError: The jars could not be downloaded.
    """
    if not re.fullmatch(r"\d+(\.\d+)+([.-]\w+)*", version):
        raise BrokerError(
            f"{version!r} is not a version of Kafka; an example of one is {DEFAULT_VERSION}"
        )
    cache = cache_directory()
    libs = cache / f"kafka-{version}" / "libs"
    if libs.is_dir():
        verify(libs, known_hashes(version))
        return libs
    java = find_java()
    report = progress or (lambda line: None)
    resolver: Callable[[int], ivy.Ivy | maven.Maven]
    if (paths := known_paths(version)) is not None:
        address = maven.repository()
        resolver = lambda lock: maven.Maven(address, cache, paths)  # noqa: E731
    else:
        ivy_jar = find_ivy()
        resolver = lambda lock: ivy.Ivy(java, ivy_jar, cache / "ivy", lock)  # noqa: E731
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "download.lock", report) as lock:
            if not libs.is_dir():
                _download(cache, version, resolver(lock), report)
            else:
                verify(libs, known_hashes(version))
    except OSError as error:
        raise DownloadError(
            f"The jars of Kafka {version} cannot be put into {cache}: {error}"
        ) from error
    return libs


def _download(cache: Path, version: str, resolver: ivy.Ivy | maven.Maven, report: Progress) -> None:
    """Download into a temporary folder, then publish it. The caller holds the lock."""
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
        record(aside / "libs")
        guardian.disown_directory(aside)
        aside.chmod(0o755)
        aside.rename(cache / f"kafka-{version}")
        report(f"downloaded Kafka {version}")
    finally:
        guardian.close()
        shutil.rmtree(aside, ignore_errors=True)


def _check(version: str, libs: Path, report: Progress) -> None:
    """Compare the jars with this package's hashes of the version.

    Raises:
        DownloadError: A jar differs.
    """
    known = known_hashes(version)
    if known is None:
        report(f"no hashes are known of Kafka {version}: its jars are as the repository gave them")
        return
    if wrong := _differing(libs, known):
        raise DownloadError(
            f"Jars of Kafka {version} have other SHA-256 hashes than trikafka-broker knows, and "
            f"are not used: {', '.join(wrong)}"
        )


def record(folder: Path) -> None:
    """Write the hashes of a folder's jars beside it, for :func:`verify`."""
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_hashes_of(folder).items())]
    _record_of(folder).write_text("".join(lines), encoding="utf-8")


# A JVM runs whatever lies in the folder of the jars, and the cache may be shared or writable by
# other users. So the jars are verified before each use:
#
# * Every jar is read. Comparing sizes and times would be cheaper, but a program that replaces a jar
#   can keep both. Reading 55 MB takes a tenth of a second.
# * A jar that is missing or was added counts as a difference, too: the class path is `libs/*`, so
#   an added jar is run.
# * For known versions the hashes come with this package. They protect against a manipulated
#   download and a manipulated cache. For other versions the hashes are recorded at the download,
#   beside the jars. Those only find damage: a program that can replace a jar can replace the
#   record.
def verify(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Compare the jars of a folder with ``known`` hashes, or else with the recorded ones.

    If a folder has no recorded hashes, they are recorded now.

    Raises:
        BrokerError: A jar has changed, is missing, or was added. The message names the jars and the
            remedy.
    """
    if known is None:
        recorded = _record_of(folder)
        if not recorded.exists():
            with contextlib.suppress(OSError):  # The cache may be read-only.
                record(folder)
            return
        known = _parsed(recorded.read_text(encoding="utf-8"))
    if wrong := _differing(folder, known):
        raise BrokerError(
            f"The jars in {folder} are not those that were downloaded, and are not run: "
            f"{', '.join(wrong)}; remove {folder.parent if folder.name == 'libs' else folder} to "
            "have them downloaded again"
        )


def has_class(folder: Path, name: str) -> bool:
    """Return whether one of Kafka's own jars in a folder has a class."""
    path = f"{name.replace('.', '/')}.class"
    for jar in folder.glob("kafka*.jar"):
        with zipfile.ZipFile(jar) as content:
            if path in content.NameToInfo:
                return True
    return False


def _record_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.sha256")


def _differing(folder: Path, known: Mapping[str, str]) -> list[str]:
    """Return the names of the jars that differ, are missing, or are not known."""
    found = _hashes_of(folder)
    return sorted(
        name for name in known.keys() | found.keys() if known.get(name) != found.get(name)
    )


def _hashes_of(folder: Path) -> dict[str, str]:
    found = {}
    for jar in folder.iterdir():
        with jar.open("rb") as file:
            found[jar.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _parsed(text: str) -> dict[str, str]:
    return {
        name: digest
        for digest, name in (line.split() for line in text.splitlines() if not line.startswith("#"))
    }


def known_versions() -> list[str]:
    """Return the versions of Kafka whose jars are known."""
    names = [file.stem.removeprefix("kafka-") for file in _HASHES.glob("kafka-*.sha256")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def known_hashes(version: str) -> dict[str, str] | None:
    """Return the SHA-256 of each jar of a version by file name; None if unknown."""
    paths = known_paths(version)
    return paths and {path.rpartition("/")[2]: digest for path, digest in paths.items()}


def known_paths(version: str) -> dict[str, str] | None:
    """Return the SHA-256 of each jar of a version by its path in Maven; None if unknown."""
    try:
        text = (_HASHES / f"kafka-{version}.sha256").read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return _parsed(text)


@contextlib.contextmanager
def _locked(path: Path, report: Progress) -> Iterator[int]:
    """Hold a lock between processes; yield its descriptor.

    The kernel releases the lock when the last process that has the file open is gone.
    """
    with path.open("w") as file:
        reported = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not reported:
                    report("waiting for a download in another process")
                reported = True
                pause()
        yield file.fileno()
