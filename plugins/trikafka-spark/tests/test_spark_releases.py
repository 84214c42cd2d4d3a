"""Errors about features that an older Spark lacks, and about other missing modules."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pyspark
import pytest
from trikafka_spark.releases import STREAM_READS, needed_by

from trikafka import ConfigurationError

#: The modules that an export imports in workers and driver, and the module that Spark 3.5 lacks.
PROGRAM = """
import sys
sys.modules["pyspark.sql.datasource"] = None
import trikafka_spark.spark_job, trikafka_export.local, trikafka_export.sink, trikafka_export.task, trikafka_spark.trio_bridge
from trikafka import ConfigurationError
try:
    import trikafka_spark.source
except ConfigurationError as error:
    print(error)
"""


def test_missing_class_names_the_needed_release() -> None:
    says = (
        r"reading a stream of 'trikafka' needs Spark 4\.2 or newer, and this is Spark "
        rf"{pyspark.__version__}"
    )
    with pytest.raises(ConfigurationError, match=says), needed_by(STREAM_READS):
        importlib.import_module("pyspark.sql.of_a_later_release")


def test_other_missing_package_is_not_explained() -> None:
    with pytest.raises(ImportError, match="no_such_package"), needed_by(STREAM_READS):
        importlib.import_module("no_such_package")


def test_exports_need_no_data_source() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, env=os.environ
    )
    assert done.stdout.startswith("the data source 'trikafka' needs Spark 4.0 or newer"), (
        done.stderr
    )
