"""The plan of an export: its ranges of offsets, and the destination's state.

No I/O. This module owns the names of data files. A name in a stored plan is never computed
again, so a later version may name files differently. :mod:`.plan_json` has the form on disk.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from trikafka import ConfigurationError, ExportError, OffsetRange, TopicPartition
from trikafka.interfaces import (
    ExportManifest,
    ExportPlan,
    ExportState,
    LostRange,
    PlannedRange,
    RangeResult,
)

#: Topic names may have 249 characters and file names 255; up to 69 follow the topic.
_TOPIC_IN_NAME = 180
DEFAULT_ISOLATION = "read_committed"
#: The option that allows lost records, as users give it in Python and to the command.
LOSS_OPTION = "fail_on_data_loss=False (--allow-data-loss)"
#: The key of a plan's format for the suffix of its files. Plans without it have Parquet files.
SUFFIX_KEY, DEFAULT_SUFFIX = "suffix", ".parquet"


@dataclass(frozen=True, slots=True)
class SourceView:
    """The cluster at the moment of planning, for the partitions that answered."""

    cluster_id: str | None
    topic_ids: Mapping[str, str | None]
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    #: The number of partitions of each topic, with those that did not answer.
    partitions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportWork:
    """The work to plan: starts, ranges left by earlier plans, and lost ranges.

    Partitions with ``errors`` cannot go on: the log has lost something at either end.
    """

    starts: Mapping[TopicPartition, int]
    carried: tuple[OffsetRange, ...] = ()
    lost: tuple[LostRange, ...] = ()
    errors: Mapping[TopicPartition, ExportError] = field(default_factory=dict)


def file_name(
    topic: str, partition: int, start: int, end: int, suffix: str = DEFAULT_SUFFIX
) -> str:
    """Return ``<topic>-<partition>-<from>-<to><suffix>``, padded so that names sort as offsets do.

    Readers skip names that begin with ``_`` or ``.``, so such a topic gets an ``@`` before it. A
    very long topic is cut.
    """
    return f"{name_of_topic(topic)}-{partition:05d}-{start:020d}-{end:020d}{suffix}"


def suffix_of(name: str) -> str:
    """Return the suffix of a data file's name: all from the first dot after the offsets on."""
    return "".join(name.rpartition("-")[2].partition(".")[1:])


def name_of_topic(topic: str) -> str:
    """Return the beginning of a topic's file names."""
    shown = f"@{topic}" if topic[:1] in "_." else topic
    if len(shown) > _TOPIC_IN_NAME:
        return f"{shown[:_TOPIC_IN_NAME]}~{hashlib.sha256(topic.encode()).hexdigest()[:12]}"
    return shown


def checked_name(name: str) -> str:
    """Return the name of a data file.

    Raises :exc:`ExportError` if it could lead out of the destination.
    """
    if name in ("", ".", "..") or any(sign in name for sign in "/\\\0"):
        raise ExportError(f"{name!r} is not the name of a file in the destination")
    return name


