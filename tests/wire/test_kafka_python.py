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


def test_clients_of_kafka_python_are_not_imported() -> None:
    """A consumer and a producer import none of kafka-python's clients."""
    heavy = (
        "admin",
        "cli",
        "consumer",
        "coordinator",
        "net",
        "producer",
        "sasl",
        "protocol.old",
        "protocol.admin",
        "record",
        "codec",
    )
    program = (
        f"import sys; {OPEN}; print([name for name in {heavy!r} if 'kafka.' + name in sys.modules])"
    )
    assert run(program) == "[]"


def test_kafka_python_stays_whole_for_others() -> None:
    program = f"""
import sys, threading
{OPEN}
assert "kafka.consumer" not in sys.modules
from kafka.protocol.metadata import MetadataRequest as before
found = []
def use():
    from kafka import KafkaConsumer
    found.append(KafkaConsumer)
threads = [threading.Thread(target=use) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import kafka, kafka.protocol.metadata
assert set(found) == {{kafka.KafkaConsumer}} and len(found) == 8
assert type(kafka) is type(sys) and kafka is sys.modules["kafka"]
assert kafka.KafkaConsumer.__module__ == "kafka.consumer.group"
assert kafka.protocol.metadata.MetadataRequest is before
assert "KafkaProducer" in dir(kafka) and kafka.__version__
print(hasattr(kafka, "nothing_of_the_kind"))
"""
    assert run(program) == "False"


@pytest.mark.parametrize(
    "ask",
    [
        "kafka.KafkaProducer",
        "'KafkaProducer' in dir(kafka) or 1/0",
        "kafka.__all__",
        "kafka.__version__",
    ],
)
def test_kafka_pythons_body_runs_on_first_use(ask: str) -> None:
    run(
        f"import trikafka._wire, kafka; {ask}; import sys; assert 'kafka.producer' in "
        "sys.modules; kafka.KafkaAdminClient"
    )


def test_missing_attribute_is_an_attribute_error() -> None:
    assert (
        run("import trikafka._wire, kafka; print(getattr(kafka, 'nothing_of_the_kind', 5))") == "5"
    )
    run(
        "import trikafka._wire\ntry:\n  from kafka import nothing_of_the_kind\nexcept "
        "ImportError:\n  pass\nelse:\n  1/0"
    )


def test_imported_kafka_python_stays_unchanged() -> None:
    program = (
        f"import kafka; before = vars(kafka).copy(); {OPEN}; print(type(kafka) is "
        "type(__builtins__), before.keys() - vars(kafka))"
    )
    assert run(program) == "True set()"
