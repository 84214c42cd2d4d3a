"""The program that writes ``golden/``: record batches as Kafka's own clients write them.

Run it by hand; it needs Java and the broker plugin.

    python tests/data/make_golden.py

It starts a real broker. The Java client (its console producer) and librdkafka (confluent-kafka)
produce to the broker, once with each codec. ``NAME.bin`` is the broker's segment file, which is
what a Fetch response contains. ``NAME.json`` has what librdkafka's consumer reads from that topic,
the offsets that remain with ``read_committed``, and the broker's index of aborted transactions. So
no byte of either file comes from trikafka.
"""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from trikafka_broker import KafkaCluster

GOLDEN = Path(__file__).parent / "golden"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

ROWS: list[Row] = [
    (b"key", b"value", [("a", b"1"), ("a", b"2")]),
    (None, b"no key", []),
    (b"tombstone", None, [("why", b"deleted")]),
    ("schlüssel".encode(), b"long " * 100, [("ü", None)]),
    *(
        (b"%d" % number, b'{"number": %d, "text": "something that compresses"}' % number, [])
        for number in range(150)
    ),
]


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with KafkaCluster(brokers=1) as cluster:
        for codec in CODECS:
            with_java(cluster, f"java-{codec}", codec)
            with_librdkafka(cluster, f"librdkafka-{codec}", codec)
        with_java(
            cluster, "java-log-append-time", "lz4", {"message.timestamp.type": "LogAppendTime"}
        )
        with_transactions(cluster, "librdkafka-transactions")


def create(cluster: KafkaCluster, topic: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config or {})]).values():
        future.result()


def with_java(
    cluster: KafkaCluster, topic: str, codec: str, config: dict[str, str] | None = None
) -> None:
    """Write by the console producer: headers, key and value on a line; NULL stands for null."""
    create(cluster, topic, config)

    def text(data: bytes | None) -> str:
        return "NULL" if data is None else data.decode()

    lines = []
    for key, value, headers in ROWS:
        names = ",".join(f"{name}:{text(content)}" for name, content in headers) or "NULL"
        lines.append(f"{names}\t{text(key)}\t{text(value)}\n")
    cluster.run_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *(
            "--bootstrap-server",
            cluster.bootstrap_servers,
            "--topic",
            topic,
            "--compression-codec",
            codec,
        ),
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        input="".join(lines),
    )
    save(cluster, topic, "Java's console producer")


def with_librdkafka(cluster: KafkaCluster, topic: str, codec: str) -> None:
    create(cluster, topic)
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "compression.codec": codec,
        "linger.ms": 50,
    }
    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
    for key, value, headers in ROWS:
        producer.produce(topic, key=key, value=value, headers=headers)
    producer.flush()
    save(cluster, topic, f"librdkafka {confluent_kafka.libversion()[0]}")


def with_transactions(cluster: KafkaCluster, topic: str) -> None:
    """Write by two interleaved transactional producers, with plain records in between.

    The first producer aborts, commits, then aborts again. The second commits.
    """
    create(cluster, topic)
    address = {"bootstrap.servers": cluster.bootstrap_servers}
    first, second = (
        confluent_kafka.Producer({**address, "transactional.id": f"{topic}-{n}"}) for n in (1, 2)
    )
    plain = confluent_kafka.Producer(address)

    def send(producer: Any, text: str) -> None:
        producer.produce(topic, value=text.encode())
        producer.flush()

    for producer in (first, second):
        producer.init_transactions()
        producer.begin_transaction()
    send(first, "first, aborted")
    send(second, "second, committed")
    send(plain, "plain")
    send(first, "first, aborted too")
    first.abort_transaction()
    first.begin_transaction()
    send(first, "first, committed")
    second.commit_transaction()
    first.commit_transaction()
    first.begin_transaction()
    send(first, "first, aborted again")
    first.abort_transaction()
    send(plain, "the end")
    save(cluster, topic, f"librdkafka {confluent_kafka.libversion()[0]}")


def save(cluster: KafkaCluster, topic: str, made_by: str) -> None:
    [segment] = cluster.directory.glob(f"**/{topic}-0/{0:020}.log")
    (GOLDEN / f"{topic}.bin").write_bytes(segment.read_bytes())
    index = segment.with_suffix(".txnindex")
    entries = struct.iter_unpack(">hqqqq", index.read_bytes()) if index.exists() else ()
    contents = {
        "made_by": made_by,
        "broker": f"Apache Kafka {cluster.settings.version}",
        "aborted": [[producer_id, first] for _, producer_id, first, _, _ in entries],
        "committed": [row[0] for row in consume(cluster, topic, "read_committed")],
    }
    rows = consume(cluster, topic, "read_uncommitted")
    lines = ",\n".join(json.dumps(row) for row in rows)
    (GOLDEN / f"{topic}.json").write_text(
        f'{json.dumps(contents)[:-1]}, "records": [\n{lines}\n]}}\n'
    )


def consume(cluster: KafkaCluster, topic: str, isolation: str) -> list[Any]:
    """Return all records as [offset, timestamp type, timestamp, key, value, headers].

    Bytes are in base64.
    """

    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "golden",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(
        {**settings, "isolation.level": isolation, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    rows: list[Any] = []
    while (message := consumer.poll(30)) is not None:
        if message.error():
            consumer.close()
            return rows
        kind, timestamp = message.timestamp()
        headers = [[name, text(content)] for name, content in message.headers() or ()]
        rows.append(
            [
                message.offset(),
                kind - 1,
                timestamp,
                text(message.key()),
                text(message.value()),
                headers,
            ]
        )
    raise SystemExit(f"the end of {topic} was not reached")


if __name__ == "__main__":
    main()
