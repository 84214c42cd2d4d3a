"""The plan of an export: which offsets go to which file, and its form on disk. Pure; no I/O.

Owns the names of data files and the JSON of plans and manifests. A name, once in a stored plan, is never worked out again:
a later version may name files as it likes.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from ..errors import ExportError
from ..interfaces import ExportManifest, ExportPlan, ExportState, PlannedFile, WrittenFile
from ..types import TopicPartition

FORMAT_VERSION = 1
#: Topic names may have 249 characters and file names 255; what follows the topic takes up to 69.
_TOPIC_IN_NAME = 180


@dataclass(frozen=True, slots=True)
class SourceView:
    """What the cluster says at the moment of planning, for every partition of the topics to export."""

    cluster_id: str | None
    topic_ids: Mapping[str, str | None]
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def file_name(topic: str, partition: int, start: int, end: int) -> str:
    """Return ``<topic>-<partition>-<from>-<to>.parquet``, padded so that names sort as offsets do.

    Readers skip names that begin with ``_`` or ``.``, so such a topic gets an ``@`` before it; a very long one is cut.
    """
    shown = f"@{topic}" if topic[:1] in "_." else topic
    if len(shown) > _TOPIC_IN_NAME:
        shown = f"{shown[:_TOPIC_IN_NAME]}~{hashlib.sha256(topic.encode()).hexdigest()[:12]}"
    return f"{shown}-{partition:05d}-{start:020d}-{end:020d}.parquet"


def _checked(name: str) -> str:
    """Return the name of a data file. Raises :exc:`ExportError` if it could lead out of the destination."""
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise ExportError(f"{name!r} is not the name of a file in the destination")
    return name


def split(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """Cut ``[start, end)`` into as few parts of at most ``most`` offsets as possible, of about one size."""
    width = end - start
    parts = -(-width // most)
    cuts = [start + width * i // parts for i in range(parts + 1)] if parts else []
    return list(pairwise(cuts))


def check_identity(state: ExportState, view: SourceView, destination: str) -> None:
    """Raise :exc:`ExportError` if the topics are not those that were exported to ``destination`` before."""
    if state.cluster_id and view.cluster_id and state.cluster_id != view.cluster_id:
        raise ExportError(
            f"{destination} holds an export from another cluster ({state.cluster_id}, not {view.cluster_id}); "
            "choose another destination"
        )
    for topic, topic_id in view.topic_ids.items():
        before = state.topic_ids.get(topic)
        if before and topic_id and before != topic_id:
            raise ExportError(
                f"topic {topic!r} was deleted and created anew since it was exported to {destination}; "
                "choose another destination for the new one"
            )


def starting_offsets(
    state: ExportState, view: SourceView, first: Mapping[TopicPartition, int], *, fail_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """Return where each partition's export goes on. ``first`` says where it begins if nothing was exported yet.

    Raises :exc:`ExportError` for offsets that the log has lost at either end.
    """
    starts: dict[TopicPartition, int] = {}
    lost: list[str] = []
    for tp, beginning in view.beginnings.items():
        known = state.positions.get(tp)
        start = known if known is not None else max(first.get(tp, beginning), 0)
        if start > view.ends[tp]:
            raise ExportError(
                f"{tp} ends at offset {view.ends[tp]}, but the export is to go on from {start}: "
                "its log was truncated, or the topic was created anew"
            )
        if start < beginning and (known is not None or tp in first):
            lost.append(f"{tp} [{start}, {beginning})")
        starts[tp] = max(start, beginning)
    if lost and fail_on_data_loss:
        raise ExportError(
            f"records not exported yet are gone from the log: {', '.join(lost)}; fail_on_data_loss=False goes on without them"
        )
    return starts


def new_plan(
    state: ExportState,
    view: SourceView,
    starts: Mapping[TopicPartition, int],
    *,
    max_records_per_file: int,
    isolation_level: str,
) -> ExportPlan | None:
    """Return the plan for all that lies between ``starts`` and the view's ends; ``None`` if that is nothing."""
    files = tuple(
        PlannedFile(tp.topic, tp.partition, low, high, _checked(file_name(tp.topic, tp.partition, low, high)))
        for tp in sorted(starts)
        for low, high in split(starts[tp], view.ends[tp], max_records_per_file)
    )
    if not files:
        return None
    return ExportPlan(
        number=state.last_number + 1,
        plan_id=str(uuid.uuid4()),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster_id=view.cluster_id or state.cluster_id,
        topic_ids={**state.topic_ids, **view.topic_ids},
        isolation_level=isolation_level,
        files=files,
        positions={**state.positions, **{tp: view.ends[tp] for tp in starts}},
    )


