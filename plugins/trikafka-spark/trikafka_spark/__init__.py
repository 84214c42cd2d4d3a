"""Spark for trikafka: the Parquet sink of exports, the data source, and Spark's calls from Trio.

``trikafka.export`` finds the sink, and Spark the data source ``format("trikafka")``, by themselves.
To import this package imports neither pyspark nor pyarrow.
"""

from .active_session import active, register
from .lag import stream_lag
from .trio_bridge import in_thread, run_query

__all__ = ["active", "in_thread", "register", "run_query", "stream_lag"]
