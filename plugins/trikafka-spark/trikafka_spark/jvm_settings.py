"""Settings for a JVM that is about to be started, in a file: PySpark gives them as arguments, which everybody can list."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def in_a_file(command: Sequence[str], settings: Iterable[tuple[str, str]], path: Path) -> list[str]:
    """``spark-submit`` with its arguments, changed so that it takes the settings from ``path``, to which they are written.

    The file is read until Spark's gateway answers. As arguments do, its settings go before those of ``spark-defaults.conf`` and of
    a file that the user named (in ``PYSPARK_SUBMIT_ARGS``): there can be one only, so that is copied.
    """
    script, *arguments = command
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--properties-file")
    known, rest = parser.parse_known_args(arguments)
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings]
    options = ["--properties-file", str(path)]
    if known.properties_file is None:
        options.append("--load-spark-defaults")
    else:
        lines.insert(0, Path(known.properties_file).read_text(encoding="utf-8") + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return [script, *options, *rest]


def _escaped(text: str) -> str:
    """As ``java.util.Properties`` reads it."""
    return re.sub(r"[^\w./-]|[^\x00-\x7f]", _as_units, text)


def _as_units(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
