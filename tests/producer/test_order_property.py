"""Whatever happens between a producer and a broker: nothing doubled, nothing out of order, nothing acknowledged that is lost.

The broker is the log of the scripted cluster, which checks sequence numbers as Kafka does. Hypothesis chooses who sends,
loses, answers, expires and moves the leader, and when.
"""

from __future__ import annotations

from collections import deque

import pytest
from accumulating import Bench, Ticket, outcome
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from trikafka._state.producer_batch import ProducerBatch
from trikafka._state.sequences import Identity
from trikafka.errors import KafkaConnectionError, TrikafkaError, from_code
from trikafka.testing.batches import BadBatch, decode_batch
from trikafka.testing.state import Partition

PARTITIONS = 2


class Wire:
    """One connection: requests wait in order to be carried out, then answers wait to be read."""

    def __init__(self) -> None:
        self.requests: deque[list[tuple[ProducerBatch, bytes]]] = deque()
        self.answers: deque[list[tuple[ProducerBatch, int | TrikafkaError]]] = deque()


class Producing(RuleBasedStateMachine):
    @initialize(idempotent=st.just(True), memory=st.sampled_from([1_000, 5_000]))
    def begin(self, idempotent: bool, memory: int) -> None:
        self.bench = Bench(*[0] * PARTITIONS, batch_size=200, buffer_memory=memory, idempotent=idempotent)
        self.logs = [Partition("t", number, 0, [0]) for number in range(PARTITIONS)]
        self.wires = [Wire(), Wire()]
        self.tickets: list[tuple[bytes, Ticket]] = []
        self.most = 10**9

    @rule(partition=st.integers(0, PARTITIONS - 1), size=st.integers(0, 120))
    def put(self, partition: int, size: int) -> None:
        value = b"%06d" % len(self.tickets) + b"x" * size
        made = self.bench.accumulator.appender.append("t", value, None, (), None, partition)
        if made is not None:
            self.tickets.append((value, made.parts()))

    @rule(seconds=st.sampled_from([0.05, 0.5, 2.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.bench.now += seconds

    @rule()
    def hurry(self) -> None:
        self.bench.accumulator.close_open()

    @rule(node=st.integers(0, 1))
    def send(self, node: int) -> None:
        wire = self.wires[node]
        if len(wire.requests) + len(wire.answers) >= 5:
            return
        batches = self.bench.drain(node)
        if batches:
            wire.requests.append([(batch, batch.to_bytes()) for batch in batches])

    @rule(node=st.integers(0, 1))
    def carry_out(self, node: int) -> None:
        wire = self.wires[node]
        if wire.requests:
            wire.answers.append([(batch, self._store(node, batch, data)) for batch, data in wire.requests.popleft()])

    def _store(self, node: int, batch: ProducerBatch, data: bytes) -> int | TrikafkaError:
        log = self.logs[batch.partition]
        if log.leader != node:
            return from_code(6)
        if batch.count > self.most:
            return from_code(10)
        try:
            return log.store(data)
        except BadBatch as bad:
            return from_code(bad.code)

    @rule(node=st.integers(0, 1))
    def answer(self, node: int) -> None:
        if not self.wires[node].answers:
            return
        for batch, result in self.wires[node].answers.popleft():
            if isinstance(result, int):
                self.bench.accumulator.succeeded(batch, result, None)
            else:
                self.bench.accumulator.refused(batch, result, self.bench.now)

    @rule(node=st.integers(0, 1), code=st.sampled_from([19, 20, 29, 87]))
    def refuse(self, node: int, code: int) -> None:
        """The broker answers with an error; with 20 it has written the batches all the same."""
        wire = self.wires[node]
        if not wire.requests:
            return
        request = wire.requests.popleft()
        answers: list[tuple[ProducerBatch, int | TrikafkaError]] = []
        for batch, data in request:
            stored = self._store(node, batch, data) if code == 20 else 0
            answers.append((batch, from_code(code) if isinstance(stored, int) else stored))
        wire.answers.append(answers)

    @rule(node=st.integers(0, 1), written=st.integers(0, 5))
    def lose_connection(self, node: int, written: int) -> None:
        wire = self.wires[node]
        for _ in range(min(written, len(wire.requests))):
            self.carry_out(node)
        lost = [batch for answers in wire.answers for batch, _ in answers]
        lost += [batch for request in wire.requests for batch, _ in request]
        self.wires[node] = Wire()
        for batch in lost:
            self.bench.accumulator.refused(batch, KafkaConnectionError("gone"), self.bench.now)

    @rule(partition=st.integers(0, PARTITIONS - 1), leader=st.integers(0, 1))
    def move(self, partition: int, leader: int) -> None:
        self.logs[partition].leader = leader

    @rule()
    def look_at_metadata(self) -> None:
        self.bench.accumulator.update_topic("t", [log.leader for log in self.logs])

    @rule()
    def expire(self) -> None:
        self.bench.accumulator.expire(self.bench.now)

    @rule()
    @precondition(lambda self: self.bench.accumulator.identity.current is None)
    def new_producer_id(self) -> None:
        self.bench.accumulator.identified(Identity(2000 + len(self.tickets), 0))

    @rule(most=st.sampled_from([1, 2, 10**9]))
    def limit_batches(self, most: int) -> None:
        self.most = most

    @invariant()
    def memory_is_what_the_batches_take(self) -> None:
        if hasattr(self, "bench"):
            accumulator = self.bench.accumulator
            assert accumulator.used == sum(batch.size for batch in accumulator.batches())

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        accumulator = self.bench.accumulator
        self.look_at_metadata()
        for _ in range(500):
            if not accumulator.unsettled() and not accumulator.used:
                break
            accumulator.close_open()
            self.bench.now += 5
            for node in (0, 1):
                self.send(node), self.carry_out(node), self.answer(node)
            if accumulator.identity.current is None:
                self.new_producer_id()
        assert accumulator.used == 0
        self._compare()

    def _compare(self) -> None:
        stored = [
            {record.offset: record.value for batch in log.batches for record in decode_batch(batch.data, "t", log.index)}
            for log in self.logs
        ]
        for log in stored:
            values = [value for _, value in sorted(log.items())]
            assert len(values) == len(set(values)), "doubled"
            assert values == sorted(v for v in values if v is not None), "out of order"
        for value, ticket in self.tickets:
            try:
                metadata = outcome(ticket)
            except TrikafkaError:
                continue
            assert value in stored[metadata.partition].values(), "acknowledged and lost"
            if metadata.offset is not None:
                assert stored[metadata.partition][metadata.offset] == value


@pytest.mark.usefixtures("record_path")
def test_whatever_goes_wrong_nothing_is_lost_doubled_or_out_of_order() -> None:
    suppressed = list(HealthCheck)
    run_state_machine_as_test(
        Producing, settings=settings(max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=suppressed)
    )
