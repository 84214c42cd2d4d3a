"""The states of an assigned partition and what may follow each; the ticket of what is under way. No I/O.

=================  ==================================================  ========================================================
state              meaning                                             may become
=================  ==================================================  ========================================================
AWAITING_CALLBACK  assigned; the listeners have not been told yet      AWAITING_POSITION, VALIDATING, FETCHING, REVOKING, GONE
AWAITING_POSITION  where to go on is being looked up                   VALIDATING, FETCHING, REVOKING, GONE
VALIDATING         the position is checked against the new leader's    AWAITING_POSITION, FETCHING, REVOKING, GONE
                   log (KIP-320); nothing is fetched or delivered
FETCHING           fetched and delivered                               AWAITING_POSITION, VALIDATING, REVOKING, GONE
REVOKING           to be given up; the listeners are told; nothing is  GONE
                   fetched or delivered any more
GONE               not this consumer's any more                        (nothing)
=================  ==================================================  ========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .assignment import AssignedPartition


class PartitionState(Enum):
    """See the module."""

    AWAITING_CALLBACK = "awaiting callback"
    AWAITING_POSITION = "awaiting position"
    VALIDATING = "validating"
    FETCHING = "fetching"
    REVOKING = "revoking"
    GONE = "gone"


_S = PartitionState
SUCCESSORS: Mapping[PartitionState, frozenset[PartitionState]] = {
    _S.AWAITING_CALLBACK: frozenset({_S.AWAITING_POSITION, _S.VALIDATING, _S.FETCHING, _S.REVOKING, _S.GONE}),
    _S.AWAITING_POSITION: frozenset({_S.VALIDATING, _S.FETCHING, _S.REVOKING, _S.GONE}),
    _S.VALIDATING: frozenset({_S.AWAITING_POSITION, _S.FETCHING, _S.REVOKING, _S.GONE}),
    _S.FETCHING: frozenset({_S.AWAITING_POSITION, _S.VALIDATING, _S.REVOKING, _S.GONE}),
    _S.REVOKING: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}
#: Those between which the position decides.
LOCATING = (_S.AWAITING_POSITION, _S.VALIDATING, _S.FETCHING)


class Ticket(NamedTuple):
    """What a fetch or look-up of one partition began with."""

    partition: AssignedPartition
    number: int
    offset: int
