"""Settings, and the files that are written from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trikafka_broker import Cluster, KafkaCluster
from trikafka_broker.settings import Settings, server_properties, write_properties

PORTS = [{"PLAINTEXT": 1000 + i, "CONTROLLER": 2000 + i, "TLS": 3000 + i} for i in range(5)]


@pytest.mark.parametrize(
    ("brokers", "factor", "minimum"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)]
)
def test_replication_follows_the_broker_count(brokers: int, factor: int, minimum: int) -> None:
    properties = server_properties(Settings(brokers=brokers), 0, PORTS[:brokers], Path("data"))
    assert properties["offsets.topic.replication.factor"] == factor
    assert properties["transaction.state.log.min.isr"] == minimum


def test_listeners_have_names_and_protocols() -> None:
    properties = server_properties(Settings(listeners={"TLS": "SSL"}), 1, PORTS[:2], Path("data"))
    assert (
        properties["listeners"]
        == "PLAINTEXT://127.0.0.1:1001,TLS://127.0.0.1:3001,CONTROLLER://127.0.0.1:2001"
    )
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1001,TLS://127.0.0.1:3001"
    assert (
        properties["listener.security.protocol.map"]
        == "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL"
    )


def test_properties_are_written_for_java(tmp_path: Path) -> None:
    file = tmp_path / "p"
    write_properties(file, {"a": True, "b": " x\\y\nz", "c": "\u00e9\U0001f600"})
    assert file.read_text() == "a=true\nb=\\ x\\\\y\\nz\nc=\\u00e9\\ud83d\\ude00\n"


def test_invalid_values_are_refused() -> None:
    with pytest.raises(ValueError, match="brokers must be 1 or more, not 0"):
        KafkaCluster(brokers=0)
    with pytest.raises(ValueError, match="port must lie between 1 and 65533, not 65534"):
        KafkaCluster(brokers=3, port=65534)
    with pytest.raises(ValueError, match="listener name CONTROLLER is taken"):
        KafkaCluster(listeners={"CONTROLLER": "SSL"})


def test_trio_calls_the_methods_of_a_subclass() -> None:
    stopped = []

    class Own(KafkaCluster):
        def stop(self) -> None:
            stopped.append(self)

    own = Own()
    trio.run(Cluster(own).stop)
    assert stopped == [own]
