"""Real Apache Kafka brokers on this machine, without Docker.

This module holds the public names only. :class:`KafkaCluster` is the synchronous class that does
the work. :class:`Cluster` is the same for Trio.
"""

from .broker import KafkaBroker
from .cluster import KafkaCluster
from .errors import BrokerError, BrokerStartError, DownloadError, JavaError
from .jars import fetch_jars
from .proxy import Fault, FaultProxy, Rule
from .settings import DEFAULT_JVM_OPTIONS, DEFAULT_VERSION, ClusterOptions
from .trio_api import Broker, Cluster

__all__ = [
    "DEFAULT_JVM_OPTIONS",
    "DEFAULT_VERSION",
    "Broker",
    "BrokerError",
    "BrokerStartError",
    "Cluster",
    "ClusterOptions",
    "DownloadError",
    "Fault",
    "FaultProxy",
    "JavaError",
    "KafkaBroker",
    "KafkaCluster",
    "Rule",
    "fetch_jars",
]
