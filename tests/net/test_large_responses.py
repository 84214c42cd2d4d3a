"""Large responses are bounded and decoded in a thread; many lost brokers leave no task."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
import trio
from netting import connected, metadata_request
from trio.testing import MockClock as Clock

import trikafka
from trikafka._managers.cluster.metadata_responses import read_metadata
from trikafka._net.decoding import busy
from trikafka._wire.fetch import read_fetch_response
from trikafka.errors import DamagedResponseError
from trikafka.testing import ScriptedCluster, respond

PARTITIONS = 150_000


class Steps(trio.abc.Instrument):
    """The longest step of a task, in seconds of the loop's thread.

    Wall-clock time would depend on other processes.
    """

    longest = 0.0
    _began = float("inf")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


def metadata_of(partitions: int, correlation_id: int) -> bytes:
    """Return a Metadata response (version 5) with one broker and one topic of ``count`` partitions."""
    broker = struct.pack(">iih8sih", 1, 0, 8, b"broker-0", 9092, -1)
    topic = struct.pack(">ihh1sbi", 1, 0, 1, b"t", 0, partitions)
    parts = b"".join(
        struct.pack(">hiiiiiii", 0, number, 0, 1, 0, 1, 0, 0) for number in range(partitions)
    )
    frame = (
        struct.pack(">ii", correlation_id, 0) + broker + struct.pack(">hi", -1, 0) + topic + parts
    )
    return struct.pack(">i", len(frame)) + frame


async def test_large_response_is_decoded_in_a_thread() -> None:
    """A step of seconds would let no heartbeat be sent."""
    async with connected() as line:
        asked = line.ask(
            type(metadata_request())(topics=None, allow_auto_topic_creation=False, max_version=5)
        )
        request = await line.peer.request()
        frame = metadata_of(PARTITIONS, request.header.correlation_id)
        steps, began = Steps(), time.process_time()
        trio.lowlevel.add_instrument(steps)
        try:
            await line.peer.stream.send_all(frame)
            with trio.fail_after(240):
                response = await asked.outcome()
                snapshot = await read_metadata(response)
        finally:
            trio.lowlevel.remove_instrument(steps)
    assert len(snapshot.topics["t"].partitions) == PARTITIONS
    assert steps.longest < (time.process_time() - began) / 5, (
        "reading it takes some seconds, and is no step of the loop"
    )


async def test_cancelled_caller_of_a_large_one_leaves() -> None:
    """The caller leaves before the thread has decoded the response.

    That takes half a second, in which a busy machine may not run the loop: five tries.
    """
    for _ in range(5):
        async with connected() as line:
            asked = line.ask(
                type(metadata_request())(
                    topics=None, allow_auto_topic_creation=False, max_version=5
                )
            )
            request = await line.peer.request()
            await line.peer.stream.send_all(metadata_of(PARTITIONS, request.header.correlation_id))
            with trio.fail_after(240):
                while not busy():  # noqa: ASYNC110
                    await trio.sleep(0.001)
                asked.scope.cancel()
                await asked.done.wait()
            assert asked.cancelled
            if busy():
                return
    raise AssertionError("it waited for the thread")


@pytest.mark.parametrize("version", [4, 7, 11])
def test_excessive_fetch_response_is_refused(version: int) -> None:
    head = struct.pack(">i", 0) + (struct.pack(">hi", 0, 0) if version >= 7 else b"")
    log_start = struct.pack(">q", 0) if version >= 5 else b""
    preferred = struct.pack(">i", -1) if version >= 11 else b""

    def body(partitions: int, aborted: int) -> memoryview:
        tail = (
            log_start
            + struct.pack(">i", aborted)
            + struct.pack(">qq", 1, 2) * aborted
            + preferred
            + struct.pack(">i", 0)
        )
        parts = b"".join(
            struct.pack(">ihqq", number, 0, 0, 0) + tail for number in range(partitions)
        )
        return memoryview(head + struct.pack(">ih1si", 1, 1, b"t", partitions) + parts)

    assert len(read_fetch_response(body(3, 1), version, asked=3).partitions) == 3
    for partitions, aborted in ((200_000, 0), (1, 1_000_000)):
        response = body(partitions, aborted)
        began = time.thread_time()
        with pytest.raises(DamagedResponseError, match="more than was asked for"):
            read_fetch_response(response, version, asked=3)
        assert time.thread_time() - began < 2


async def test_excessive_metadata_is_refused(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        settings: Any = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(**settings) as producer:

            async def everything(request: Any, default: Any) -> Any:
                response = await default()
                response.topics = list(response.topics) * 50
                return response

            cluster.on("Metadata", everything)
            with pytest.raises(
                trikafka.KafkaTimeoutError, match=r"it names 50 topics, and was asked for 1"
            ):
                await producer.partitions_for("t", timeout=1)


@pytest.mark.parametrize("kind", ["consumer", "producer"])
async def test_lost_brokers_leave_no_task(autojump_clock: Clock, kind: str) -> None:
    """The cluster has another node id at each refresh."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        number = 0

        async def another(request: Any, default: Any) -> Any:
            nonlocal number
            number += 1
            broker = {"node_id": number, "host": "broker-0", "port": 9092, "rack": None}
            part = {
                "error_code": 0,
                "partition_index": 0,
                "leader_id": number,
                "leader_epoch": number,
                "replica_nodes": [number],
                "isr_nodes": [number],
                "offline_replicas": [],
            }
            topic = {"error_code": 0, "name": "t", "is_internal": False, "partitions": [part]}
            return respond(
                request, brokers=[broker], cluster_id="c", controller_id=number, topics=[topic]
            )

        settings: Any = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "metadata_max_age_ms": 1_000,
        }
        counts = []
        if kind == "consumer":
            async with (
                trikafka.open_consumer(**settings) as consumer,
                trio.open_nursery() as nursery,
            ):
                consumer.assign([trikafka.TopicPartition("t", 0)])
                consumer.seek(trikafka.TopicPartition("t", 0), 0)
                cluster.on("Metadata", another)
                nursery.start_soon(consumer.receive)
                for _ in range(3):
                    await trio.sleep(10)
                    counts.append(trio.lowlevel.current_statistics().tasks_living)
                nursery.cancel_scope.cancel()
        else:
            async with trikafka.open_producer(
                **settings, delivery_timeout_ms=3_000, request_timeout_ms=1_000
            ) as producer:
                cluster.on("Metadata", another)
                for _ in range(3):
                    for _ in range(5):
                        await producer.enqueue("t", b"x")
                        await trio.sleep(2)
                    counts.append(trio.lowlevel.current_statistics().tasks_living)
    assert number > 25, number
    assert counts[2] <= counts[0] + 5, counts
