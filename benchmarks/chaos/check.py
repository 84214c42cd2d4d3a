"""The comparison of the log, read by librdkafka, with the outcomes that the producer reported.

Apart from the reading, the functions are pure.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..librdkafka import messages_of
from .ledger import NO_OFFSET, Fate, Ledger, Track

#: Violations of each kind that are listed.
_NAMED = 5

#: Partition, offset, value.
Found = tuple[int, int, bytes]


def read_all(bootstrap: str, topic: str) -> Iterator[Found]:
    """Yield every record of a topic, each partition in the order of its log.

    Raises:
        TimeoutError: No message arrived for some minutes.
    """
    for message in messages_of(bootstrap, topic):
        yield message.partition(), message.offset(), message.value()


@dataclass
class Verdict:
    """The number of records found, the violations by kind, and a list of the first of each kind."""

    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def violation(self, kind: str, what: str) -> None:
        """Record a violation."""
        self.counts[kind] += 1
        if self.counts[kind] <= _NAMED:
            self.named.append(f"{kind}: {what}")

    def add(self, other: Verdict) -> None:
        """Add the violations of another verdict."""
        self.counts += other.counts
        self.named += other.named


# What the producer promises, and so what is a violation:
#
# * An acknowledged record is in the log, at the reported offset. A duplicate that the broker
#   detects has no offset, so the offset is compared only where there is one.
# * No record is there twice, whatever its outcome. Retries of idempotent batches must not
#   duplicate.
# * The records of one writer in one partition have the order of the calls. That includes failed
#   records which are in the log after all.
# * An error says whether the record may be in the log (maybe_written). If the error rules that out,
#   the record must be absent. If not, both are allowed.
# * A table's error has numbers of delivered and unknown rows, and the log must agree with both.
# * Every record has an outcome in the end.
#
# librdkafka reads the log, because a fault of trikafka's own reader could hide one of its producer.


def check(ledger: Ledger, found: Iterable[Found]) -> Verdict:
    """Compare the records in the log with their reported outcomes."""
    verdict = Verdict()
    where = {
        key: array("q", [NO_OFFSET]) * len(track.fates) for key, track in ledger.tracks.items()
    }
    latest: dict[tuple[str, int], int] = {}
    for partition, offset, value in found:
        verdict.records += 1
        name, place, text = value.split(b" ", 3)[:3]
        key = (name.decode(), int(place))
        number = int(text)
        if int(place) != partition:
            verdict.violation(
                "in another partition", f"record {number} of {key} in partition {partition}"
            )
            continue
        first = where[key][number]
        fate = Fate(ledger.tracks[key].fates[number]).name
        if first != NO_OFFSET:
            verdict.violation(
                "doubled",
                f"record {number} of {ledger.tracks[key]} ({fate}) at {first} and {offset}",
            )
            continue
        where[key][number] = offset
        if number < latest.get(key, -1):
            verdict.violation(
                "out of order",
                f"record {number} of {ledger.tracks[key]} ({fate}) after {latest[key]}, at "
                f"{offset}",
            )
        latest[key] = max(number, latest.get(key, -1))
    for key, track in ledger.tracks.items():
        _check_track(track, where[key], verdict)
    for table in ledger.tables:
        there = sum(
            where[track.writer, track.partition][number] != NO_OFFSET
            for track, number in table.rows
        )
        if not table.delivered <= there <= table.delivered + table.unknown:
            said = f"{table.delivered} delivered and {table.unknown} unknown"
            verdict.violation(
                "a table's figures are wrong",
                f"{there} rows of {table.rows[0][0].writer} are there; {said}",
            )
    for what, count in ledger.unexpected.items():
        verdict.violation("failed for another reason", f"{count} records of {what}")
    return verdict


def _check_track(track: Track, where: array[int], verdict: Verdict) -> None:
    for number, fate in enumerate(track.fates):
        offset = where[number]
        if fate == Fate.ACKED and offset == NO_OFFSET:
            verdict.violation(
                "lost", f"record {number} of {track}, acked at {track.offsets[number]}"
            )
        elif fate == Fate.ACKED and track.offsets[number] not in (NO_OFFSET, offset):
            verdict.violation(
                "wrong offset",
                f"record {number} of {track}: acknowledged at {track.offsets[number]}, is {offset}",
            )
        elif fate == Fate.NEVER and offset != NO_OFFSET:
            verdict.violation(
                "there though called not written", f"record {number} of {track} at {offset}"
            )
        elif fate == Fate.PENDING:
            verdict.violation("without an outcome", f"record {number} of {track}")
