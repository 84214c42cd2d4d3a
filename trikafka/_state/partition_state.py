"""The states of an assigned partition and what may follow each; the ticket of what is under way. No I/O.

=================  ==================================================  ========================================================
state              meaning                                             may become
=================  ==================================================  ========================================================
AWAITING_CALLBACK  assigned; the listeners have not been told yet      AWAITING_POSITION, VALIDATING, FETCHING, and
                                                                       REVOKING, LOST, GONE as of all that are owned
AWAITING_POSITION  where to go on is being looked up                   VALIDATING, FETCHING
VALIDATING         the position is checked against the new leader's    AWAITING_POSITION, FETCHING
                   log (KIP-320); nothing is fetched or delivered
FETCHING           fetched and delivered                               AWAITING_POSITION, VALIDATING
REVOKING           to be given up; the listeners are told; nothing is  LOST, GONE
                   fetched or delivered any more
LOST               others may have it already; the listeners are told  GONE
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
    LOST = "lost"
    GONE = "gone"


_S = PartitionState
SUCCESSORS: Mapping[PartitionState, frozenset[PartitionState]] = {
    _S.AWAITING_CALLBACK: frozenset({_S.AWAITING_POSITION, _S.VALIDATING, _S.FETCHING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.AWAITING_POSITION: frozenset({_S.VALIDATING, _S.FETCHING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.VALIDATING: frozenset({_S.AWAITING_POSITION, _S.FETCHING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.FETCHING: frozenset({_S.AWAITING_POSITION, _S.VALIDATING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.REVOKING: frozenset({_S.LOST, _S.GONE}),
    _S.LOST: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}
#: Those between which the position decides.
LOCATING = (_S.AWAITING_POSITION, _S.VALIDATING, _S.FETCHING)


class Ticket(NamedTuple):
    """What a fetch or look-up of one partition began with."""

    partition: AssignedPartition
    number: int
    offset: int
