"""The settings of a JVM in a file instead of its arguments.

PySpark passes settings as arguments, which every user of the machine can list.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def in_a_file(
    command: Sequence[str], settings: Iterable[tuple[str, str]], path: Path, version: str = "4.0"
) -> list[str]:
    """Return the ``spark-submit`` command with its settings read from ``path``; write that file.

    The JVM reads the file before Spark's gateway responds. As arguments do, the settings win over
    those of ``spark-defaults.conf`` and of a file of the user's (in ``PYSPARK_SUBMIT_ARGS``). Spark
    takes one file only, so the user's is copied into it. ``version`` is Spark's.
    """
    script, *arguments = command
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--properties-file")
    known, rest = parser.parse_known_args(arguments)
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings]
    options = ["--properties-file", str(path)]
    if known.properties_file is None and version.startswith("3."):
        # Spark 3.5 reads the defaults only if no other file is given, and has no option for both.
        lines.insert(0, _defaults(Path(script)) + "\n")
    elif known.properties_file is None:
        options.append("--load-spark-defaults")
    else:
        lines.insert(0, Path(known.properties_file).read_text(encoding="utf-8") + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return [script, *options, *rest]


def _defaults(script: Path) -> str:
    """Return the content of ``spark-defaults.conf``, or an empty text if there is none."""
    folder = Path(os.environ.get("SPARK_CONF_DIR") or script.parent.parent / "conf")
    try:
        return (folder / "spark-defaults.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _escaped(text: str) -> str:
    """Return the text as ``java.util.Properties`` reads it."""
    return re.sub(r"[^\w./-]|[^\x00-\x7f]", _as_units, text)


def _as_units(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
