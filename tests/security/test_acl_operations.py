"""The operations that ``trikafka acls set`` takes for each type of resource, compared with Kafka's.

Kafka's are those of ``AclEntry.supportedOperations``, which brokers check.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import get_args

from trikafka_broker import fetch_jars
from trikafka_broker.java import find_java

from trikafka._api.admin.acls import AclOperation, AclResourceType
from trikafka.cli.acls import _CHECKED, _OPERATIONS


def test_operations_are_those_of_kafka() -> None:
    program = Path(__file__).with_name("AclOperations.java")
    jars = f"{fetch_jars()}/*"
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", jars, str(program)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kafkas = {line.split()[0]: set(line.split()[1:]) for line in said.splitlines()}
    ours = {
        kind.upper(): {each.upper().replace("-", "_") for each in operations}
        for kind, (_, operations) in _CHECKED.items()
    }
    assert ours == kafkas


def test_each_operation_is_of_some_resource() -> None:
    assert set(_CHECKED) == set(get_args(AclResourceType))
    assert {each.replace("-", "_") for each in _OPERATIONS} == set(get_args(AclOperation))
    assert {"all", *(each for _, own in _CHECKED.values() for each in own)} == set(_OPERATIONS)
