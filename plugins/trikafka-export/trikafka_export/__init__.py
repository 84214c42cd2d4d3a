"""The exporter of trikafka: Kafka to Parquet files, Iceberg and Delta tables, exactly once.

``trikafka.export`` finds this package by its entry point. To import it does not import pyarrow.
"""
