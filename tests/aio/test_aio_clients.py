"""The clients of asyncio on a scripted cluster: sends, records, batches, transactions, lookups."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MemberDescriptorType
from typing import Any

import numpy
import pytest
import trio
from hosting import (
    LOOPS,
    T0,
    T1,
    Worked,
    cluster_of,
    consumer_of,
    member_of,
    nothing_left,
    producer_of,
    run,
    until,
)

import trikafka
import trikafka.aio
from trikafka.aio import guest as guests
from trikafka.aio.crossing import cross
from trikafka.aio.opening import _bridged

where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


@pytest.fixture(params=LOOPS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_records_are_sent_and_received(kind: str) -> None:
    async def main() -> None:
        async with cluster_of(2) as cluster, producer_of(cluster) as producer:
            metadata = await producer.send("t", b"one", key=b"k", partition=1)
            assert (metadata.partition, metadata.offset) == (1, 0)
            ack = await producer.enqueue("t", b"two", partition=1)
            assert (await ack.wait()).offset == 1
            assert ack.done
            assert (await ack.wait()).offset == 1
            assert ack.partition == T1
            assert producer.send_nowait("t", b"three", partition=1).done is False
            await producer.flush()
            async with member_of(cluster) as consumer:
                values = []
                async for record in consumer:
                    values.append(record.value)
                    if len(values) == 3:
                        break
                assert values == [b"one", b"two", b"three"]
                assert consumer.assignment() == {T0, T1}
                await consumer.commit()
                assert (await consumer.committed([T1]))[T1] == trikafka.OffsetAndMetadata(3, 0)

    with nothing_left(kind):
        run(main, kind)


class Ticks(trio.abc.Instrument):
    """A count of the guest's ticks."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.mark.parametrize("cancelled", [(), (50,), (0,), (0, 1, 50), range(99)])
def test_first_sends_keep_their_order(cancelled: Sequence[int]) -> None:
    """The topic's metadata is missing: all wait for it, and Trio runs its tasks in any order."""

    async def main() -> None:
        async with cluster_of() as cluster, producer_of(cluster) as producer:
            sends = [
                asyncio.create_task(producer.send("t", b"%d" % number, partition=0))
                for number in range(100)
            ]
            await asyncio.sleep(0)
            with pytest.raises(trio.WouldBlock):
                producer.send_nowait("t", b"", partition=0)
            for number in cancelled:
                sends[number].cancel()
            results = await asyncio.gather(*sends, return_exceptions=True)
            places = [one.offset for one in results if isinstance(one, trikafka.RecordMetadata)]
            assert places == [*range(100 - len(cancelled))]

    run(main)


def test_first_sends_cancelled_in_turn_keep_order() -> None:
    """Each of the first ones is cancelled in another turn of the loop, as the first or not yet."""

    async def main() -> None:
        async with cluster_of() as cluster, producer_of(cluster) as producer:
            cluster.delay("Metadata", 0.2)
            sends = [
                asyncio.create_task(producer.send("t", b"%d" % number, partition=0))
                for number in range(50)
            ]
            for number in range(20):
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                sends[number].cancel()
            results = await asyncio.gather(*sends, return_exceptions=True)
            places = [one.offset for one in results if isinstance(one, trikafka.RecordMetadata)]
            assert places == [*range(30)]

    run(main)


