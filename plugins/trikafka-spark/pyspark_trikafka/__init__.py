"""Found by Spark because of its name: makes ``format("trikafka")`` known without a call to register it."""

from trikafka_spark.source import TrikafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
