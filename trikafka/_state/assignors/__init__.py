"""Who gets which partition: the assignors of the classic group protocol, as pure functions over the members' subscriptions.

====================  ==============================================================================================
``range``             contiguous ranges of each topic; topics of as many partitions with the same subscribers alike
``roundrobin``        partition by partition, around the members
``sticky``            balanced with as few moves as possible; members give up everything while they join again
``cooperative-sticky``  the same, and what changes hands is withheld until its owner has given it up (KIP-429)
====================  ==============================================================================================

They answer as the Java client's do (compared with the classes of Kafka 4.3.1 by ``tests/state/test_assignors_java.py``), so that it
does not matter who leads a mixed group. Where racks are known, ``range`` and both sticky ones keep partitions near (KIP-881).

Java's answers differ from ours where they are no valid assignment, and only there: Java's sticky assignors can hand a partition to
a member that does not subscribe to its topic (or fail) when a member claims, in an older generation, what it no longer subscribes
to, or when some member subscribes to nothing; and they keep partitions assigned that do not exist any more.
"""

from __future__ import annotations

from .base import (
    AssignableTopics,
    Assignment,
    Assignor,
    LastAssignment,
    MemberSubscription,
    RebalanceProtocol,
    SubscribesWithUserData,
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
