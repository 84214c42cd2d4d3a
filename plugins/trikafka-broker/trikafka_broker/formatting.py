"""The data directory of a new broker, as Kafka's storage tool makes it. Owns the folders `formatted-*` beside the jars.

The tool takes a JVM and a second or two, and what it writes depends on nothing but the version of Kafka, the broker's
properties and its own options; but for the ids, which are ours to choose. So it runs once, and then there are copies.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .errors import BrokerError

# The second says that the rest is there, so it comes last.
_CHECKPOINT, _META = "bootstrap.checkpoint", "meta.properties"
#: What a node makes when it first comes up.
_METADATA_LOG = "__cluster_metadata-0"
#: With these the tool formats other places than the data directory, whose copy would not be all there is.
_MOVING = {"log.dir", "log.dirs", "metadata.log.dir"}
#: Of one version. Each is of some hundred bytes, but properties can be of any number: each test has its own if there is
#: a temporary file in them. So those go first that nobody has used for longest.
_MOST = 200


def template_of(libs: Path, properties: Mapping[str, object], options: Sequence[str]) -> Path | None:
    """Where the files for brokers with these properties (those that were asked for) are kept, or would be.

    None where they cannot be copied.
    """
    if _MOVING & properties.keys():
        return None
    known = json.dumps([sorted((key, str(value)) for key, value in properties.items()), list(options)])
    return libs.parent / f"formatted-{hashlib.sha256(known.encode()).hexdigest()[:16]}"


def format_all(
    directories: Mapping[int, Path],
    template: Path | None,
    run_tool: Callable[[str], None],
    report: Callable[[str], object] = lambda line: None,
) -> None:
    """Make the data directories of nodes, unless they are there. `run_tool` makes the first, given the cluster's id.

    Of a cluster that has run, nodes whose data is gone are told to `report`, a line each. Raises `BrokerError` if these
    are most of all, or if the first alone is gone.
    """
    (_, first), *others = directories.items()
    if not is_formatted(first):
        if left := [directory for _, directory in others if is_formatted(directory)]:
            # With another cluster's id it would not be let in. With theirs it may lead what it has lost, and they would
            # follow: that, too, is what becomes of the last replica in sync.
            raise BrokerError(f"{first} has no data of a broker, but {left[0]} has: put it back, or remove that too")
        shutil.rmtree(first, ignore_errors=True)
        if template is None or not _copy_template(template, first):
            run_tool(new_id())
            if template is not None:
                _keep(first, template)
    elif any(_has_run(directory) for directory in directories.values()):
        gone = [(node, directory) for node, directory in others if not is_formatted(directory)]
        _tell_of_gone(gone, directories, report)
    for node, directory in others:
        if not is_formatted(directory):
            shutil.rmtree(directory, ignore_errors=True)
            _copy(first, directory, {"node.id": str(node), "directory.id": new_id()})


def _tell_of_gone(
    gone: Sequence[tuple[int, Path]], directories: Mapping[int, Path], report: Callable[[str], object]
) -> None:
    if len(gone) * 2 > len(directories):
        # They would be a majority that knows nothing, and could elect one of themselves: the others would follow it.
        names = ", ".join(str(directory) for _, directory in gone)
        raise BrokerError(
            f"{len(gone)} of {len(directories)} brokers have no data any more ({names}), and the others are too few to"
            " know for sure what the cluster held: put it back, or remove theirs too"
        )
    for node, directory in gone:
        report(f"broker {node} has no data any more in {directory}: it begins anew, and copies what the others have")


def _has_run(directory: Path) -> bool:
    """Whether the node of a data directory has been up, and not only formatted."""
    return (directory / _METADATA_LOG).exists()


def _copy_template(template: Path, first: Path) -> bool:
    """Whether it could be. Others may share the cache, and what a crash of the machine has cut off is made anew."""
    try:
        if not is_formatted(template):
            return False
        if _is_whole(template):
            _copy(template, first, {"cluster.id": new_id(), "directory.id": new_id()})
            with contextlib.suppress(OSError):  # a cache that is only read
                os.utime(template)
            return True
    except (OSError, UnicodeError):
        shutil.rmtree(first, ignore_errors=True)
    shutil.rmtree(template, ignore_errors=True)
    return False


def _is_whole(template: Path) -> bool:
    checkpoint = template / _CHECKPOINT
    cut_off = checkpoint.exists() and not checkpoint.stat().st_size
    return not cut_off and "cluster.id=" in (template / _META).read_text()


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
        kept = sorted(template.parent.glob("formatted-*"), key=lambda one: one.stat().st_mtime)
        for oldest in kept[: max(0, len(kept) - _MOST + 1)]:
            shutil.rmtree(oldest, ignore_errors=True)  # who copies it just now runs the tool instead
        with tempfile.TemporaryDirectory(prefix=".formatted-", dir=template.parent) as aside:
            _copy(formatted, Path(aside, "data"), {})
            Path(aside, "data").rename(template)

