"""Three clients in one share group: ``make share-interop``.

trikafka, Kafka's Java client and franz-go share a topic until each has accepted some hundred
records. A member counts an accept once the broker has confirmed it. It releases some records at
their first delivery, so that records move between the members. The run ends once the group has no
lag, since no record can be accepted any more then. The exit code is 1 if a record was not accepted,
if one was accepted twice, or if a member got too few.

It needs Go 1.26 and a Java compiler.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
from trikafka_broker import Cluster

import trikafka
from trikafka import NewTopic

from . import tuning
from .programs import franz, java
from .share_groups import new_share_group

#: All members read one partition. Of three, the group's assignor would give each member its own.
TOPIC, PARTITIONS = "jobs", 1
#: The least number of records that each member has to accept.
LEAST = 300
#: A record whose offset is divisible by this is released at its first delivery.
RELEASED = 10
#: The records written at a time, the seconds between two such writes, and the most records in all.
_STEP, _PACE, _MOST = 90, 0.05, 60_000
#: The limits of the run, and of a member's end (seconds).
_LIMIT, _END = 180.0, 30.0


class Accepted(NamedTuple):
    """An accept that the broker has taken."""

    partition: int
    offset: int
    delivery: int  # its number, from 1


@dataclass
class Run:
    """The accepts of each member, and the number of records written to each partition."""

    accepted: dict[str, list[Accepted]] = field(default_factory=dict)
    written: int = 0

    def places(self) -> Counter[tuple[int, int]]:
        """Return how often each record was accepted."""
        return Counter(each[:2] for some in self.accepted.values() for each in some)


def violations(run: Run, least: int = LEAST) -> list[str]:
    """Return what is wrong with the members' accepts: nothing, if all is well."""
    found = [
        f"{member} accepted {len(some)} records of at least {least}"
        for member, some in run.accepted.items()
        if len(some) < least
    ]
    places = run.places()
    everything = {
        (partition, offset) for partition in range(PARTITIONS) for offset in range(run.written)
    }
    missing = everything - places.keys()
    if missing:
        found.append(f"{len(missing)} records were not accepted, the first of them {min(missing)}")
    found += [f"{place} was accepted {n} times" for place, n in sorted(places.items()) if n > 1]
    found += [
        f"{member} accepted {tuple(each)}, which had to be released before"
        for member, some in run.accepted.items()
        for each in some
        if each.offset % RELEASED == 0 and each.delivery < 2
    ]
    return found


async def share(bootstrap: str, members: Mapping[str, Sequence[str]]) -> Run:
    """Have trikafka and the ``members``, which are programs, share the topic.

    Args:
        bootstrap: The broker's address.
        members: The command of each by its name, with its order.

    Raises:
        RuntimeError: The limit has passed.
        ExceptionGroup: A member has ended, with a RuntimeError that names it.
    """
    run = Run()
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics({TOPIC: NewTopic(PARTITIONS, 1)})
    group = await new_share_group(bootstrap, {}, None)
    orders = {
        "java": {
            **tuning.java_share_consumer("explicit"),
            "group.id": group,
            "max.poll.records": 50,
        },
        "franz": {**tuning.franz_share_consumer(group), "ShareMaxRecords": 50},
    }
    with trio.move_on_after(_LIMIT) as scope:
        async with trio.open_nursery() as nursery:
            over = trio.Event()
            nursery.start_soon(_ours, bootstrap, group, run, over)
            for name, command in members.items():
                order = {
                    "kind": "member",
                    "bootstrap": bootstrap,
                    "topic": TOPIC,
                    "size": RELEASED,
                    "settings": orders[name],
                }
                nursery.start_soon(_program, name, [*command, json.dumps(order)], run, over)
            await _feed(bootstrap, run, 1 + len(members))
            await _all_settled(bootstrap, group, run)
            over.set()
    if scope.cancelled_caught:
        raise RuntimeError(f"not done after {_LIMIT:.0f} s: {violations(run)[:5]}")
    return run


