"""Spark for trikafka: the Parquet sink of ``trikafka.export`` and the data source ``format("trikafka")``.

Importing this package imports neither pyspark nor pyarrow.
"""

__all__: list[str] = []
