"""The old place of :mod:`trikafka_export.sink_options`."""

from ._moved import moved

__getattr__ = moved(__name__, "trikafka_export.sink_options")