def complete(plan: ExportPlan, written: Sequence[WrittenFile]) -> ExportManifest:
    """Return the manifest of a plan whose every file was answered for, in the plan's order. Raises :exc:`ExportError`."""
    answers = {file.planned.name: file for file in written}
    missing = [str(planned) for planned in plan.files if planned.name not in answers]
    if missing or len(answers) != len(written) or len(written) != len(plan.files):
        raise ExportError(f"the sink did not answer once for each planned file (missing: {', '.join(missing) or 'none'})")
    return ExportManifest(plan, tuple(answers[planned.name] for planned in plan.files))


# --- JSON ---


def plan_to_json(plan: ExportPlan) -> str:
    """Return the text of a plan file."""
    return _text({"kind": "plan", **_plan_dict(plan)})


def manifest_to_json(manifest: ExportManifest) -> str:
    """Return the text of a manifest file."""
    files = [{**_file_dict(file.planned), "file": file.name, "rows": file.rows, "bytes": file.bytes} for file in manifest.files]
    body = _plan_dict(manifest.plan) | {"files": files, "rows": manifest.rows, "bytes": manifest.bytes}
    return _text({"kind": "manifest", **body})


def plan_from_json(text: str | bytes, where: str) -> ExportPlan:
    """Read a plan or the plan's part of a manifest. Raises :exc:`ExportError` naming ``where`` for anything else."""
    try:
        body = json.loads(text if isinstance(text, str) else text.decode())
        version = body["version"]
        if version != FORMAT_VERSION:
            raise ExportError(f"it has format version {version}; this trikafka reads version {FORMAT_VERSION}")
        return ExportPlan(
            number=int(body["number"]),
            plan_id=str(body["plan_id"]),
            created=str(body["created"]),
            cluster_id=body["cluster_id"],
            topic_ids=dict(body["topic_ids"]),
            isolation_level=str(body["isolation_level"]),
            files=tuple(
                PlannedFile(str(f["topic"]), int(f["partition"]), int(f["from"]), int(f["to"]), _checked(str(f["planned_file"])))
                for f in body["files"]
            ),
            positions={
                TopicPartition(topic, int(partition)): int(offset)
                for topic, offsets in body["positions"].items()
                for partition, offset in offsets.items()
            },
        )
    except ExportError as error:
        raise ExportError(f"{where} cannot be used: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ExportError(f"{where} is not an export plan or manifest: {type(error).__name__}: {error}") from error


def _plan_dict(plan: ExportPlan) -> dict[str, Any]:
    positions: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(plan.positions.items()):
        positions.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return {
        "version": FORMAT_VERSION,
        "number": plan.number,
        "plan_id": plan.plan_id,
        "created": plan.created,
        "cluster_id": plan.cluster_id,
        "topic_ids": dict(plan.topic_ids),
        "isolation_level": plan.isolation_level,
        "files": [_file_dict(file) for file in plan.files],
        "positions": positions,
    }


def _file_dict(file: PlannedFile) -> dict[str, Any]:
    return {
        "topic": file.topic,
        "partition": file.partition,
        "from": file.start,
        "to": file.end,
        "planned_file": file.name,
    }


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1) + "\n"
