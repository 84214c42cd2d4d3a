"""What the client knows of the cluster: see :mod:`trikafka.interfaces.cluster`, where plugins find it too."""

from ..interfaces.cluster import ClusterSnapshot, TopicInfo

__all__ = ["ClusterSnapshot", "TopicInfo"]
