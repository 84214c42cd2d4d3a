"""The search for Java and its version."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from .errors import JavaError

#: Kafka 4 brokers need Java 17.
MINIMUM_JAVA = 17


def find_java() -> Path:
    """Return the `java` of `JAVA_HOME`, or else of `PATH`.

    Raises:
        JavaError: There is none, it does not run, or it is older than Java 17.
    """
    java = _locate()
    if java is None:
        raise JavaError(
            f"No Java was found in JAVA_HOME or PATH: install Java {MINIMUM_JAVA} or newer"
        )
    version = parse_version(version_text(java))
    if version < MINIMUM_JAVA:
        raise JavaError(f"{java} is Java {version}, and Kafka needs Java {MINIMUM_JAVA} or newer")
    return java


def _locate() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        candidate = Path(home, "bin", "java")
        # There is no fallback to PATH: other programs that use JAVA_HOME, such as Spark, would fail
        # later.
        if not os.access(candidate, os.X_OK):
            raise JavaError(
                f"JAVA_HOME is {home}, and there is no {candidate} to run: correct it or unset it"
            )
        return candidate
    found = shutil.which("java")
    return Path(found) if found else None


def version_text(java: Path) -> str:
    """Return the output of `java -version`, cached.

    Raises:
        JavaError: Java does not run.
    """
    try:
        return _version_text(java, java.stat().st_mtime_ns)
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{java} does not run: {error}") from error


@functools.lru_cache
def _version_text(java: Path, changed: int) -> str:
    done = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=True
    )
    lines = (done.stderr + done.stdout).splitlines()
    # lines about JAVA_TOOL_OPTIONS and the like
    return "\n".join(line for line in lines if "Picked up" not in line)


def parse_version(text: str) -> int:
    """Return the feature release in the output of `java -version`.

    Examples: 17 for `"17.0.15"`, 8 for `"1.8.0_302"`.

    Raises:
        JavaError: The text names no version.
    """
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        raise JavaError(f"The output of java -version names no version: {text.strip()[:200]!r}")
    first = int(match[1])
    second = match[2]
    return int(second) if first == 1 and second else first
