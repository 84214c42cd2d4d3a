"""The Protocol of a seat is its whole contract: a manager with just its members works."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import seat_fakes
import trio
from offered_plugins import settings
from seat_fakes import FAKES, Takes
from trio.testing import MockClock

import trikafka
from trikafka import TopicPartition, interfaces
from trikafka._api.client.context import _SHAPES
from trikafka._api.consumer.builtin import ConsumerBuiltin
from trikafka._api.producer.builtin import ProducerBuiltin
from trikafka._api.share.builtin import ShareBuiltin
from trikafka._managers.cluster.builtin import Builtin
from trikafka._managers.producer import transaction_ends, transaction_failures, transactions
from trikafka.hooks import HookSpecs, members_of, missing_members
from trikafka.interfaces import (
    ConsumerContext,
    ConsumerState,
    ManagerKind,
    ProducerContext,
    ShareConsumerContext,
)
from trikafka.interfaces.state import ShareState
from trikafka.interfaces.transaction import ProducerTransactionState
from trikafka.testing import ScriptedCluster

FUTURE = "from __future__ import annotations\n"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SHARES = ("share_membership", "share_fetch")
CONSUMERS = [
    kind for kind in get_args(ManagerKind) if kind not in ("produce", "transactions", *SHARES)
]


def test_each_seat_has_a_fake() -> None:
    assert set(FAKES) == set(get_args(ManagerKind)) == set(_SHAPES)


def test_mypy_accepts_the_fakes() -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        str(Path(seat_fakes.__file__)),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(trikafka.__file__).parents[1], timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_fakes_use_nothing_private() -> None:
    for node in ast.walk(ast.parse(Path(seat_fakes.__file__).read_text())):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            assert not [name for name in names if "._" in name]
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id == "self"
        ):
            assert not node.attr.startswith("_") or node.attr == "__init__", ast.unparse(node)
            assert node.attr != "builtin"


def test_own_managers_use_only_the_protocol() -> None:
    """Trikafka's own managers call only members of the transaction's Protocol.

    So a plugin's manager can do the same.
    """
    offered = members_of(ProducerTransactionState)
    for module in (transactions, transaction_ends, transaction_failures):
        used = 0
        for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "self._transaction",
                "transaction",
            ):
                assert node.attr in offered, (module.__name__, node.attr)
                used += 1
        assert used > 5, f"{module.__name__} names the transaction otherwise"


@pytest.mark.parametrize("kind", get_args(ManagerKind))
def test_fake_has_exactly_the_protocols_members(kind: ManagerKind) -> None:
    made = get_type_hints(FAKES[kind]).get("return", FAKES[kind])
    assert {name for name in vars(made) if not name.startswith("_")} == members_of(_SHAPES[kind])


@pytest.mark.parametrize(
    "kinds", [*([kind] for kind in CONSUMERS), CONSUMERS], ids=lambda kinds: "+".join(kinds)
)
async def test_consumer_works_with_fakes(
    kinds: list[ManagerKind], autojump_clock: MockClock
) -> None:
    plugin = Takes(**{kind: FAKES[kind] for kind in kinds})
    with trio.fail_after(60):
        async with ScriptedCluster(topics={"t": 2}) as cluster:
            for number in range(2):
                cluster.append("t", number, [b"%d" % offset for offset in range(5)])
            given = settings(
                cluster,
                plugin,
                group_id="g",
                auto_offset_reset="earliest",
                group_protocol="classic",
            )
            async with trikafka.open_consumer("t", **given) as consumer:
                got = [await consumer.receive() for _ in range(10)]
                assert sorted((record.partition, record.offset) for record in got) == [
                    (p, o) for p in range(2) for o in range(5)
                ]
                await consumer.commit()
                committed = await consumer.committed([T0, T1])
                assert {tp: at and at.offset for tp, at in committed.items()} == {T0: 5, T1: 5}
                assert await consumer.beginning_offsets([T0]) == {T0: 0}
                assert await consumer.end_offsets([T0, T1]) == {T0: 5, T1: 5}
                assert len(await consumer.partitions_for("t")) == 2
                consumer.seek(T1, 3)
                assert await consumer.position(T1) == 3
                assert (await consumer.receive()).offset == 3
                cluster.append("t", 0, [b"later"])
                while (record := await consumer.receive()).partition != 0:
                    pass
                assert record.value == b"later"
                await consumer.unsubscribe()
                consumer.subscribe(["t"])
                cluster.append("t", 0, [b"again"])
                assert (await consumer.receive()).topic == "t"
                assert consumer.assignment() == {T0, T1}
            if "commit" not in kinds:
                assert cluster.committed("g", ("t", 0)) is not None
            assert plugin.made == set(kinds)


async def test_producer_works_with_a_fake(autojump_clock: MockClock) -> None:
    import pyarrow as pa

    plugin = Takes(**{kind: FAKES[kind] for kind in ("produce", "metadata", "telemetry")})
    with trio.fail_after(60):
        async with ScriptedCluster(topics={"t": 2}) as cluster:
            async with trikafka.open_producer(
                **settings(cluster, plugin, buffer_memory=70_000, linger_ms=5)
            ) as producer:
                assert (await producer.send("t", b"1", partition=0)).offset == 0
                ack = producer.send_nowait("t", b"2", partition=0)
                await producer.flush(timeout=5)
                assert ack.done
                # enqueue() waits for room.
                acks = [await producer.enqueue("t", b"x" * 10_000, partition=1) for _ in range(20)]
                assert (
                    await producer.send_arrow("t", pa.table({"value": [b"a", b"b"]}), partition=0)
                ).rows == 2
                assert len(await producer.partitions_for("t")) == 2
                await producer.flush()
                assert all(ack.done for ack in acks)
                assert producer.statistics().records_delivered == 24
                with pytest.raises(trikafka.RecordTooLargeError):
                    await producer.send("t", b"x" * 2_000_000)
                cluster.fail("Produce", 87, times=1)  # not a valid record
                with pytest.raises(trikafka.TrikafkaError) as refused:
                    await producer.send("t", b"3", partition=0)
                assert refused.value.code == 87
                # The fake takes a row at a time. If other tasks run in between, each row is a
                # request of its own, so every request is refused.
                cluster.fail("Produce", 87, times=None)
                with pytest.raises(trikafka.ArrowDeliveryError) as part:
                    await producer.send_arrow("t", pa.table({"value": [b"a", b"b"]}), partition=0)
                assert (part.value.delivered, part.value.rows) == (0, 2)
                assert producer.health().ok
            assert len(cluster.records("t", 0)) == 4
            assert plugin.made == {"produce", "metadata", "telemetry"}


async def test_transactions_work_with_fakes(autojump_clock: MockClock) -> None:
    plugin = Takes(
        **{kind: FAKES[kind] for kind in ("metadata", "coordinator", "produce", "transactions")}
    )
    with trio.fail_after(60):
        async with ScriptedCluster(topics={"t": 2}) as cluster:
            async with trikafka.open_producer(
                **settings(cluster, plugin, transactional_id="x")
            ) as producer:
                async with producer.transaction() as txn:
                    await producer.send("t", b"1", partition=0)
                    await txn.send_offsets({T1: 3}, trikafka.GroupMetadata("g"))
                async with producer.transaction() as txn:
                    await producer.send("t", b"2", partition=0)
                    await txn.abort()
                async with producer.transaction():
                    ack = producer.send_nowait("t", b"3", partition=0)
                assert ack.done
                assert producer.health().transaction == "ready"
            assert cluster.committed("g", ("t", 1)) is not None
            given = settings(
                cluster, auto_offset_reset="earliest", isolation_level="read_committed"
            )
            async with trikafka.open_consumer(**given) as consumer:
                consumer.assign([T0])
                assert [(await consumer.receive()).value for _ in range(2)] == [b"1", b"3"]
            assert plugin.made == {"metadata", "coordinator", "produce", "transactions"}


@pytest.mark.parametrize(
    "kinds", [["share_membership"], ["share_fetch"], ["telemetry"], list(SHARES)]
)
async def test_share_consumer_works_with_fakes(
    kinds: list[ManagerKind], autojump_clock: MockClock
) -> None:
    plugin = Takes(**{kind: FAKES[kind] for kind in kinds})
    with trio.fail_after(60):
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            cluster.shares.times.auto_offset_reset = "earliest"
            cluster.append("t", 0, [b"1"])
            given = settings(cluster, plugin, group_id="g")
            async with trikafka.open_share_consumer("t", **given) as queue:
                if "share_fetch" not in kinds:
                    async with await queue.receive() as delivery:
                        assert delivery.record.value == b"1"
                    await delivery.acknowledged()
                else:
                    if "share_membership" not in kinds:
                        await cluster.seen("ShareGroupHeartbeat")
                    # The fake fetches nothing.
                    with trio.move_on_after(1) as waits:
                        await queue.receive()
                    assert waits.cancelled_caught
                    assert not cluster.requests("ShareFetch")
                await queue.flush()
                assert queue.health().ok
            assert plugin.made == set(kinds)
            if "share_membership" not in kinds:
                assert not cluster.shares.by_id["g"].members


@pytest.mark.parametrize("kind", ["metadata", "coordinator", "offsets", "telemetry"])
async def test_admin_client_works_with_fakes(kind: ManagerKind, autojump_clock: MockClock) -> None:
    with trio.fail_after(60):
        async with ScriptedCluster(topics={"t": 2}) as cluster:
            plugin = Takes(**{kind: FAKES[kind]})
            async with trikafka.open_admin(**settings(cluster, plugin)) as admin:
                assert set(await admin.list_topics()) == {"t"}
                assert (await admin.describe_cluster()).controller is not None
                await admin.list_groups()
                await admin.list_group_offsets("g")
            assert plugin.made == {kind}


def test_contracts_are_fully_typed() -> None:
    for shape in (
        *_SHAPES.values(),
        ConsumerContext,
        ProducerContext,
        ShareConsumerContext,
        ConsumerState,
        ShareState,
    ):
        for name in members_of(shape) - {"manager"}:  # which has a signature for each kind
            promised = inspect.getattr_static(shape, name)
            promised = promised.fget if isinstance(promised, property) else promised
            signature = inspect.signature(promised)
            parameters = [each for each in signature.parameters.values() if each.name != "self"]
            untyped = [
                each.name for each in parameters if each.annotation is inspect.Parameter.empty
            ]
            assert not untyped, (shape, name)
            assert signature.return_annotation is not inspect.Signature.empty, (shape, name)


def _taken(*kinds: type) -> tuple[set[str], set[str]]:
    """Return the members that factories take of their client, and of its core."""
    files = [Path(inspect.getfile(kind)) for kind in kinds]
    tree = ast.parse("".join(file.read_text() for file in files).replace(FUTURE, ""))
    taken, of_core = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "client":
                taken.add(node.attr)
            core = isinstance(node.value, ast.Name) and node.value.id == "core"
            if core or (isinstance(node.value, ast.Attribute) and node.value.attr == "core"):
                of_core.add(node.attr)
    return taken, of_core


def test_own_factories_use_only_what_is_offered() -> None:
    """The factories use only members of the contexts and of ``ConsumerState``."""
    offered = members_of(ConsumerContext) | members_of(ProducerContext)
    taken, of_core = _taken(Builtin, ConsumerBuiltin, ProducerBuiltin)
    assert {"config", "brokers", "manager", "core"} <= taken <= offered
    assert {"member", "assignment"} <= of_core <= members_of(ConsumerState)


def test_share_factories_use_what_is_offered() -> None:
    taken, _ = _taken(ShareBuiltin)
    assert {"config", "brokers", "manager", "core"} <= taken
    assert taken <= members_of(ShareConsumerContext)


@pytest.mark.parametrize("kind", get_args(ManagerKind))
def test_missing_members_are_named(kind: ManagerKind) -> None:
    assert missing_members(object(), _SHAPES[kind]) == sorted(members_of(_SHAPES[kind]))


def test_listeners_and_observers_may_be_partial(tmp_path: Path) -> None:
    """They can be inherited from, or have only some methods."""
    program = """
        from collections.abc import Sequence
        from typing import assert_type
        from trikafka import RebalanceListener, TopicPartition, hookimpl
        from trikafka.interfaces import ClientContext, CommitManager, ConsumerContext, ManagerKind, Observer

        class Listener(RebalanceListener):
            async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
                print(partitions)

        class Watcher(Observer):
            def closed(self) -> None: ...

        class Plugin:
            @hookimpl
            def trikafka_rebalance_listener(self, context: ClientContext) -> RebalanceListener:
                return Listener()

            @hookimpl
            def trikafka_observer(self, context: ClientContext) -> Observer:
                return Watcher()

            @hookimpl
            def trikafka_request_manager(self, kind: ManagerKind, context: ConsumerContext) -> object | None:
                assert_type(context.manager("commit"), CommitManager)
                assert_type(context.config.group_id, str | None)
                for partition in context.core.assignment.fetchable:
                    assert_type(partition.position, int | None)
                    partition.failed("not an exception")  # the one mistake
                return None

        Listener(), Watcher(), Plugin()
    """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(trikafka.__file__).parents[1], timeout=300
    )
    (said,) = done.stdout.splitlines()
    assert (
        'Argument 1 to "failed" of "PartitionView" has incompatible type "str"; expected '
        '"Exception"'
    ) in said


async def test_inherited_methods_do_nothing(autojump_clock: MockClock) -> None:
    listener = trikafka.RebalanceListener()
    await listener.on_partitions_assigned([T0])
    await listener.on_partitions_revoked([T0])
    await listener.on_partitions_lost([T0])
    observer = interfaces.Observer()
    observer.failed(ValueError())
    observer.closed()


def test_documentation_has_each_contract() -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    found = dict(re.findall(r"^\| `(\w+)` \| `(\w+Manager)` \|", text, re.MULTILINE))
    assert list(found) == list(get_args(ManagerKind))
    assert found == {kind: shape.__name__ for kind, shape in _SHAPES.items()}
    hooks = {name for name in vars(HookSpecs) if name.startswith("trikafka_")}
    assert set(re.findall(r"^\| `(trikafka_\w+)", text, re.MULTILINE)) == hooks
