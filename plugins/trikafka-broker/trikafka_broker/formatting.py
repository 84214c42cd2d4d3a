"""The data directory of a new broker, as Kafka's storage tool makes it. Owns the folders `formatted-*` beside the jars.

The tool takes a JVM and a second or two, and what it writes depends on nothing but the version of Kafka, the broker's
properties and its own options; but for the ids, which are ours to choose. So it runs once, and then there are copies.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# The second says that the rest is there, so it comes last.
_CHECKPOINT, _META = "bootstrap.checkpoint", "meta.properties"
#: Of one version. Each is of some hundred bytes, but properties can be of any number.
_MOST = 200


def template_of(libs: Path, properties: Mapping[str, object], options: Sequence[str]) -> Path:
    """Where the files for brokers with these properties (those that were asked for) are kept, or would be."""
    known = json.dumps([sorted((key, str(value)) for key, value in properties.items()), list(options)])
    return libs.parent / f"formatted-{hashlib.sha256(known.encode()).hexdigest()[:16]}"


def format_all(directories: Mapping[int, Path], template: Path, run_tool: Callable[[str], None]) -> None:
    """Make the data directories of nodes, unless they are there. `run_tool` makes the first, given the cluster's id."""
    (_, first), *others = directories.items()
    if not is_formatted(first):
        shutil.rmtree(first, ignore_errors=True)
        if is_formatted(template):
            _copy(template, first, {"cluster.id": new_id(), "directory.id": new_id()})
        else:
            run_tool(new_id())
            _keep(first, template)
    for node, directory in others:
        if not is_formatted(directory):
            shutil.rmtree(directory, ignore_errors=True)
            _copy(first, directory, {"node.id": str(node), "directory.id": new_id()})


def is_formatted(directory: Path) -> bool:
    return (directory / _META).exists()


def new_id() -> str:
    """A random id as Kafka writes it; none that begins with a dash, which its tools take for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _copy(source: Path, target: Path, replaced: Mapping[str, str]) -> None:
    target.mkdir(parents=True)
    if (source / _CHECKPOINT).is_file():
        shutil.copyfile(source / _CHECKPOINT, target / _CHECKPOINT)
    lines = []
    for line in (source / _META).read_text().splitlines():
        key, _, _ = line.partition("=")
        lines.append(f"{key}={replaced[key]}\n" if key in replaced else f"{line}\n")
    (target / _META).write_text("".join(lines))


def _keep(formatted: Path, template: Path) -> None:
    """Where nothing can be written, it is not kept; where another process has kept the same, that is as good."""
    if not is_formatted(formatted):  # the properties have moved it elsewhere
        return
    with contextlib.suppress(OSError):
        if len(list(template.parent.glob("formatted-*"))) < _MOST:
            with tempfile.TemporaryDirectory(prefix=".formatted-", dir=template.parent) as aside:
                _copy(formatted, Path(aside, "data"), {})
                Path(aside, "data").rename(template)

