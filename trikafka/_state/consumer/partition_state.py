"""The states of an assigned partition and their order. No I/O.

=================  ===============================================  ================================
state              meaning                                          may become
=================  ===============================================  ================================
AWAITING_CALLBACK  assigned; the listeners have not run yet         AWAITING_POSITION, VALIDATING,
                                                                    FETCHING
AWAITING_POSITION  the position is being looked up                  VALIDATING, FETCHING
VALIDATING         the position is checked against the new          AWAITING_POSITION, FETCHING
                   leader's log (KIP-320); nothing is fetched or
                   delivered
FETCHING           fetched and delivered                            AWAITING_POSITION, VALIDATING
REVOKING           being revoked; the listeners run; nothing is     LOST, GONE
                   fetched or delivered any more
LOST               other members may own it already; the listeners  GONE
                   run
GONE               no longer this consumer's                        (nothing)
=================  ===============================================  ================================

The first four states may also become REVOKING, LOST or GONE.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class PartitionState(Enum):
    """The state of an assigned partition; the module's table gives the meanings."""

    AWAITING_CALLBACK = "awaiting callback"
    AWAITING_POSITION = "awaiting position"
    VALIDATING = "validating"
    FETCHING = "fetching"
    REVOKING = "revoking"
    LOST = "lost"
    GONE = "gone"


_S = PartitionState
SUCCESSORS: Mapping[PartitionState, frozenset[PartitionState]] = {
    _S.AWAITING_CALLBACK: frozenset(
        {_S.AWAITING_POSITION, _S.VALIDATING, _S.FETCHING, _S.REVOKING, _S.LOST, _S.GONE}
    ),
    _S.AWAITING_POSITION: frozenset({_S.VALIDATING, _S.FETCHING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.VALIDATING: frozenset({_S.AWAITING_POSITION, _S.FETCHING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.FETCHING: frozenset({_S.AWAITING_POSITION, _S.VALIDATING, _S.REVOKING, _S.LOST, _S.GONE}),
    _S.REVOKING: frozenset({_S.LOST, _S.GONE}),
    _S.LOST: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}
#: The states of a partition whose listeners have run. Its position decides which of them it is in.
LOCATING = (_S.AWAITING_POSITION, _S.VALIDATING, _S.FETCHING)
