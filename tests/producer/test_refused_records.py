"""KIP-467: a broker refuses a batch because of some of its records.

Those fail, each with its reason; the others are sent again.
"""

from __future__ import annotations

import pytest
import trio
from accumulating import Bench, outcome, records
from producing import opened
from trio.testing import MockClock as Clock

from trikafka import BrokerResponseError
from trikafka._state.producer.sequences import ProducerIdentity
from trikafka.error_codes import ErrorCode
from trikafka.errors import KafkaConnectionError, TrikafkaError, from_code
from trikafka.testing import ScriptedCluster


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("keyless", [{0}, {4}, {9}, {0, 1, 2}, {2, 5, 6, 9}, set(range(10))])
async def test_keyless_records_fail_in_compacted_topic(
    keyless: set[int], idempotent: bool, autojump_clock: Clock
) -> None:
    async with (
        ScriptedCluster() as cluster,
        opened(cluster, linger_ms=20, enable_idempotence=idempotent) as producer,
    ):
        cluster.create_topic("t", 1, {"cleanup.policy": "compact"})
        with trio.fail_after(30):
            await producer.send("t", b"first", key=b"k")
            acks = [
                producer.send_nowait(
                    "t", b"%d" % n, key=None if n in keyless else b"k", partition=0
                )
                for n in range(10)
            ]
            for number, ack in enumerate(acks):
                if number not in keyless:
                    assert (await ack.wait()).offset is not None
                    continue
                with pytest.raises(
                    BrokerResponseError, match="cannot accept message without key"
                ) as caught:
                    await ack.wait()
                assert caught.value.code == ErrorCode.INVALID_RECORD
            await producer.send("t", b"last", key=b"k")
        there = [record.value for record in cluster.records("t", 0)]
        assert there == [
            b"first",
            *(b"%d" % number for number in range(10) if number not in keyless),
            b"last",
        ]
        assert producer.statistics().buffer_used == 0
        assert producer.statistics().records_failed == len(keyless)


@pytest.mark.usefixtures("record_path")
def test_batches_behind_refused_have_new_epoch() -> None:
    bench = Bench(0)
    bench.prove()
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(3)]
    bench.accumulator.close_open()
    (behind,) = bench.fill(1)
    (batch,) = bench.drain()
    assert bench.drain() == [behind]
    bench.accumulator.completion.records_refused(
        batch, from_code(87), {1: from_code(87, "bad")}, 0.0
    )
    bench.accumulator.completion.refused(behind, from_code(45), 0.0)
    sent = []
    while bench.accumulator.unsettled():
        bench.now += 1
        (each,) = bench.drain()
        assert each.identity is not None
        sent.append(
            (each.sequence, each.identity.epoch, [record.value for record in records(each)])
        )
        bench.accumulator.completion.succeeded(each, 10 * len(sent), None)
    assert sent == [(0, 1, [b"0"]), (1, 1, [b"2"]), (2, 1, [b"0"])]
    assert [outcome(tickets[number]).offset for number in (0, 2)] == [10, 20]
    with pytest.raises(BrokerResponseError, match="bad"):
        outcome(tickets[1])
    assert bench.accumulator.used == 0


@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1])
def test_wrong_index_fails_the_whole_batch(index: int) -> None:
    bench = Bench(0)
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(3)]
    bench.accumulator.close_open()
    (batch,) = bench.drain()
    bench.accumulator.completion.records_refused(batch, from_code(87, "all"), {}, 0.0)
    for ticket in tickets:
        with pytest.raises(BrokerResponseError, match="all"):
            outcome(ticket)
    assert bench.accumulator.used == 0


@pytest.mark.parametrize("lost", [KafkaConnectionError("lost"), from_code(20)])
def test_possibly_written_batch_keeps_its_number(lost: TrikafkaError) -> None:
    """The broker may have the whole batch from an earlier attempt.

    Under new numbers the other records would be in the log twice.
    """
    bench = Bench(0, linger=0.0)
    bench.prove()
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(3)]
    (batch,) = bench.drain()
    bench.accumulator.completion.refused(batch, lost, bench.now)
    bench.now = 1.0
    assert bench.drain() == [batch]
    bad = from_code(ErrorCode.INVALID_RECORD)
    bench.accumulator.completion.records_refused(batch, bad, {0: bad}, bench.now)
    (rest,) = bench.drain()
    assert (rest.sequence, rest.count, rest.identity) == (2, 2, ProducerIdentity(1000, 0))
    bench.accumulator.completion.refused(
        rest, from_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), bench.now
    )
    for ticket in tickets[1:]:
        with pytest.raises(BrokerResponseError, match="may be in the log"):
            outcome(ticket)
        assert ticket[0].part(ticket[1])[0].maybe_written