def test_first_sends_time_out_in_their_own_time() -> None:
    """Those behind the first one wait no longer than max_block_ms, either."""

    async def main() -> None:
        async with (
            cluster_of() as cluster,
            producer_of(cluster, max_block_ms=2_000, request_timeout_ms=1_000) as producer,
        ):
            cluster.delay("Metadata", 600)
            took, worked = [], []

            async def send(after: float) -> None:
                await asyncio.sleep(after)
                begun, working = time.monotonic(), Worked()
                with pytest.raises(trikafka.KafkaTimeoutError):
                    await producer.send("t", b"")
                took.append(time.monotonic() - begun)
                worked.append(working.stop())

            await asyncio.gather(*(send(after) for after in (0, 0, 1)))
            assert min(took) > 1.8
            assert max(worked) < 3.0, worked  # behind the first one, the second would take 4 s

    run(main)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a record wait long for its partition: a busy machine may stand still for three seconds."""
    monkeypatch.setattr(trikafka.UnknownTopicOrPartitionError, "patience", 300.0)


@pytest.mark.usefixtures("patient")
def test_missing_partition_holds_no_other_send() -> None:
    """The first record of the topic waits for its partition, and it alone."""

    async def main() -> None:
        async with cluster_of(2) as cluster, producer_of(cluster) as producer:
            first = asyncio.create_task(producer.send("t", b"", partition=99))
            sends = [
                asyncio.create_task(producer.send("t", b"%d" % number, partition=number % 2))
                for number in range(100)
            ]
            results = await asyncio.gather(*sends)
            assert [one.offset for one in results] == [number // 2 for number in range(100)]
            assert not first.done()
            first.cancel()
            await asyncio.wait([first])

    run(main)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("cancelled", [(), (0,), (0, 1, 30)])
def test_added_partition_keeps_the_order(known: bool, cancelled: Sequence[int]) -> None:
    """All sends wait for the partition, and Trio runs its tasks in any order."""

    async def main() -> None:
        async with cluster_of(2) as cluster, producer_of(cluster) as producer:
            if known:
                await producer.send("t", b"", partition=0)
            sends = [
                asyncio.create_task(producer.send("t", b"%d" % number, partition=2))
                for number in range(50)
            ]
            await asyncio.sleep(0)
            for number in cancelled:
                sends[number].cancel()
            # Records for partitions that exist wait for nothing.
            await asyncio.wait_for(producer.send("t", b"", partition=1), 240)
            cluster.add_partitions("t", 3)
            late = asyncio.create_task(producer.send("t", b"late", partition=2))
            results = await asyncio.gather(*sends, late, return_exceptions=True)
            places = [one.offset for one in results if isinstance(one, trikafka.RecordMetadata)]
            assert places == [*range(51 - len(cancelled))]

    run(main)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("partitions", [2, 3])
def test_sends_of_each_turn_keep_the_order(partitions: int) -> None:
    """The topic becomes known in some turn of the loop, and the partition in a later one."""

    async def main() -> None:
        async with cluster_of(partitions) as cluster, producer_of(cluster) as producer:
            sends: list[asyncio.Task[trikafka.RecordMetadata]] = []
            while len(sends) < 300 or not sends[0].done():
                sends.append(asyncio.create_task(producer.send("t", b"", partition=2)))
                await asyncio.sleep(0)
                if len(sends) == 250:
                    cluster.add_partitions("t", 3)
            places = [one.offset for one in await asyncio.gather(*sends)]
            assert places == [*range(len(sends))]

    run(main)


def test_sends_to_a_missing_partition_fail_together() -> None:
    async def main() -> None:
        async with cluster_of(2) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"", partition=0)
            sends = [producer.send("t", b"", partition=9) for _ in range(20)]
            begun = time.monotonic()
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(error) for error in errors} == {trikafka.UnknownTopicOrPartitionError}
            assert time.monotonic() - begun < 40  # one after the other they would take 60 s
            assert "no partition 9" in str(errors[0])

    run(main)


def test_sends_to_a_missing_topic_fail_together() -> None:
    async def main() -> None:
        async with cluster_of() as cluster, producer_of(cluster) as producer:
            sends = [producer.send("missing", b"") for _ in range(20)]
            begun = time.monotonic()
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(error) for error in errors} == {trikafka.UnknownTopicOrPartitionError}
            assert time.monotonic() - begun < 40

    run(main)


def test_errors_have_no_context_of_trikafka() -> None:
    """Once, each traceback began with Trio's WouldBlock, which says nothing to the program."""

    async def main() -> None:
        async with cluster_of() as cluster, producer_of(cluster) as producer:
            for call in (producer.send, producer.enqueue):
                with pytest.raises(trikafka.UnknownTopicOrPartitionError) as caught:
                    await call("missing", b"")
                assert caught.value.__context__ is None
            async with consumer_of(cluster) as consumer:
                consumer.assign([trikafka.TopicPartition("missing", 0)])
                with pytest.raises(trikafka.UnknownTopicOrPartitionError) as caught:
                    await anext(consumer)
                assert caught.value.__context__ is None

    run(main)


