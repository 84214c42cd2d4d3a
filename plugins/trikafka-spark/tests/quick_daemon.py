"""Spark's daemon of Python workers, which makes their imports once and not after each fork.

Spark itself imports nothing before a fork, because a user's package may start threads when it is
imported. A worker of the tests lives for a few small tasks, and its imports would take most of its
processor time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

from pyspark import daemon

#: The modules of tasks that read, write and export.
_OURS = ("source", "query_columns", "range_partition", "range_units", "writing")


def main() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # no thread, which a fork would not have
    importlib.import_module(sys.argv[1])  # such as pyspark.worker
    for name in _OURS:
        with contextlib.suppress(ImportError):  # an older Spark has not all of them
            importlib.import_module(f"trikafka_spark.{name}")
    gc.collect()
    gc.freeze()  # after each task a worker collects its garbage
    daemon.manager()


if __name__ == "__main__":
    main()
