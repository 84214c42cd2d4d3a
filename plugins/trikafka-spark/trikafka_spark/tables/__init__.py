"""Exports into folders of formats that Spark knows by name: one write of Spark's a plan, from the same reader as all else here.

They have no key to know a write by, so an export is at least once, and says so. Delta and Iceberg: :mod:`trikafka_spark.lake`.
"""