def test_sends_of_one_turn_share_a_request(kind: str) -> None:
    """A thousand tasks that send at once cost a few ticks and requests, not a thousand."""

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            ticks = Ticks()

            async def watch() -> None:
                trio.lowlevel.add_instrument(ticks)

            await cross(producer._guest, watch)
            await producer.send("t", b"first")
            before, ticks.count = len(cluster.requests("Produce")), 0
            found = await asyncio.gather(*(producer.send("t", b"x") for _ in range(1_000)))
            assert [one.offset for one in found] == list(range(1, 1_001))
            # One by one, they take a request and eleven ticks each.
            assert len(cluster.requests("Produce")) - before <= 50
            assert ticks.count <= 500

    run(main, kind)


def test_sends_of_a_split_batch_return_offsets() -> None:
    """The first wait of each task ends by the split, the second by the outcome."""

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster, linger_ms=50) as producer:
            await producer.send("t", b"first")
            cluster.fail("Produce", trikafka.ErrorCode.MESSAGE_TOO_LARGE, 1)
            found = await asyncio.gather(*(producer.send("t", b"x") for _ in range(10)))
            assert producer.statistics().batches_split == 1
            assert [one.offset for one in found] == list(range(1, 11))

    run(main)


def test_failed_sends_raise_trikafkas_errors() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"first")
            cluster.fail("Produce", trikafka.ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            found = await asyncio.gather(
                *(producer.send("t", b"x") for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(one, trikafka.AuthorizationError) for one in found)
            with pytest.raises(TypeError):
                await producer.send("t", 3)  # type: ignore[arg-type]

    run(main)


def test_send_waits_for_room_in_the_buffer() -> None:
    async def main() -> None:
        async with (
            cluster_of(1) as cluster,
            producer_of(cluster, buffer_memory=40_000, batch_size=10_000) as producer,
        ):
            found = await asyncio.gather(*(producer.send("t", bytes(9_000)) for _ in range(20)))
            assert sorted(one.offset or 0 for one in found) == list(range(20))
            for _ in range(4):
                producer.send_nowait("t", bytes(9_000))
            with pytest.raises(trio.WouldBlock):
                producer.send_nowait("t", bytes(9_000))

    run(main)


def test_batches_end_at_the_given_offsets() -> None:
    async def main() -> None:
        async with cluster_of(2, records=50) as cluster, consumer_of(cluster) as consumer:
            consumer.assign([T0, T1])
            ends = await consumer.end_offsets([T0, T1])
            seen = [record.offset async for batch in consumer.batches(ends) for record in batch]
            assert sorted(seen) == sorted([*range(50), *range(50)])
            consumer.seek_to_beginning()
            rows = 0
            async for table in consumer.arrow_batches({T0: 20, T1: 30}):
                rows += table.num_rows
            assert rows == 50
            consumer.seek(T0, 49)
            consumer.pause([T1])
            assert (await consumer.receive()).offset == 49
            assert not await consumer.receive_batch(timeout=0.01)

    run(main)


def test_busy_threads_delay_no_table() -> None:
    """pyarrow is imported in a thread, also while the program holds all of asyncio's executor."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            loop.set_default_executor(executor)
            released = threading.Event()
            hangs = loop.run_in_executor(None, released.wait)
            try:
                async with cluster_of(1, records=5) as cluster, consumer_of(cluster) as consumer:
                    consumer.assign([T0])
                    async with asyncio.timeout(240):
                        assert (await anext(consumer.arrow_batches())).num_rows == 5
            finally:
                released.set()
                await hangs

    run(main)


def test_commit_in_a_batch_covers_what_was_seen() -> None:
    """Records are delivered one by one: a commit after three of ten is a commit of three."""

    async def main() -> None:
        async with (
            cluster_of(1, records=10) as cluster,
            member_of(cluster, enable_auto_commit=False) as consumer,
        ):
            async for record in consumer:
                if record.offset == 2:
                    break
            await consumer.commit()
            assert cluster.committed("g", T0).offset == 3

    run(main)


def test_iteration_lets_other_tasks_run() -> None:
    async def main() -> None:
        async with cluster_of(1, records=20_000) as cluster, consumer_of(cluster) as consumer:
            consumer.assign([T0])
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            async for record in consumer:
                if record.offset == 19_999:
                    break
            task.cancel()
            assert turns > 5

    run(main)


def test_transaction_commits_and_aborts() -> None:
    async def main() -> None:
        async with (
            cluster_of(1, records=3) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
            member_of(cluster, enable_auto_commit=False) as consumer,
        ):
            await consumer.receive()
            async with producer.transaction() as txn:
                await producer.send("t", b"kept")
                await txn.send_offsets(consumer)
            assert cluster.committed("g", T0).offset == 1

            async def aborted() -> None:
                async with producer.transaction():
                    await producer.send("t", b"dropped")
                    raise KeyError

            with pytest.raises(KeyError):
                await aborted()
            async with consumer_of(cluster, isolation_level="read_committed") as reader:
                reader.assign([T0])
                ends = await reader.end_offsets([T0])
                values = [record.value async for batch in reader.batches(ends) for record in batch]
            assert values == [b"0", b"1", b"2", b"kept"]

    with nothing_left():
        run(main)


def test_cancelled_transaction_is_aborted() -> None:
    async def main() -> None:
        async with (
            cluster_of(1) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
        ):

            async def forever() -> None:
                async with producer.transaction():
                    await producer.send("t", b"dropped")
                    await asyncio.sleep(3600)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(forever(), 0.1)
            async with producer.transaction():
                await producer.send("t", b"kept")

    run(main)


def test_admin_makes_topics() -> None:
    async def main() -> None:
        async with (
            cluster_of(1) as cluster,
            trikafka.aio.open_admin(**cluster.settings) as admin,
        ):
            await admin.create_topics({"new": trikafka.NewTopic(2, 1)})
            assert set(await admin.list_topics()) == {"t", "new"}
            with pytest.raises(trikafka.TopicAlreadyExistsError):
                await admin.create_topics({"new": trikafka.NewTopic(2, 1)})

    with nothing_left():
        run(main)


class Listener(trikafka.RebalanceListener):
    """A listener that notes where its methods run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.consumer: trikafka.aio.Consumer | None = None
        self.errors: list[BaseException] = []

    async def on_partitions_assigned(self, partitions: Sequence[trikafka.TopicPartition]) -> None:
        await asyncio.sleep(0)
        assert asyncio.current_task() is not None
        self.calls.append(("assigned", len(partitions), where.get()))
        if self.consumer is not None:
            self.consumer.seek(partitions[0], 5)
            try:
                await self.consumer.aclose()
            except trikafka.IllegalStateError as error:
                self.errors.append(error)

    async def on_partitions_revoked(self, partitions: Sequence[trikafka.TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", len(partitions), where.get()))


def test_listeners_run_in_the_callers_context() -> None:
    async def main() -> None:
        listener = Listener()
        where.set("at the opening")
        async with (
            cluster_of(1, records=10) as cluster,
            consumer_of(cluster, group_id="g") as consumer,
        ):
            listener.consumer = consumer
            consumer.subscribe(["t"], listener)
            where.set("in the receive")
            assert (await consumer.receive()).offset == 5
            listener.consumer = None
            where.set("in unsubscribe")
            await consumer.unsubscribe()
        assert listener.calls == [
            ("assigned", 1, "in the receive"),
            ("revoked", 1, "in unsubscribe"),
        ]
        # close() inside a listener would wait for the listener
        (error,) = listener.errors
        assert "rebalance listener" in str(error)

    with nothing_left():
        run(main)


def test_wrong_listeners_are_refused() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, consumer_of(cluster, group_id="g") as consumer:
            with pytest.raises(trikafka.ConfigurationError, match="a RebalanceListener"):
                consumer.subscribe(["t"], object())  # type: ignore[arg-type]
            consumer.subscribe(iter(["t"]), Listener())
            assert consumer.subscription() == {"t"}
            consumer.subscribe(numpy.array(["t", "u"]), Listener())
            assert consumer.subscription() == {"t", "u"}

    run(main)


# --- the guest --------------------------------------------------------------------------------


def test_threads_serve_where_epoll_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIKAFKA_AIO_THREAD", "1")
    made: list[object] = []

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            made.append(type(guests._here.guest._driver))
            found = await asyncio.gather(*(producer.send("t", b"x") for _ in range(100)))
            assert len({one.offset for one in found}) == 100
            async with member_of(cluster) as consumer:
                for _ in range(100):
                    await consumer.receive()

    run(main)
    assert made == [guests.ThreadDriver]


def test_epoll_drives_this_version_of_trio(kind: str) -> None:
    """A new Trio without the three attributes would be slower, and no other test would show it."""

    async def main() -> None:
        async with cluster_of(1):
            assert isinstance(guests._here.guest._driver, guests.PollDriver)

    run(main, kind)


def test_time_that_is_over_rings_at_once(kind: str) -> None:
    """uvloop calls at once for such a time, and its handle does not know the time."""

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            driver = producer._guest._driver
            driver._arm(0.0)
            driver._arm(0.0)
            now = asyncio.get_running_loop().time()
            await until(lambda: driver._timer is None or driver._timer_due > now)
            await producer.send("t", b"x")

    run(main, kind)


def test_readable_socket_needs_one_tick(kind: str) -> None:
    """A tick deals with the events of the look before it, so the driver looks before the tick."""

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            guest = producer._guest
            ours, theirs = socket.socketpair()
            waits, read = asyncio.Event(), asyncio.Event()
            ticks = Ticks()

            async def wait() -> None:
                trio.lowlevel.add_instrument(ticks)
                guest.call_host(waits.set)
                await trio.lowlevel.wait_readable(ours)
                guest.call_host(read.set)

            with ours, theirs:
                guest.nursery.start_soon(wait)
                guest.wake()
                await waits.wait()
                await until(lambda: guest._driver._idle_events is not None)
                ticks.count = 0
                theirs.send(b"x")
                await read.wait()
                assert ticks.count == 1

    run(main, kind)


DELIVERY = {
    **dict.fromkeys(("acquired", "lock_lost", "cut_off", "release_overdue"), "the client calls it"),
    **dict.fromkeys(("open_elsewhere", "close_elsewhere"), "this face calls it"),
}
#: The public names of Trio's clients that asyncio's lack, with the reason.
ABSENT = {
    trikafka.Consumer: {
        "receive_nowait": "receive() takes what is buffered without a wait",
        "receive_batch_nowait": "so does receive_batch()",
        "wait_receivable": "it is the wait of the two above",
        "handling": "it marks a task of Trio; here asyncio's task is known to each call",
        "offsets_for_transaction": "send_offsets() of a transaction calls it",
        "check_fits_transactions": "process() calls it",
        "in_transaction": "process() calls it",
        "wait_closed": "run_tasks() uses it",
    },
    trikafka.Producer: {"enqueue_arrow": "send_arrow() in tasks of one's own does the same"},
    trikafka.Admin: {},
    trikafka.Transaction: {"lend": "process() calls it"},
    trikafka.Ack: {
        "result": "wait() returns at once where the outcome is known",
        "when_done": "its callback runs in Trio's loop; a task that waits does the same",
    },
    trikafka.PartitionStream: {
        "receive_nowait": "receive() takes what is buffered without a wait",
        "receive_batch_nowait": "so does receive_batch()",
        "wait_receivable": "it is the wait of the two above",
        "backing_off": "run_tasks() uses it",
        "awaiting_predecessor": "run_tasks() uses it",
        "handling_beside": "run_tasks() uses it",
        "processed_by": "run_tasks() uses it",
    },
    trikafka.ShareConsumer: {},
    trikafka.Delivery: DELIVERY,
    trikafka.ShareBatch: DELIVERY,
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_each_client_of_trio_has_one_of_asyncio() -> None:
    """A class that both faces have is compared below; the others serve both as they are."""
    kinds = {getattr(trikafka, name) for name in trikafka.aio.__all__ if hasattr(trikafka, name)}
    assert {kind for kind in kinds if isinstance(kind, type)} == ABSENT.keys()


@pytest.mark.parametrize("theirs", ABSENT, ids=lambda kind: kind.__name__)
def test_signatures_are_those_of_trios_clients(theirs: type) -> None:
    ours = getattr(trikafka.aio, theirs.__name__)
    absent = ABSENT[theirs]
    assert all(absent.values())
    names = public(theirs)
    assert names - absent.keys() == public(ours)
    assert absent.keys() <= names
    for name in names - absent.keys():
        if isinstance(getattr(theirs, name), property | MemberDescriptorType):
            assert isinstance(getattr(ours, name), property)
            continue
        wanted = list(inspect.signature(getattr(theirs, name)).parameters)
        assert list(inspect.signature(getattr(ours, name)).parameters) == wanted, name


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin", "share_consumer"])
def test_settings_and_state_are_readable(kind: str) -> None:
    """Also after the end, as on Trio: for logs and probes."""

    async def main() -> None:
        async with cluster_of() as cluster:
            given: dict[str, Any] = {"group_id": "g"} if "consumer" in kind else {}
            async with getattr(trikafka.aio, f"open_{kind}")(
                *(["t"] if kind == "share_consumer" else []),
                **cluster.settings,
                client_id="here",
                **given,
            ) as client:
                assert client.config.client_id == "here"
                assert not client.is_closed
                if kind == "consumer":
                    assert await client.partitions_for("t")
                    assert client.cluster_id == "scripted-cluster"
            assert client.is_closed
            assert client.config.client_id == "here"

    run(main)


def test_both_faces_have_the_same_functions() -> None:
    left_out = {
        # Exports run in threads of their own, and the face does not matter to them.
        *("export", "check_export", "open_exporter", "sink_batches"),
        # These do no I/O, so they serve both faces.
        *("from_properties", "hookimpl", "dead_letter_headers"),
    }
    names = {
        name
        for name in trikafka.__all__
        if name not in left_out and inspect.isfunction(inspect.unwrap(getattr(trikafka, name)))
    }
    assert names == {
        name
        for name in trikafka.aio.__all__
        if inspect.isfunction(inspect.unwrap(getattr(trikafka.aio, name)))
    }


@pytest.mark.parametrize("name", ["run_tasks", "run_queue", "process", "ensure_topics"])
def test_functions_have_trios_arguments(name: str) -> None:
    ours, theirs = (
        inspect.signature(getattr(module, name)).parameters for module in (trikafka.aio, trikafka)
    )
    assert [(one.name, one.kind, one.default) for one in ours.values()] == [
        (one.name, one.kind, one.default) for one in theirs.values()
    ]


def test_closing_again_is_no_error() -> None:
    """As on Trio: also once the last client has ended, and with it the run."""

    async def main() -> None:
        async with cluster_of(1) as cluster:
            async with (
                member_of(cluster) as consumer,
                producer_of(cluster) as producer,
                trikafka.aio.open_admin(**cluster.settings) as admin,
            ):
                stream = await anext(consumer.partitions())
                await producer.aclose()
        for ended in (consumer, producer, admin, stream):
            await ended.aclose()
        await stream.wait_ended()

    run(main)


@pytest.mark.parametrize("kind", ["consumer", "producer", "share_consumer"])
def test_health_is_known_after_the_end(kind: str) -> None:
    """As on Trio: probes ask a client that has ended, too, and so has the last one's run."""

    async def main() -> Any:
        async with cluster_of() as cluster:
            given: dict[str, Any] = {"group_id": "g"} if "consumer" in kind else {}
            async with getattr(trikafka.aio, f"open_{kind}")(
                *(["t"] if kind == "share_consumer" else []), **cluster.settings, **given
            ) as client:
                pass
        return client

    client = run(main)
    assert not client.health().ok
    assert client.health().reasons == (f"the {kind.replace('_', ' ')} is closed",)
    assert client.statistics().connections


def test_other_ways_to_open_are_refused() -> None:
    async def trio_main() -> None:
        with pytest.raises(trikafka.IllegalStateError, match=r"use trikafka\.open_admin"):
            async with trikafka.aio.open_admin():
                pass

    trio.run(trio_main)

    async def main() -> None:
        with pytest.raises(trikafka.IllegalStateError, match=r"trikafka\.aio\.open_admin\(\)"):
            async with trikafka.open_admin():
                pass
        unopened: Any = trikafka.aio.open_admin()
        block = r"'async with trikafka\.aio\.open_admin\(\.\.\.\) as admin:'"
        with pytest.raises(trikafka.IllegalStateError, match=f"{block}, not by 'await"):
            await unopened
        with pytest.raises(trikafka.IllegalStateError, match=f"{block}, not by 'with'"), unopened:
            pass
        with pytest.raises(trikafka.IllegalStateError, match=f"{block}, not by 'async for'"):
            async for _ in unopened:
                pass
        with pytest.raises(trikafka.NotOpenError, match=f"{block}: before that there is no admin"):
            await unopened.list_topics()
        with pytest.raises(trikafka.IllegalStateError, match="was not entered"):
            await unopened.__aexit__(None, None, None)
        open_producer: Any = trikafka.aio.open_producer
        with pytest.raises(
            trikafka.ConfigurationError,
            match=r"trikafka\.aio\.open_producer\(bootstrap_servers='a:1'\)",
        ):
            open_producer("a:1")
        with pytest.raises(trikafka.ConfigurationError, match="no_such_setting"):
            async with trikafka.aio.open_admin(no_such_setting=3):  # type: ignore[call-arg]
                pass
        opening = trikafka.aio.open_admin(bootstrap_servers="127.0.0.1:1")
        with pytest.raises(trikafka.BootstrapError):
            async with opening:
                pass

    with nothing_left():
        run(main)


def test_reprs_name_this_face() -> None:
    async def main() -> None:
        async with (
            cluster_of(1) as cluster,
            producer_of(cluster, transactional_id="x") as producer,
            trikafka.aio.open_share_consumer("t", group_id="s", **cluster.settings) as queue,
            trikafka.aio.open_admin(**cluster.settings) as admin,
        ):
            for thing in (producer, producer.transaction(), queue, admin):
                assert repr(thing).startswith(f"<trikafka.aio.{type(thing).__name__} "), repr(thing)

    run(main)


def test_client_of_the_other_face_is_refused() -> None:
    async def handler(_: object) -> None: ...

    async def main() -> None:
        async with cluster_of(1) as cluster:
            async with member_of(cluster, enable_auto_commit=False) as consumer:
                with pytest.raises(trikafka.ConfigurationError) as caught:
                    await trikafka.run_tasks(consumer, handler)  # type: ignore[call-overload]
                assert str(caught.value) == (
                    "run_tasks() takes an open consumer of trikafka, and this is one of "
                    "trikafka.aio: use trikafka.aio.run_tasks()"
                )
                theirs: Any = consumer._client
                with pytest.raises(trikafka.ConfigurationError, match=r"not <trikafka\.Consumer "):
                    await trikafka.aio.run_tasks(theirs, handler)
            unopened: Any = member_of(cluster)
            with pytest.raises(
                trikafka.ConfigurationError,
                match=r"not open yet; write: async with trikafka\.aio\.open_consumer",
            ):
                await trikafka.aio.run_tasks(unopened, handler)

    run(main)


def test_contexts_of_callers_stay_apart() -> None:
    """No call sees the variables of another, and ticks have none."""

    async def main() -> None:
        where.set("at the opening")
        async with cluster_of(1) as cluster, consumer_of(cluster, group_id="g") as consumer:
            seen: list[str] = []

            async def provider() -> object:
                seen.append(where.get())
                return None

            async def call(name: str) -> None:
                where.set(name)
                await trikafka.aio.crossing.cross(consumer._guest, provider)

            await asyncio.gather(*(call(f"task {number}") for number in range(5)))
            assert sorted(seen) == [f"task {number}" for number in range(5)]

    run(main)


def test_async_credentials_are_asked_in_asyncio() -> None:
    """Functions, partials and objects with an async ``__call__``; plain ones, too."""

    class Provider:
        async def __call__(self) -> str:
            return await token()

    async def token() -> str:
        await asyncio.sleep(0)
        return "token"

    providers: list[Any] = [token, Provider(), partial(token), lambda: token()]

    async def main() -> None:
        async with cluster_of(1) as cluster:
            guest = cluster._guest
            for name in ("sasl_oauth_token_provider", "sasl_credentials"):
                for provider in providers:
                    given = _bridged(guest, {name: provider, "client_id": "c"})
                    assert await cross(guest, given[name]) == "token"
                    assert given["client_id"] == "c"
                assert _bridged(guest, {name: lambda: "plain"})[name]() == "plain"
                assert _bridged(guest, {name: "wrong"}) == {name: "wrong"}

    run(main)
