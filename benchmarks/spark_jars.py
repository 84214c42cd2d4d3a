"""Jars for Spark, downloaded once into the cache by Ivy.

``spark.jars.packages`` would resolve them again for every session.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from trikafka_broker import DownloadError
from trikafka_broker.jars import cache_directory, find_ivy, record, verify
from trikafka_broker.java import find_java

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def spark_jars(
    name: str, version: str, module: str, sign: str, tell: Callable[[str], None] = lambda line: None
) -> list[str]:
    """Return the jars that an Ivy ``module`` requires.

    ``sign`` is the pattern of the jar that must be among them.

    Raises:
        DownloadError: The jars could not be downloaded.
        BrokerError: Jars in the cache have changed since their download.
    """
    folder = cache_directory() / f"spark-{name}-{version}"
    if not folder.is_dir():
        tell(f"downloading jars into {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".spark-{name}-", dir=folder.parent))
        try:
            (aside / "ivy.xml").write_text(module)
            (aside / "settings.xml").write_text(_SETTINGS)
            command = [
                str(find_java()),
                "-jar",
                str(find_ivy()),
                "-settings",
                f"{aside}/settings.xml",
                "-ivy",
                f"{aside}/ivy.xml",
            ]
            command += ["-cache", str(folder.parent / "ivy"), "-types", "jar", "bundle"]
            command += ["-retrieve", f"{aside}/jars/[artifact]-[revision](-[classifier]).[ext]"]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode or not list(aside.glob(f"jars/{sign}")):
                words = [
                    line.strip()
                    for line in done.stdout.splitlines()
                    if "not found" in line or "FAILED" in line
                ]
                raise DownloadError("; ".join(words[-3:]) or f"Ivy ended with {done.returncode}")
            record(aside / "jars")
            (aside / "jars.sha256").rename(folder.with_name(f"{folder.name}.sha256"))
            (aside / "jars").rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    verify(folder)
    return sorted(map(str, folder.glob("*.jar")))
