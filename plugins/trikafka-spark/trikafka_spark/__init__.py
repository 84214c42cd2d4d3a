"""Spark for trikafka: the Parquet sink of ``trikafka.export``, the data source ``format("trikafka")``, and Spark's calls from Trio.

Importing this package imports neither pyspark nor pyarrow.
"""

from .threads import active, in_thread, run_query

__all__ = ["active", "in_thread", "run_query"]
