"""Who is woken by a change of the consumer's state. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .assignment import AssignedPartition


def _nobody(_: AssignedPartition | None = None) -> None:
    """Nobody waits."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Whom a change concerns. Each is called in the step of the change, and must only wake tasks."""

    #: There may be something to deliver: records, an error, a known position, a posted rebalance. Of one partition, or (None) any.
    deliver: Callable[[AssignedPartition | None], None] = _nobody
    fetch: Callable[[], None] = _nobody  #: something may have become fetchable, or there is room again
    locate: Callable[[], None] = _nobody  #: a partition needs a position
    commit: Callable[[], None] = _nobody  #: more has been processed, or nothing is in hand any more
    assigned: Callable[[], None] = _nobody  #: partitions came or went
    overtaken: Callable[[AssignedPartition], None] = _nobody  #: what was fetched of this partition is worth nothing any more
