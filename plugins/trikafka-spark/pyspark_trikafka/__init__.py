"""The module that Spark finds by its name.

It makes ``format("trikafka")`` known without a call to register the source.
"""

from trikafka_spark.source import TrikafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
