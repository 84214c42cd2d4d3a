"""Exports into tables: Parquet files written by trikafka, and one commit per plan.

A library of the table format makes the commit to the table's log. The files are written as in every
export (:mod:`trikafka_export.task`), in threads or by Spark. No reader sees them before the commit.
"""
