"""Exports into tables: Parquet files of our own tasks, and one commit a plan into the table's log, by a library of the format.

The files are written as everywhere (:mod:`trikafka_spark.task`), in threads or by Spark; no reader sees them before the commit.
"""
