"""The old place of :mod:`trikafka_export.reading`."""

from ._moved import moved

__getattr__ = moved(__name__, "trikafka_export.reading")
