"""Plans and manifests as JSON: format 2 is written, format 1 is read, too.

No I/O. A file on a disk is checked as if anyone could have written it. Ranges that overlap,
run backwards or exceed the plan are refused, and so are names that lead out of the destination.

The last entry is a checksum of all bytes before it: a damaged offset would look like any other
number, and the next export would skip or repeat records. Files of older releases have none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trikafka import ExportError, OffsetRange, TopicPartition
from trikafka.config.whole import is_whole
from trikafka.interfaces import (
    ExportManifest,
    ExportPlan,
    ExportState,
    LostRange,
    PlannedRange,
    RangeResult,
    WrittenFile,
)

from .piece_log import check_inside, checked_sum
from .plan import checked_name
from .summed_file import checksum_text

FORMAT_VERSION = 2
#: The last entry of a file. Files without a checksum end with a number or a list.
_LAST = re.compile(rb',\n "([^"\n]*)": "([^"\n]*)"\n}\n\Z')


def plan_to_json(plan: ExportPlan) -> str:
    """Return the text of a plan file."""
    return _text(
        {
            "kind": "plan",
            **_plan_dict(plan),
            "ranges": [_range_dict(planned) for planned in plan.ranges],
        }
    )


def manifest_to_json(manifest: ExportManifest) -> str:
    """Return the text of a manifest file."""
    body = _plan_dict(manifest.plan) | {
        "finished": manifest.finished,
        "ranges": [_result_dict(result) for result in manifest.results],
        "carried": [each._asdict() for each in manifest.carried],
        "lost": [_lost_dict(lost) for lost in manifest.lost],
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "dead_letters": manifest.dead_letters,
    }
    return _text({"kind": "manifest", **body})


def plan_from_json(text: str | bytes, where: str) -> ExportPlan:
    """Read a plan, or the plan's part of a manifest.

    Raises :exc:`ExportError`, which names ``where``, for anything else.
    """
    return _read(text, where)[0]


def state_from_json(text: str | bytes, where: str) -> ExportState:
    """Read the destination's state from a manifest.

    Raises :exc:`ExportError`, which names ``where``, for anything else.
    """
    plan, body = _read(text, where)
    with _damage_of(where, "an export plan or manifest"):
        carried = tuple(
            OffsetRange(
                _word(each, "topic"),
                _offset(each, "partition"),
                _offset(each, "start"),
                _offset(each, "end"),
            )
            for each in body.get("carried", ())
        )
    return ExportState(
        last_number=plan.number,
        cluster_id=plan.cluster_id,
        topic_ids=plan.topic_ids,
        positions=plan.positions,
        carried=carried,
        isolation_level=plan.isolation_level,
        format=plan.format or None,
        since=plan.since,
        partitions=plan.partitions,
    )


def files_from_json(text: str | bytes, where: str) -> list[WrittenFile]:
    """Read the data files that a manifest lists.

    Raises :exc:`ExportError`, which names ``where``, for anything else.
    """
    _, body = _read(text, where)
    with _damage_of(where, "an export manifest"):
        if body["version"] == 1:
            return [
                WrittenFile(
                    _range(each),
                    each["file"],
                    each["from"],
                    each["to"],
                    int(each["rows"]),
                    int(each["bytes"]),
                )
                for each in body["files"]
                if each["file"] is not None
            ]
        return [_file(each, f, where) for each in body["ranges"] for f in each["files"]]


def letters_from_json(text: str | bytes, where: str) -> list[WrittenFile]:
    """Read the files of dead letters that a manifest lists; older releases list none.

    Raises as :func:`files_from_json`.
    """
    _, body = _read(text, where)
    with _damage_of(where, "an export manifest"):
        return [
            _file(each, f, where)
            for each in body.get("ranges", ())
            for f in each.get("letters", ())
        ]


def _file(planned: Mapping[str, Any], file: Mapping[str, Any], where: str) -> WrittenFile:
    name = _word(file, "name")
    check_inside(name, where)
    return WrittenFile(
        planned=_range(planned),
        name=name,
        start=_offset(file, "from"),
        end=_offset(file, "to"),
        rows=_offset(file, "rows"),
        bytes=_offset(file, "bytes"),
        version=None if file.get("version") is None else _offset(file, "version"),
        crc32c=checked_sum(file.get("crc32c")),
    )


@contextmanager
def _damage_of(where: str, what: str) -> Iterator[None]:
    """Raise what a damaged file causes as an :exc:`ExportError`, which names the file."""
    try:
        yield
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ExportError(f"{where} is not {what}: {type(error).__name__}: {error}") from error


def _read(text: str | bytes, where: str) -> tuple[ExportPlan, dict[str, Any]]:
    with _damage_of(where, "an export plan or manifest"):
        try:
            raw = text.encode() if isinstance(text, str) else text
            body = json.loads(raw.decode())
            version = body["version"]
            if version not in (1, FORMAT_VERSION):
                raise ExportError(
                    f"it has format version {version}; this trikafka reads version {FORMAT_VERSION}"
                )
            if version != 1:
                _check_sum(raw, body)
            plan = _plan(body)
            _check_ranges(plan)
            return plan, body
        except ExportError as error:
            raise ExportError(f"{where} cannot be used: {error}") from error


def _check_sum(raw: bytes, body: Mapping[str, Any]) -> None:
    last = _LAST.search(raw)
    if last is None and "checksum" not in body:
        return
    found = checksum_text(raw[: last.start()]) if last is not None else ""
    if last is None or last.groups() != (b"checksum", found.encode()):
        raise ExportError("its checksum shows that it has changed since it was written")


def _plan(body: Mapping[str, Any]) -> ExportPlan:
    return ExportPlan(
        number=int(body["number"]),
        plan_id=str(body["plan_id"]),
        created=str(body["created"]),
        cluster_id=body["cluster_id"],
        topic_ids=dict(body["topic_ids"]),
        isolation_level=str(body["isolation_level"]),
        ranges=tuple(_range(each) for each in body["files" if body["version"] == 1 else "ranges"]),
        positions={
            TopicPartition(topic, int(partition)): int(offset)
            for topic, offsets in body["positions"].items()
            for partition, offset in offsets.items()
        },
        format=dict(body.get("format") or {}),
        lost=tuple(
            LostRange(
                _word(each, "topic"),
                _offset(each, "partition"),
                _offset(each, "from"),
                _offset(each, "to"),
                each["reason"],
            )
            for each in body.get("planned_lost", ())
        ),
        since={topic: int(time) for topic, time in body.get("since", {}).items()},
        partitions={topic: int(count) for topic, count in body.get("partitions", {}).items()},
    )


def _check_ranges(plan: ExportPlan) -> None:
    """Raise :exc:`ExportError` unless the ranges are disjoint, forward and below the positions."""
    last: dict[TopicPartition, PlannedRange] = {}
    for planned in sorted(plan.ranges, key=lambda each: (each.tp, each.start)):
        if not 0 <= planned.start < planned.end or planned.partition < 0:
            raise ExportError(f"it plans {planned}, which is not a range of offsets")
        before = last.get(planned.tp)
        if before is not None and before.end > planned.start:
            raise ExportError(f"it plans both {before} and {planned}, which overlap")
        if planned.end > plan.positions.get(planned.tp, -1):
            raise ExportError(
                f"it plans {planned}, beyond its own position {plan.positions.get(planned.tp)}"
            )
        last[planned.tp] = planned
    wrong = [
        f"{offset} of {tp}"
        for tp, offset in plan.positions.items()
        if offset < 0 or tp.partition < 0
    ]
    if wrong:
        raise ExportError(f"it has positions that are not offsets: {', '.join(wrong)}")
    if len({planned.name for planned in plan.ranges}) != len(plan.ranges):
        raise ExportError("it plans one file name twice")


def _word(body: Mapping[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r}")
    return value


def _offset(body: Mapping[str, Any], name: str) -> int:
    value = body[name]
    if not is_whole(value):
        raise ValueError(f"{name} is {value!r}")
    return value


def _range(body: Mapping[str, Any]) -> PlannedRange:
    name = checked_name(str(body["planned_file"]))
    return PlannedRange(
        _word(body, "topic"), int(body["partition"]), int(body["from"]), int(body["to"]), name
    )


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
        "format": dict(plan.format),
        "positions": positions,
        "planned_lost": [_lost_dict(lost) for lost in plan.lost],
        **({"since": dict(plan.since)} if plan.since else {}),
        **({"partitions": dict(plan.partitions)} if plan.partitions else {}),
    }


def _range_dict(planned: PlannedRange) -> dict[str, Any]:
    return {
        "topic": planned.topic,
        "partition": planned.partition,
        "from": planned.start,
        "to": planned.end,
        "planned_file": planned.name,
    }


def _result_dict(result: RangeResult) -> dict[str, Any]:
    body = _range_dict(result.planned) | {
        "reached": result.reached,
        "rows": result.rows,
        "files": [_file_dict(file) for file in result.files],
    }
    if result.dead_letters:
        body["dead_letters"] = result.dead_letters
    if result.letters:
        body["letters"] = [_file_dict(file) for file in result.letters]
    if result.error is not None:
        body["error"] = f"{type(result.error).__name__}: {result.error}"[:2000]
    return body


def _file_dict(file: WrittenFile) -> dict[str, Any]:
    body = {
        "name": file.name,
        "from": file.start,
        "to": file.end,
        "rows": file.rows,
        "bytes": file.bytes,
    }
    more = {"version": file.version, "crc32c": file.crc32c}
    return body | {name: value for name, value in more.items() if value is not None}


def _lost_dict(lost: LostRange) -> dict[str, Any]:
    return {
        "topic": lost.topic,
        "partition": lost.partition,
        "from": lost.start,
        "to": lost.end,
        "reason": lost.reason,
    }


def _text(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, indent=1).removesuffix("\n}")
    return f'{text},\n "checksum": "{checksum_text(text.encode())}"\n}}\n'
