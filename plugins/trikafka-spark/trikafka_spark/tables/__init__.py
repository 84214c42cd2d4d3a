"""Exports into tables of Spark's formats: one write of Spark's a plan, from the same reader as all else here.

Where a format has a key to know a write by (Delta's transaction id), what a killed export has written stands once. Of any other
format an export is at least once, and says so.
"""
