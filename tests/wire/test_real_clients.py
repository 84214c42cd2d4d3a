"""Encoded batches that a real broker accepts and that the Java client and librdkafka read."""

import socket
import struct
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import admin as admin_api
from kafka.protocol.producer import ProduceRequest
from wirebatches import NOW, Rec

from trikafka._wire.compression import CODECS
from trikafka._wire.messages import decode_response, encode_request
from trikafka._wire.records import BatchEncoder

WRITTEN = [
    Rec(b"key %d" % number, b"value %d " % number * 3, (("h", b"x"), ("n", None)), NOW + number)
    for number in range(99)
]
VERSION = 9
STARTING = (
    3,
    6,
)  #: Errors right after the topic was created: unknown topic or partition, not its leader.


def produce(address: str, topic: str, batch: bytes) -> int:
    """Send one Produce request on its own socket and return the error code."""
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=batch)
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    outgoing = encode_request(
        ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data]),
        VERSION,
        1,
        "t",
    )
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port))) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(outgoing.frame)
        (size,) = struct.unpack(">i", answers.read(4))
        response = decode_response(outgoing, bytearray(answers.read(size)))
    return int(response.responses[0].partition_responses[0].error_code)


def test_every_codec_is_read_by_real_clients(make_kafka_cluster: Callable[..., Any]) -> None:
    cluster = make_kafka_cluster(brokers=1)
    address, topic = cluster.bootstrap_servers, "encoded"
    admin = admin_api.AdminClient({"bootstrap.servers": address})
    [created] = admin.create_topics([admin_api.NewTopic(topic, 1, 1)]).values()
    created.result()
    for codec in CODECS:
        encoder = BatchEncoder(codec.name)
        for record in WRITTEN:
            encoder.append(record.timestamp, record.key, record.value, record.headers)
        batch = encoder.build(-1, -1, -1)
        tries = 0
        while (code := produce(address, topic, batch)) in STARTING and tries < 500:
            admin.list_topics(topic)
            tries += 1
        # The broker reads each record of the batch before it accepts it.
        assert code == 0, codec.name

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": topic, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    total = len(CODECS) * len(WRITTEN)
    read = [consumer.poll(30) for _ in range(total)]
    consumer.close()
    assert [
        Rec(m.key(), m.value(), tuple(m.headers()), m.timestamp()[1]) for m in read
    ] == WRITTEN * len(CODECS)

    told = cluster.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(
            "--bootstrap-server",
            address,
            "--topic",
            topic,
            "--from-beginning",
            "--max-messages",
            str(total),
        ),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.timestamp=true"),
        *("--formatter-property", "print.headers=true"),
    )
    expected = [
        f"CreateTime:{r.timestamp}\th:x,n:null\t{text(r.key)}\t{text(r.value)}" for r in WRITTEN
    ]
    assert told.stdout.splitlines() == expected * len(CODECS)


def text(data: bytes | None) -> str:
    return "null" if data is None else data.decode()