async def _feed(bootstrap: str, run: Run, members: int) -> None:
    """Write records until each member has accepted enough."""
    async with trikafka.open_producer(bootstrap_servers=bootstrap) as producer:
        while run.written < _MOST and (
            len(run.accepted) < members or min(len(some) for some in run.accepted.values()) < LEAST
        ):
            for offset in range(run.written, run.written + _STEP):
                for partition in range(PARTITIONS):
                    await producer.enqueue(TOPIC, b"%d" % offset, partition=partition)
            await producer.flush()
            run.written += _STEP
            await trio.sleep(_PACE)


async def _all_settled(bootstrap: str, group: str, run: Run) -> None:
    """Wait until each record was accepted, and the broker has no record left to deliver.

    The first accepts of all records are not the end: a record that was delivered twice may still be
    accepted again. While such a delivery is open, the group has a lag.
    """
    async with trikafka.open_admin(bootstrap_servers=bootstrap) as admin:
        while True:
            found = (await admin.list_share_group_offsets([group]))[group]
            settled = len(found) == PARTITIONS and not any(at.lag for at in found.values())
            if settled and len(run.places()) == PARTITIONS * run.written:
                return
            await trio.sleep(0.05)


async def _ours(bootstrap: str, group: str, run: Run, over: trio.Event) -> None:
    accepted = run.accepted.setdefault("trikafka", [])
    async with (
        trikafka.open_share_consumer(
            TOPIC, group_id=group, bootstrap_servers=bootstrap, max_in_flight=50
        ) as queue,
        trio.open_nursery() as nursery,
    ):
        receiving = trio.CancelScope()

        async def receive() -> None:
            nonlocal receiving
            while not over.is_set():
                with trio.CancelScope() as receiving:
                    batch = await queue.receive_batch()
                if receiving.cancelled_caught:
                    return
                async with batch:
                    counts = batch.delivery_counts
                    verdicts = [
                        count > 1 or record.offset % RELEASED != 0
                        for record, count in zip(batch, counts, strict=True)
                    ]
                    batch.acknowledge(verdicts)
                await batch.acknowledged()
                accepted.extend(
                    Accepted(record.partition, record.offset, count)
                    for record, count, verdict in zip(batch, counts, verdicts, strict=True)
                    if verdict
                )

        # What is accepted is counted: only a wait for records is cut short.
        nursery.start_soon(receive)
        await over.wait()
        receiving.cancel()


async def _program(name: str, command: Sequence[str], run: Run, over: trio.Event) -> None:
    accepted = run.accepted.setdefault(name, [])
    process = await trio.lowlevel.open_process(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def end() -> None:
        """End the member's standard input, which has it leave the group."""
        await over.wait()
        await stdin.aclose()

    try:
        stdin, rest = process.stdin, b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            async for some in process.stdout:
                *lines, rest = (rest + some).split(b"\n")
                accepted.extend(Accepted(*map(int, line.split())) for line in lines)
            if not over.is_set():
                raise RuntimeError(f"{name} has ended: {await process.wait()}")
        with trio.fail_after(_END):
            code = await process.wait()
        if code:
            raise RuntimeError(f"{name} has ended with {code}")
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def _run() -> int:
    commands = {"java": java(), "franz": franz()}
    began = time.monotonic()
    async with Cluster.open(brokers=1) as cluster:
        run = await share(cluster.bootstrap_servers, commands)
    print(f"{PARTITIONS * run.written:,} records in {time.monotonic() - began:.0f} s")
    for member, some in run.accepted.items():
        again = sum(each.delivery > 1 for each in some)
        print(f"{member:<10}  accepted {len(some):,}, {again:,} of them delivered before")
    found = violations(run)
    for line in found[:10]:
        print(f"VIOLATED    {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(trio.run(_run))
