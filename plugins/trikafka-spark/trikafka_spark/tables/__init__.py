"""Exports into folders of formats that Spark knows by name: one write by Spark per plan.

The rows come from the same reader as in all exports. Such a format has no key to identify a write
by, so an export is at least once, and its result says so. Delta and Iceberg are in
:mod:`trikafka_export.lake`.
"""
