"""The client's knowledge of the cluster, for this layer.

The classes are defined in :mod:`trikafka.interfaces.cluster`, because plugins use them, too.
"""

from ..interfaces.cluster import ClusterSnapshot, TopicInfo

__all__ = ["ClusterSnapshot", "TopicInfo"]
