"""The old place of :mod:`trikafka_export.sink`."""

from ._moved import moved

__getattr__ = moved(__name__, "trikafka_export.sink", SparkSink="FileSink")
