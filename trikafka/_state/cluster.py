"""The client's knowledge of the cluster, defined in :mod:`trikafka.interfaces.cluster`.

It is defined there since plugins use it too.
"""

from ..interfaces.cluster import ClusterSnapshot, TopicInfo

__all__ = ["ClusterSnapshot", "TopicInfo"]
