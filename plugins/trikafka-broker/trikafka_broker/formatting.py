"""The data directory of a new broker, as Kafka's storage tool creates it.

This module owns the folders `formatted-*` beside the jars. The tool needs a JVM and a second or
two. Its output depends only on the version of Kafka, some of the broker's properties, the tool's
options, and ids that the caller chooses. So the tool runs once, and later directories are copies
with new ids.
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

#: The file that marks a directory as formatted; it is therefore written last.
_META = "meta.properties"
#: The log of the cluster's metadata. The storage tool of Kafka 4.4 creates it; with earlier
#: versions the broker does.
_METADATA_LOG = "__cluster_metadata-0"
#: Every version writes this file when a node runs; the storage tool never does.
_QUORUM_STATE = f"{_METADATA_LOG}/quorum-state"
# The first records of a new cluster: its feature levels (metadata, group, share, transaction) and
# SCRAM users.
#
# Up to Kafka 4.3 the storage tool writes them to a file of its own. From 4.4 on they are in the
# first snapshot of the metadata log. A copied directory without either still starts: the node runs
# at the lowest feature levels of its release and reports no error. Without `group.version` there is
# no consumer protocol (KIP-848), without `share.version` there are no share groups, and tests would
# silently test the older protocol. So a template must have one of the two files (see _is_whole),
# and _copy() copies exactly these and the ids, nothing that a running broker added.
_CHECKPOINTS = (
    "bootstrap.checkpoint",
    f"{_METADATA_LOG}/00000000000000000000-0000000000.checkpoint",
)
#: Properties that make the tool format other places than the data directory. A copy of that
#: directory would then be incomplete.
_MOVING = {"log.dir", "log.dirs", "metadata.log.dir"}
#: Prefixes of properties that the tool only reads: whatever they are, it writes the same files. So
#: brokers that differ in nothing else share a template.
_UNRELATED = (
    "broker.heartbeat.",
    "broker.session.",
    "group.",
    "listener.name.",
    "log.cleaner.",
    "log.initial.",
    "metadata.max.idle.",
    "num.",
    "offsets.",
    "transaction.",
)
#: Templates kept per version, of some hundred bytes each. Properties with a temporary file differ
#: in every test, so the number of templates is bounded. The least recently used ones are removed
#: first.
_MOST = 200


def template_of(
    libs: Path, properties: Mapping[str, object], options: Sequence[str]
) -> Path | None:
    """Return the path of the template for brokers with these properties.

    Return None if their directories cannot be copied.
    """
    if _MOVING & properties.keys():
        return None
    related = [(key, str(value)) for key, value in properties.items()]
    related = sorted(pair for pair in related if not pair[0].startswith(_UNRELATED))
    inputs = json.dumps([related, list(options)])
    return libs.parent / f"formatted-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"


# A node whose data is gone is formatted with the cluster's id and then copies the data of the
# others. That is safe only while the nodes with data are a majority:
#
# * If most nodes have lost their data, they could elect a leader among themselves. It knows nothing
#   of the cluster, and the remaining nodes would follow it and truncate their logs.
# * If the first node has lost its data, the tool would create the id of another cluster for it, and
#   the nodes that still have data would refuse it. With their id, the first node might become
#   leader of partitions whose data it has lost, and the others would truncate their logs.
#
# Both cases are errors that name the directories. A human decides.
def format_all(
    directories: Mapping[int, Path],
    template: Path | None,
    run_tool: Callable[[str], None],
    report: Callable[[str], object] = lambda line: None,
) -> None:
    """Create the data directories of nodes, unless they exist.

    Args:
        directories: The data directory of each node.
        template: The path of the template; None if there can be none.
        run_tool: Creates the first directory, given the cluster's id.
        report: Called with a line for each node that has lost its data, if the cluster has run.

    Raises:
        BrokerError: Most nodes of a cluster that has run have no data, or the first node has none
            while another has some.
    """
    (_, first), *others = directories.items()
    if not is_formatted(first):
        if present := [directory for _, directory in others if is_formatted(directory)]:
            # Neither a new cluster id nor the other nodes' id is safe here. (See above.)
            raise BrokerError(
                f"{first} has no data of a broker, but {present[0]} has: put it back, or remove "
                "that too"
            )
        shutil.rmtree(first, ignore_errors=True)
        if template is None or not _copy_template(template, first):
            run_tool(new_id())
            if template is not None:
                _keep(first, template)
    # A node has run on the data since it was formatted.
    elif any((directory / _QUORUM_STATE).exists() for directory in directories.values()):
        gone = [(node, directory) for node, directory in others if not is_formatted(directory)]
        _report_gone(gone, directories, report)
    for node, directory in others:
        if not is_formatted(directory):
            shutil.rmtree(directory, ignore_errors=True)
            _copy(first, directory, {"node.id": str(node), "directory.id": new_id()})


def _report_gone(
    gone: Sequence[tuple[int, Path]],
    directories: Mapping[int, Path],
    report: Callable[[str], object],
) -> None:
    """Report the nodes that have lost their data; raise if they are the majority."""
    if len(gone) * 2 > len(directories):
        # A majority without data could elect a leader, and the others would follow. (See above.)
        names = ", ".join(str(directory) for _, directory in gone)
        raise BrokerError(
            f"{len(gone)} of {len(directories)} brokers have no data any more ({names}), and the "
            "others are too few to know for sure what the cluster held: restore the data, or "
            "remove that of the others too"
        )
    for node, directory in gone:
        report(
            f"broker {node} has no data any more in {directory}: it starts empty, and copies the "
            "data of the others"
        )


def _copy_template(template: Path, first: Path) -> bool:
    """Copy the template; return whether that was possible.

    Other processes may share the cache. A template that a crash has left incomplete is removed.
    """
    try:
        if not is_formatted(template):
            return False
        if _is_whole(template):
            _copy(template, first, {"cluster.id": new_id(), "directory.id": new_id()})
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(template)
            return True
    except (OSError, UnicodeError):
        shutil.rmtree(first, ignore_errors=True)
    shutil.rmtree(template, ignore_errors=True)
    return False


def _is_whole(template: Path) -> bool:
    """Return whether a template has the first records and the ids.

    After a crash they may be missing.
    """
    sizes = [path.stat().st_size for name in _CHECKPOINTS if (path := template / name).exists()]
    return bool(sizes) and all(sizes) and "cluster.id=" in (template / _META).read_text()


def is_formatted(directory: Path) -> bool:
    return (directory / _META).exists()


def new_id() -> str:
    """Return a random id in Kafka's form.

    The id never begins with a dash, which Kafka's tools would take for an option.
    """
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        pass
    return text


def _copy(source: Path, target: Path, replaced: Mapping[str, str]) -> None:
    """Copy the storage tool's files, and nothing that a broker added.

    `replaced` maps properties to their new values.
    """
    target.mkdir(parents=True)
    for name in _CHECKPOINTS:
        if (source / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, target / name)
    lines = []
    for line in (source / _META).read_text().splitlines():
        key, _, _ = line.partition("=")
        lines.append(f"{key}={replaced[key]}\n" if key in replaced else f"{line}\n")
    (target / _META).write_text("".join(lines))


def _keep(formatted: Path, template: Path) -> None:
    """Store a template.

    No-op if the cache is read-only, or if another process has stored the same template meanwhile.
    """
    if not is_formatted(formatted):  # The properties have moved the data elsewhere.
        return
    with contextlib.suppress(OSError):
        kept = sorted(template.parent.glob("formatted-*"), key=lambda one: one.stat().st_mtime)
        for oldest in kept[: max(0, len(kept) - _MOST + 1)]:
            # If another process is copying this template just now, that process runs the tool.
            shutil.rmtree(oldest, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".formatted-", dir=template.parent) as aside:
            _copy(formatted, Path(aside, "data"), {})
            Path(aside, "data").rename(template)
