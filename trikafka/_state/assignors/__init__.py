"""The assignors of the classic group protocol, as pure functions over the members' subscriptions.

==================  ==========================================================================
``range``           contiguous ranges of each topic; topics with equal numbers of partitions and
                    equal subscribers are assigned alike
``roundrobin``      one partition after the other, around the members
``sticky``          balanced with as few moves as possible; members revoke everything while
                    they join again
``cooperative-``    the same, and a partition that changes its owner is withheld until the old
``sticky``          owner has revoked it (KIP-429)
==================  ==========================================================================

Their results are those of the Java client's assignors (compared with the classes of Kafka 4.3.1 by
``tests/state/test_assignors_java.py``), so it does not matter which member leads a mixed group.
Where racks are known, ``range`` and both sticky assignors keep partitions near (KIP-881).

The results differ only where Java's are not valid assignments. Java's sticky assignors can assign a
partition to a member that does not subscribe to its topic (or fail) in two cases: a member claims,
in an older generation, a partition of a topic that it no longer subscribes to; or a member
subscribes to nothing. They also keep partitions assigned that no longer exist.
"""

from __future__ import annotations

from ...interfaces import LastAssignment, MemberSubscription, SubscribesWithUserData
from .base import (
    AssignableTopics,
    Assignment,
    Assignor,
    RebalanceProtocol,
    rebalance_protocol,
    transferring_ownership,
)
from .range import RangeAssignor
from .roundrobin import RoundRobinAssignor
from .sticky import CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "AssignableTopics",
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "LastAssignment",
    "MemberSubscription",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "SubscribesWithUserData",
    "rebalance_protocol",
    "transferring_ownership",
]
