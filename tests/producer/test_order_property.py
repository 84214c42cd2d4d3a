"""Whatever happens between a producer and a broker: nothing doubled, nothing out of order, nothing
acknowledged that is lost, and nothing in the log of which is said that it is not there. Without
idempotence the last two.

The broker is the log of the scripted cluster, which checks sequence numbers as Kafka does. Dice
choose who sends, loses, answers, expires and moves the leader, and when: they go through more in a
second than Hypothesis, and a failure names the seed of its walk.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

import pytest
from accumulating import Bench, Ticket, outcome

from trikafka._state.producer.producer_batch import ProducerBatch
from trikafka._state.producer.sequences import ProducerIdentity
from trikafka.errors import DeliveryTimeoutError, KafkaConnectionError, TrikafkaError, from_code
from trikafka.testing.batches import BadBatch, decode_batch
from trikafka.testing.state import Partition

PARTITIONS = 2
#: Codes that come when nothing was written, and when it was: a leader that is deposed answers so of
#: what it has written.
NOT_WRITTEN, PERHAPS_WRITTEN = (6, 19, 29, 87), (6, 3, 20)


class Wire:
    """One connection: requests wait in order to be carried out, then answers wait to be read."""

    def __init__(self) -> None:
        self.requests: deque[list[tuple[ProducerBatch, bytes]]] = deque()
        self.answers: deque[list[tuple[ProducerBatch, int | TrikafkaError]]] = deque()


class Walk:
    """A producer and two brokers, and what may happen to them next."""

    def __init__(self, seed: int, *, idempotent: bool) -> None:
        self.dice = random.Random(seed)
        self.idempotent = idempotent
        memory = self.dice.choice([1_000, 5_000])
        self.bench = Bench(
            *[0] * PARTITIONS, batch_size=200, buffer_memory=memory, idempotent=idempotent
        )
        self.logs = [Partition("t", number, 0, [0]) for number in range(PARTITIONS)]
        self.wires = [Wire(), Wire()]
        self.tickets: list[tuple[bytes, Ticket]] = []
        self.most = 10**9  # records in a batch that a broker takes

    def steps(self) -> dict[Callable[[], None], int]:
        """Return all steps and how often each is chosen."""
        return {
            self.put: 4,
            self.send: 4,
            self.carry_out: 4,
            self.answer: 4,
            self.wait: 2,
            self.refuse: 1,
            self.refuse_what_is_written: 1,
            self.lose_connection: 1,
            self.move: 1,
            self.look_at_metadata: 1,
            self.expire: 1,
            self.give_up: 1,
            self.limit_batches: 1,
        }

    def go(self, count: int) -> None:
        steps = self.steps()
        for step in self.dice.choices(list(steps), list(steps.values()), k=count):
            step()
            self.get_id()
            accumulator = self.bench.accumulator
            assert accumulator.used == sum(batch.size for batch in accumulator.batches())
        self.finish()
        self.compare()

    # The producer.

    def put(self) -> None:
        partition, size = self.dice.randrange(PARTITIONS), self.dice.randint(0, 120)
        for _ in range(self.dice.randint(1, 4)):
            value = b"%06d" % len(self.tickets) + b"x" * size
            made = self.bench.accumulator.appender.append("t", value, None, (), None, partition)
            if made is not None:
                self.tickets.append((value, made.parts()))

    def send(self) -> None:
        if self.dice.random() < 0.7:
            self.bench.accumulator.close_open()
        for node, wire in enumerate(self.wires):
            batches = self.bench.drain(node) if len(wire.requests) + len(wire.answers) < 5 else []
            if batches:
                wire.requests.append([(batch, batch.to_bytes()) for batch in batches])

    def answer(self) -> None:
        for wire in self.wires:
            for batch, result in wire.answers.popleft() if wire.answers else ():
                if isinstance(result, int):
                    self.bench.accumulator.completion.succeeded(batch, result, None)
                else:
                    self.bench.accumulator.completion.refused(batch, result, self.bench.now)

    def get_id(self) -> None:
        if (
            self.idempotent
            and self.bench.accumulator.producer.current is None
            and self.dice.random() < 0.5
        ):
            self.bench.accumulator.identified(ProducerIdentity(2000 + len(self.tickets), 0))

    def look_at_metadata(self) -> None:
        self.bench.accumulator.update_topic("t", [log.leader for log in self.logs])

    def wait(self) -> None:
        self.bench.now += self.dice.choice([0.05, 0.5, 2.0, 20.0])

    def expire(self) -> None:
        self.bench.accumulator.completion.expire(self.bench.now)

    def give_up(self) -> None:
        if self.dice.random() < 0.3:
            self.bench.now += self.bench.limits.delivery_timeout
            self.expire()

    # The brokers.

    def carry_out(self) -> None:
        for node, wire in enumerate(self.wires):
            if wire.requests and self.dice.random() < 0.8:
                wire.answers.append(
                    [
                        (batch, self._store(node, batch, data))
                        for batch, data in wire.requests.popleft()
                    ]
                )

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

    def refuse(self) -> None:
        self._refuse(self.dice.choice(NOT_WRITTEN), written=False)

    def refuse_what_is_written(self) -> None:
        self._refuse(self.dice.choice(PERHAPS_WRITTEN), written=True)

    def _refuse(self, code: int, *, written: bool) -> None:
        for node, wire in enumerate(self.wires):
            if wire.requests:
                answers: list[tuple[ProducerBatch, int | TrikafkaError]] = []
                for batch, data in wire.requests.popleft():
                    stored = self._store(node, batch, data) if written else 0
                    answers.append((batch, from_code(code) if isinstance(stored, int) else stored))
                wire.answers.append(answers)

    def lose_connection(self) -> None:
        node = self.dice.randrange(2)
        for _ in range(self.dice.randint(0, 5)):
            self.carry_out()
        wire = self.wires[node]
        self.wires[node] = Wire()
        lost = [batch for answers in wire.answers for batch, _ in answers]
        lost += [batch for request in wire.requests for batch, _ in request]
        for batch in lost:
            self.bench.accumulator.completion.refused(
                batch, KafkaConnectionError("gone"), self.bench.now
            )

    def move(self) -> None:
        self.dice.choice(self.logs).leader = self.dice.randrange(2)

    def limit_batches(self) -> None:
        self.most = self.dice.choice([1, 2, 10**9])

    # The end.

    def finish(self) -> None:
        """Let everything complete without further faults."""
        accumulator = self.bench.accumulator
        self.look_at_metadata()
        for _ in range(500):
            if not accumulator.unsettled() and not accumulator.used:
                break
            self.bench.now += 5
            self.get_id(), self.send(), self.carry_out(), self.answer()
        assert accumulator.used == 0

    def compare(self) -> None:
        """Compare the log with the outcomes."""
        stored = [
            {
                record.offset: record.value
                for batch in log.batches
                for record in decode_batch(batch.data, "t", log.index)
            }
            for log in self.logs
        ]
        for log in stored:
            values = [value for _, value in sorted(log.items())]
            assert not self.idempotent or len(values) == len(set(values)), "doubled"
            assert not self.idempotent or values == sorted(v for v in values if v is not None), (
                "out of order"
            )
        self.seen: Counter[str] = Counter()
        for value, ticket in self.tickets:
            batch, _ = ticket[0].part(ticket[1])
            is_there, doubts = value in stored[batch.partition].values(), [batch.maybe_written]
            try:
                metadata = outcome(ticket)
            except TrikafkaError as error:
                doubts += [error.maybe_written] if isinstance(error, DeliveryTimeoutError) else []
                self.seen["failed, in the log" if is_there else "failed"] += 1
            else:
                assert is_there, "acknowledged and lost"
                assert (
                    metadata.offset is None or stored[metadata.partition][metadata.offset] == value
                )
                self.seen["delivered"] += 1
                continue
            assert all(doubts) or not is_there, "in the log, and said not to be"


@pytest.mark.usefixtures("record_path")
@pytest.mark.parametrize("idempotent", [True, False])
def test_outcomes_are_true_in_random_walks(idempotent: bool) -> None:
    seen: Counter[str] = Counter()
    for _ in range(300):
        walk = Walk(seed := random.getrandbits(32), idempotent=idempotent)
        try:
            walk.go(60)
        except BaseException as error:
            error.add_note(f"Walk({seed}, idempotent={idempotent}).go(60)")
            raise
        seen += walk.seen
    kinds = ("delivered", "failed", "failed, in the log")
    assert min(seen[kind] for kind in kinds) > 75, f"what is looked for has hardly come: {seen}"
