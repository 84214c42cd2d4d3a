"""The pytest fixtures.

pytest itself loads this module, so it imports the rest only when a fixture is used. The fixtures
return synchronous objects, which any test can use; `Cluster(kafka_cluster)` wraps them for Trio. If
a broker cannot run, the test is an error and never skipped: otherwise a suite could pass without
testing anything.

With pytest-xdist each worker process has a session of its own, and therefore brokers of its own.
With the ini option `kafka_shared_by_workers` all workers share the broker of `kafka_broker`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import pytest

if TYPE_CHECKING:
    from .broker import KafkaBroker
    from .cluster import KafkaCluster
    from .settings import ClusterOptions
    from .workers import Lender


#: Properties of shared brokers, unless the ini file has others.
_PATIENT = {"broker.session.timeout.ms": "18000"}
#: JVM options of the broker that all workers of pytest-xdist share: it holds all their records.
_LARGE = ("-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: The broker's owner, in the process that starts the workers.
_LENDER: pytest.StashKey[Lender] = pytest.StashKey()


class MakeKafkaCluster(Protocol):
    """The type of the fixture `make_kafka_cluster`."""

    def __call__(self, **options: Unpack[ClusterOptions]) -> KafkaCluster: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka", "real Kafka brokers")
    group.addoption(
        "--kafka-version",
        help="version of Kafka for the broker fixtures (also: ini option kafka_version)",
    )
    parser.addini("kafka_version", "version of Kafka for the broker fixtures", default="")
    parser.addini(
        "kafka_properties",
        "broker properties for the fixtures, one key=value a line",
        type="linelist",
    )
    parser.addini(
        "kafka_shared_by_workers",
        "whether all workers of pytest-xdist share one broker (kafka_broker)",
        type="bool",
        default=False,
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a new worker of pytest-xdist the address of the shared broker."""
    config: pytest.Config = node.config
    if not config.getini("kafka_shared_by_workers"):
        return
    if _LENDER not in config.stash:
        from .workers import Lender

        config.stash[_LENDER] = Lender(lambda: _open_shared(config, {"jvm_options": _LARGE}))
    node.workerinput["kafka_lender"] = config.stash[_LENDER].address


def pytest_unconfigure(config: pytest.Config) -> None:
    if _LENDER in config.stash:
        config.stash[_LENDER].close()


def _open(config: pytest.Config, options: ClusterOptions) -> KafkaCluster:
    """Return a started cluster.

    Options of the test override those of the command line and the ini file.
    """
    from .cluster import KafkaCluster

    version = config.getoption("--kafka-version") or config.getini("kafka_version")
    merged: ClusterOptions = {
        "progress": lambda line: _say(config, line),
    }
    if version:
        merged["version"] = str(version)
    merged |= options
    merged["properties"] = {**_ini_properties(config), **options.get("properties", {})}
    cluster = KafkaCluster(**merged)
    cluster.start()
    return cluster


def _open_shared(config: pytest.Config, options: ClusterOptions) -> KafkaCluster:
    """Return a started cluster whose brokers keep their sessions when they stand still.

    No test kills a shared broker, so no session has to end soon. With a short one, a broker that
    stands still for three seconds on a busy machine would lead no partition for a moment, and
    refuse to create a topic.
    """
    return _open(config, {**options, "properties": {**_PATIENT, **_ini_properties(config)}})


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
def kafka_broker_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """The cluster of `kafka_broker`, which runs Kafka's tools: leave it running."""
    lender = getattr(request.config, "workerinput", {}).get("kafka_lender")
    if lender is None:
        with _open_shared(request.config, {}) as cluster:
            yield cluster
        return
    from .workers import borrow

    yield borrow(*lender)


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_cluster: KafkaCluster) -> KafkaBroker:
    """One real Kafka broker, shared by all tests of the session: leave it running.

    With the ini option `kafka_shared_by_workers` all workers of pytest-xdist share it.
    """
    return kafka_broker_cluster.brokers[0]


@pytest.fixture(scope="session")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three real Kafka brokers, shared by all tests of the session: leave them running."""
    with _open_shared(request.config, {"brokers": 3}) as cluster:
        yield cluster


@pytest.fixture
def make_kafka_cluster(request: pytest.FixtureRequest) -> Iterator[MakeKafkaCluster]:
    """Return a function that starts a cluster for this test alone, closed at its end.

    The test may kill, freeze and configure its brokers.
    """
    with ExitStack() as clusters:

        def make(**options: Unpack[ClusterOptions]) -> KafkaCluster:
            return clusters.enter_context(_open(request.config, options))

        yield make
