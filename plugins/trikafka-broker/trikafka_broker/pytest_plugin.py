"""The pytest fixtures. Loaded by pytest itself, so it imports the rest only when a fixture is used.

The fixtures give synchronous objects, which tests of any kind can use; `Cluster(kafka_cluster)` makes them Trio's. A
broker that cannot be run is an error of the test, never a skip: else a suite would be green for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, Unpack

import pytest

if TYPE_CHECKING:
    from .broker import KafkaBroker
    from .cluster import KafkaCluster
    from .settings import ClusterOptions


class MakeKafkaCluster(Protocol):
    """The type of the fixture `make_kafka_cluster`."""

    def __call__(self, **options: Unpack[ClusterOptions]) -> KafkaCluster: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka", "real Kafka brokers")
    group.addoption("--kafka-version", help="version of Kafka for the broker fixtures (also: ini option kafka_version)")
    parser.addini("kafka_version", "version of Kafka for the broker fixtures", default="")
    parser.addini("kafka_properties", "broker properties for the fixtures, one key=value a line", type="linelist")


def _open(config: pytest.Config, options: ClusterOptions) -> KafkaCluster:
    """A started cluster: the options of the test win over those of the command line and the ini file."""
    from .cluster import KafkaCluster

    version = config.getoption("--kafka-version") or config.getini("kafka_version")
    merged: ClusterOptions = {"progress": lambda line: _say(config, line)}
    if version:
        merged["version"] = str(version)
    merged |= options
    merged["properties"] = {**_ini_properties(config), **options.get("properties", {})}
    cluster = KafkaCluster(**merged)
    cluster.start()
    return cluster


def _ini_properties(config: pytest.Config) -> dict[str, str]:
    pairs = (line.partition("=") for line in config.getini("kafka_properties"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _say(config: pytest.Config, line: str) -> None:
    """Show progress while pytest captures the output: a first download takes a minute."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        print(line, file=sys.stderr)
        return
    with capture.global_and_fixture_disabled():
        print(line, file=sys.stderr, flush=True)


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """One real Kafka broker, shared by all tests of the session: leave it running."""
    with _open(request.config, {}) as cluster:
        yield cluster.brokers[0]


@pytest.fixture(scope="session")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three real Kafka brokers, shared by all tests of the session: leave them running."""
    with _open(request.config, {"brokers": 3}) as cluster:
        yield cluster


@pytest.fixture
def make_kafka_cluster(request: pytest.FixtureRequest) -> Iterator[MakeKafkaCluster]:
    """A function that starts a cluster for this test alone, to kill, freeze or configure; closed at its end."""
    with ExitStack() as clusters:

        def make(**options: Unpack[ClusterOptions]) -> KafkaCluster:
            return clusters.enter_context(_open(request.config, options))

        yield make
