"""The old place of :mod:`trikafka_export.columns`."""

from ._moved import moved

__getattr__ = moved(__name__, "trikafka_export.columns")
