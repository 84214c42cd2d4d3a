"""What the members' logs say: who handled which record when, and whether that was right.

A member writes a line when a handler ends, and another one when the broker has taken the accept. So
a line of the second kind is the broker's word, and nothing excuses two of them for one record.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

#: Partition, offset and delivery count; when the handler began, and when what the line is about
#: happened (the machine's monotonic clock); the :class:`Event`.
LINE = struct.Struct("<iqhddB")
#: Seconds after the end of a fault in which its consequences may come: locks and sessions end.
AFTER = 25.0
#: Seconds for which a handler may go on after its record began elsewhere.
PAST = 0.1
#: Seconds in which the broker's word on an accept must come, without a fault.
_ANSWER = 10.0

#: A partition's number and an offset.
Place = tuple[int, int]


class Event(IntEnum):
    """The subject of a line."""

    CUT = 0  #: The handler was cancelled.
    DONE = 1  #: The handler has ended by itself.
    ACCEPTED = 2  #: The broker has taken the accept.


class Handled(NamedTuple):
    """One handler's work on a record, by the machine's monotonic clock."""

    began: float
    ended: float
    delivery: int  # its number, from 1
    member: str
    whole: bool
    accepted: float = math.inf  # when the broker's word was there

    @property
    def is_accepted(self) -> bool:
        """True if the broker has taken the accept, as far as the member could write it down."""
        return self.accepted < math.inf


class Fault(NamedTuple):
    """A fault, and the member that it struck; else an empty name."""

    began: float
    ended: float
    member: str


@dataclass
class Figures:
    """The results."""

    records: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    handled: int = 0
    again: int = 0  #: records that were handled more than once
    cut: int = 0  #: handlers that were cancelled
    unheard: int = 0  #: records that were handled, and whose accept has no word of the broker
    longest_past: float = 0.0  #: seconds of a handler past its record's next beginning
    violations: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def violated(self, kind: str, what: object) -> None:
        """Count a violation; keep the first ones."""
        self.violations[kind] += 1
        if len(self.named) < 10:
            self.named.append(f"{kind}: {what}")


def check(
    handled: Mapping[Place, Iterable[Handled]],
    everything: Iterable[Place],
    faults: Sequence[Fault],
    figures: Figures,
) -> None:
    """Judge what the members did, record by record."""
    for place in everything:
        times = sorted(handled.get(place, ()))
        figures.handled += len(times)
        # Nearly all records are like that.
        if len(times) == 1 and times[0].delivery == 1 and times[0].is_accepted:
            continue
        _check_record(place, times, faults, figures)


def _check_record(
    place: Place, times: Sequence[Handled], faults: Sequence[Fault], figures: Figures
) -> None:
    def touched(since: float, until: float, member: str | None = None) -> bool:
        """Return whether a fault explains something; one of a member that of ``member`` alone."""
        return any(
            each.began <= until
            and each.ended + AFTER >= since
            and (member is None or each.member in ("", member))
            for each in faults
        )

    figures.again += len(times) > 1
    figures.cut += sum(not each.whole for each in times)
    accepts = [each.accepted for each in times if each.is_accepted]
    whole = [each for each in times if each.whole]
    if not whole:
        figures.violated("never accepted", (place, times))
    elif not accepts:
        # The broker may have taken an accept whose answer was lost, or whose member was killed
        # before it could write that down. That the group holds the record no more is looked at
        # elsewhere.
        figures.unheard += 1
        if not any(touched(each.began, each.ended + _ANSWER, each.member) for each in whole):
            figures.violated("no word of the broker, without a fault", (place, whole))
    if len(accepts) > 1:
        figures.violated("accepted twice", (place, times))
    if accepts and times[-1].began > min(accepts):
        figures.violated("delivered after it was accepted", (place, times))
    if times and times[0].delivery > 1 and not touched(times[0].began - AFTER, times[0].began):
        figures.violated("delivered again without a fault", (place, times))
    for earlier, later in combinations(times, 2):
        # A member that has had no processor since its connection broke may begin with a record that
        # another member has by now. Its delivery was the first, and the fault was its own.
        first = min(earlier, later, key=lambda each: each.delivery)
        if not touched(earlier.began, later.began, first.member):
            figures.violated("delivered again without a fault", (place, earlier, later))
        # The lock of the first delivery has ended by now, also where its handler began last.
        past = first.ended - later.began
        # A frozen member cannot end its handlers.
        frozen = any(
            each.member == first.member
            and each.began <= first.ended
            and each.ended + 1 >= later.began
            for each in faults
        )
        if past > 0 and not frozen:
            figures.longest_past = max(figures.longest_past, past)
            if past > PAST:
                figures.violated("a handler ran past its lock", (place, earlier, later))


def read(directory: Path, partition: int) -> dict[Place, list[Handled]]:
    """Return what the members wrote of one partition: two million records take much memory."""
    handled: dict[Place, list[Handled]] = {}
    for path in sorted(directory.glob("member-*.bin")):
        data = path.read_bytes()
        member = path.stem
        usable = len(data) - len(data) % LINE.size  # the last line of a killed member
        for where, offset, delivery, began, at, event in LINE.iter_unpack(data[:usable]):
            if where != partition:
                continue
            times = handled.setdefault((where, offset), [])
            if event != Event.ACCEPTED:
                times.append(Handled(began, at, delivery, member, event == Event.DONE))
                continue
            # The line of its end came before.
            for index, each in enumerate(times):
                if each.began == began and each.member == member:
                    times[index] = each._replace(accepted=at)
    return handled
