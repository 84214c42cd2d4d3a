"""The parts of kafka-python that trikafka imports, each case in its own interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPEN = "from trikafka._api.consumer import consumer; from trikafka._api.producer import producer"


def run(program: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["consumer", "producer", "admin"])
def test_clients_import_under_warnings_as_errors(module: str) -> None:
    assert (
        run(
            f"from trikafka._api.{module} import {module}; from trikafka._wire import extra_messages",
            "-W",
            "error",
        )
        == ""
    )


def test_filters_that_were_reset_do_no_harm() -> None:
    """A test runner resets all filters between the imports of two modules."""
    reset = "import warnings; warnings.resetwarnings(); warnings.simplefilter('error')"
    first = "import trikafka._wire"
    assert (
        run(f"{reset}; {first}; {reset}; from trikafka._wire import extra_messages; {OPEN}") == ""
    )


@pytest.mark.parametrize("first", ["import kafka", OPEN])
def test_kafka_python_stays_unchanged_for_others(first: str) -> None:
    """The modules of kafka-python are those that any program imports."""
    program = f"""
{first}
import importlib.resources, sys, types
from kafka import KafkaConsumer, KafkaProducer
import kafka.protocol.admin, kafka.protocol.schemas.load_json
{OPEN}
assert type(sys.modules["kafka"]) is types.ModuleType
assert kafka.protocol.admin.CreateTopicsRequest is kafka.protocol.admin.topics.CreateTopicsRequest
assert sys.modules["kafka.protocol.schemas.load_json"].importlib is importlib
"""
    run(program)


def test_warnings_of_the_program_remain_errors() -> None:
    """Only the warnings about kafka-python's own use of the deprecated function are ignored."""
    program = f"""
{OPEN}
import warnings
try:
    warnings.warn("read_text is deprecated", DeprecationWarning)
except DeprecationWarning as warning:
    print(warning.args[0][:9])
"""
    assert run(program, "-W", "error") == "read_text"