def split(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """Cut ``[start, end)`` into the fewest equal parts of at most ``most`` offsets."""
    width = end - start
    parts = -(-width // most)
    cuts = [start + width * i // parts for i in range(parts + 1)] if parts else []
    return list(pairwise(cuts))


def isolation_of(state: ExportState, asked: str | None, destination: str) -> str:
    """Return the isolation level of this export: the destination's own, once it has one.

    Raises :exc:`ConfigurationError` if another one is asked for.
    """
    if state.isolation_level is None:
        return asked or DEFAULT_ISOLATION
    if asked is not None and asked != state.isolation_level:
        raise ConfigurationError(
            f"{destination} was exported with isolation_level={state.isolation_level!r} and keeps "
            f"it; choose another destination for {asked!r}"
        )
    return state.isolation_level


def check_cluster(state: ExportState, cluster_id: str | None, destination: str) -> None:
    """Raise :exc:`ExportError` if ``destination`` was exported from another cluster."""
    if state.cluster_id and cluster_id and state.cluster_id != cluster_id:
        raise ExportError(
            f"{destination} holds an export from another cluster ({state.cluster_id}, not "
            f"{cluster_id}); choose another destination"
        )


def check_identity(state: ExportState, view: SourceView, destination: str) -> None:
    """Raise :exc:`ExportError` if a topic was recreated since its last export."""
    check_cluster(state, view.cluster_id, destination)
    for topic, topic_id in view.topic_ids.items():
        before = state.topic_ids.get(topic)
        if before and topic_id and before != topic_id:
            raise ExportError(
                f"topic {topic!r} was deleted and created again since it was exported to "
                f"{destination}; choose another destination for the new one"
            )


def work_of(
    state: ExportState,
    view: SourceView,
    first: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool,
) -> ExportWork:
    """Return where each partition's export goes on.

    ``first`` has the offsets of partitions that were not exported before.
    """
    starts: dict[TopicPartition, int] = {}
    lost: list[LostRange] = []
    errors: dict[TopicPartition, ExportError] = {}
    for tp, beginning in view.beginnings.items():
        known = state.positions.get(tp)
        if known is None and tp not in first and is_added(state, tp):
            known = 0  # retention may have deleted records of it since it was added
        start = known if known is not None else max(first.get(tp, beginning), 0)
        gap = LostRange(*tp, start, beginning, "deleted from the log before it was exported")
        is_lost = start < beginning and (known is not None or tp in first)
        if start > view.ends[tp]:
            errors[tp] = ExportError(
                f"{tp} ends at offset {view.ends[tp]}, but the export is to go on from {start}: "
                "its log was truncated, or the topic was created again"
            )
        elif is_lost and fail_on_data_loss:
            errors[tp] = ExportError(
                f"records not exported yet are gone from the log: {gap}; {LOSS_OPTION} goes on "
                "without them"
            )
        else:
            starts[tp] = max(start, beginning)
            lost += [gap] if is_lost else []
    return ExportWork(starts, state.carried, tuple(lost), errors)


def is_added(state: ExportState, tp: TopicPartition) -> bool:
    """Return whether the partition was added after the first export of its topic.

    Any other partition without a position did not answer at the first export. Its log begins where
    it begins: records deleted before that export were never to be exported.
    """
    return tp.partition >= state.partitions.get(tp.topic, tp.partition + 1)


def new_plan(
    state: ExportState,
    view: SourceView,
    work: ExportWork,
    *,
    max_records_per_file: int,
    isolation_level: str,
    format: Mapping[str, Any],
    start: object = None,
) -> ExportPlan | None:
    """Return the plan for what is carried over and what is new; ``None`` if there is neither.

    If ``start`` is a time, the first export of a topic has a plan even without records, which
    stores the time: ``-1h`` means another time in the next export.
    """
    fresh = [OffsetRange(*tp, work.starts[tp], view.ends[tp]) for tp in sorted(work.starts)]
    suffix = format.get(SUFFIX_KEY, DEFAULT_SUFFIX)
    ranges = tuple(
        PlannedRange(
            whole.topic,
            whole.partition,
            low,
            high,
            checked_name(file_name(whole.topic, whole.partition, low, high, suffix)),
        )
        for whole in (*work.carried, *fresh)
        for low, high in split(whole.start, whole.end, max_records_per_file)
    )
    since = {**state.since, **begun_at(state, view, start)}
    if not ranges and not work.lost and since == state.since:
        return None
    return ExportPlan(
        number=state.last_number + 1,
        plan_id=str(uuid.uuid4()),
        created=now(),
        cluster_id=view.cluster_id or state.cluster_id,
        topic_ids={**state.topic_ids, **view.topic_ids},
        isolation_level=isolation_level,
        ranges=ranges,
        positions={**state.positions, **{tp: view.ends[tp] for tp in work.starts}},
        format=format,
        lost=work.lost,
        since=since,
        partitions={
            **{
                topic: view.partitions[topic]
                for topic in view.topic_ids
                if topic in view.partitions
            },
            **state.partitions,
        },
    )


def begun_at(state: ExportState, view: SourceView, start: object) -> dict[str, int]:
    """Return the topics whose first export this is, with ``start``, if that is a time."""
    if not isinstance(start, int):
        return {}
    return {topic: start for topic in view.topic_ids if topic not in state.topic_ids}


class NoColumnsError(ExportError):
    """A table cannot be created yet: no record shows its columns."""


def now() -> str:
    """Return the time in the form of plans and manifests."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def time_text(ms: int) -> str:
    """Return a time in milliseconds as text; as a number if it is beyond the year 9999."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"


def complete(plan: ExportPlan, results: Iterable[RangeResult]) -> ExportManifest:
    """Return the manifest of a plan; the results cover each range, in the plan's order.

    Raises :exc:`ExportError` if a result is missing, or does not fit its range.
    """
    results = list(results)
    found = {(result.planned.tp, result.planned.start): result for result in results}
    missing = [str(planned) for planned in plan.ranges if (planned.tp, planned.start) not in found]
    if missing or len(found) != len(results) or len(results) != len(plan.ranges):
        raise ExportError(
            "the sink did not return one result for each planned range (missing: "
            f"{', '.join(missing) or 'none'})"
        )
    for result in results:
        _check_result(result)
    return ExportManifest(
        plan, tuple(found[planned.tp, planned.start] for planned in plan.ranges), now()
    )


def _check_result(result: RangeResult) -> None:
    planned = result.planned
    if not planned.start <= result.reached <= planned.end:
        raise ExportError(
            f"the sink's result for {planned} ends at {result.reached}, outside of it"
        )
    for start, end in [(file.start, file.end) for file in result.files] + [
        (lost.start, lost.end) for lost in result.lost
    ]:
        if not planned.start <= start <= end <= result.reached:
            raise ExportError(
                f"the sink's result for {planned} has a part outside of it: [{start}, {end})"
            )


def after(manifest: ExportManifest) -> ExportState:
    """Return the state of a destination once the manifest is published."""
    plan = manifest.plan
    return ExportState(
        last_number=plan.number,
        cluster_id=plan.cluster_id,
        topic_ids=plan.topic_ids,
        positions=plan.positions,
        carried=manifest.carried,
        isolation_level=plan.isolation_level,
        format=plan.format or None,
        since=plan.since,
        partitions=plan.partitions,
    )


def exported_up_to(state: ExportState) -> dict[TopicPartition, int]:
    """Return, for each partition, the offset below which all is exported.

    These are the offsets for the group that shows the lag.
    """
    positions = dict(state.positions)
    for left in state.carried:
        tp = TopicPartition(left.topic, left.partition)
        positions[tp] = min(positions.get(tp, left.start), left.start)
    return positions


def topics_of(state: ExportState) -> tuple[str, ...]:
    """Return the topics that a destination holds, or is about to hold."""
    planned = state.unfinished.ranges if state.unfinished is not None else ()
    return tuple(
        sorted(
            {
                *state.topic_ids,
                *(tp.topic for tp in state.positions),
                *(each.topic for each in planned),
            }
        )
    )


def listed(topics: Sequence[str]) -> str:
    """Return topics as text: a few, and the number of the others."""
    return ", ".join(topics[:5]) + (f" and {len(topics) - 5} more" if len(topics) > 5 else "")


def turns(ranges: Sequence[PlannedRange]) -> list[PlannedRange]:
    """Return the ranges in an order in which partitions alternate.

    Then a partition that does not respond does not occupy all workers.
    """
    counts: dict[TopicPartition, int] = {}
    keyed = []
    for index, planned in enumerate(ranges):
        turn = counts[planned.tp] = counts.get(planned.tp, -1) + 1
        keyed.append((turn, index, planned))
    return [planned for _, _, planned in sorted(keyed, key=lambda each: each[:2])]
