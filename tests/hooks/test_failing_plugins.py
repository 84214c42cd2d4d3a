"""Plugins that fail while the client runs: every seat, method and kind of failure.

The error names the plugin, within the call's limit.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import trio

try:
    import pyarrow as pa
except ImportError:
    pa = None
from seat_fakes import Takes
from trio.testing import MockClock

import trikafka
import trikafka.interfaces
from trikafka import KafkaTimeoutError, PluginError, TopicPartition
from trikafka._api.client.context import _SHAPES
from trikafka._api.client.plugin_proxy import _RESULTS, PluginSlot, _bounded_drop
from trikafka.hooks import members_of
from trikafka.interfaces import ManagerKind
from trikafka.testing import ScriptedCluster

T0 = TopicPartition("t", 0)
#: The limit of each call of the walk, in seconds.
LIMIT = 3.0
#: Faults without an error: a background task that does nothing looks like a member that sends no
#: heartbeats or a consumer without records. Health and the log report that (``stall_warning_ms``);
#: no call waits for it.
SILENT = {(kind, "run", "hangs") for kind in ("metadata", "fetch", "heartbeat", "membership")} | {
    ("metadata", "changed", "hangs"),  # a cluster in which nothing changes
    ("produce", "run", "hangs"),
    ("transactions", "run", "hangs"),
    ("share_membership", "run", "hangs"),
    ("share_fetch", "run", "hangs"),
    ("telemetry", "run", "hangs"),
}
#: The members of the produce manager that a transactions manager calls.
IN_TRANSACTIONS = ("identify", "partitions_added", "delayed", "wait_none_in_flight")


class Faulty:
    """Trikafka's own manager with one faulty member."""

    def __init__(self, inner: Any, member: str, fault: str) -> None:
        self._inner = inner
        self._member = member
        self._fault = fault
        self._armed = False

    def __getattr__(self, name: str) -> Any:
        if name != self._member:
            return getattr(self._inner, name)
        right = getattr(type(self._inner), name, None)
        if isinstance(right, property) or not callable(getattr(self._inner, name, None)):
            return self._property(name)
        return self._async(name) if inspect.iscoroutinefunction(right) else self._plain(name)

    def _property(self, name: str) -> Any:
        if self._fault == "raises":
            raise KeyError("oops")
        return Garbage()

    def _plain(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            if self._fault == "raises":
                raise KeyError("oops")
            return nothing() if self._fault == "is async" else Garbage()

        return method

    def _async(self, name: str) -> Callable[..., Any]:
        async def method(*args: Any, **kwargs: Any) -> Any:
            await trio.lowlevel.checkpoint()
            if self._fault == "raises":
                raise KeyError("oops")
            if self._fault == "raises a group":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._raise)
            if self._fault == "hangs":
                await trio.sleep_forever()
            return Garbage()

        def plain(*args: Any, **kwargs: Any) -> Any:
            return Garbage()

        return plain if self._fault == "is plain" else method

    async def _raise(self) -> None:
        raise KeyError("oops")


class Garbage:
    """A value of an unexpected type."""


async def nothing() -> None: ...


def rows() -> Iterator[tuple[ManagerKind, str, str]]:
    for kind in get_args(ManagerKind):
        for member in sorted(members_of(_SHAPES[kind])):
            promised = inspect.getattr_static(_SHAPES[kind], member)
            if inspect.iscoroutinefunction(promised):
                faults = ["raises", "raises a group", "hangs", "is plain"]
            elif callable(promised):
                faults = ["raises", "is async"]
            else:
                faults = ["raises"]
            if (kind, member) in _RESULTS:
                faults.append("returns garbage")
            for fault in [*faults, *(["returns"] if member == "run" else [])]:
                yield kind, member, fault


ROWS = [row for row in rows() if row not in SILENT]
IDS = [f"{kind}.{member} {fault}" for kind, member, fault in ROWS]


class Named(Exception):
    """The plugin's failure was reported, and the client was used after that."""


async def walk(
    consumer: trikafka.Consumer,
    cluster: ScriptedCluster,
    errors: list[BaseException],
    is_named: Callable[[], bool],
) -> None:
    """Call everything, each with its limit.

    Go on after a failure while the client lives, for three calls after the one that named it.
    """
    after = 0

    async def attempt(call: Callable[[], Any]) -> None:
        began = trio.current_time()
        try:
            result = call()
            if hasattr(result, "__await__"):
                await result
        except (trikafka.TrikafkaError, trio.ClosedResourceError) as error:
            errors.append(error)
        assert trio.current_time() - began <= LIMIT + 0.051
        nonlocal after
        after += is_named()
        if after > 3:
            raise Named

    await attempt(lambda: consumer.receive_batch(timeout=LIMIT))
    await attempt(lambda: consumer.commit({T0: 1}, timeout=LIMIT))
    await attempt(lambda: consumer.committed([T0], timeout=LIMIT))
    await attempt(lambda: consumer.end_offsets([T0, TopicPartition("u", 0)], timeout=LIMIT))
    await attempt(lambda: consumer.partitions_for("v", timeout=LIMIT))
    await attempt(lambda: consumer.list_topics(timeout=LIMIT))
    await attempt(lambda: consumer.client_instance_id(timeout=LIMIT))
    await attempt(consumer.statistics)
    await attempt(lambda: consumer.position(T0, timeout=LIMIT))
    cluster.fail("OffsetFetch", 16, times=1)  # not the coordinator
    cluster.fail("OffsetCommit", 16, times=1)
    await attempt(lambda: consumer.committed([T0], timeout=LIMIT))
    await attempt(lambda: consumer.commit({T0: 1}, timeout=LIMIT))
    await attempt(lambda: consumer.enforce_rebalance("a test"))
    await attempt(lambda: consumer.unsubscribe(timeout=LIMIT))
    await attempt(lambda: consumer.subscribe(["t"]))
    await attempt(lambda: consumer.receive_batch(timeout=LIMIT))
    # The next response has a hint.
    cluster.move_leader("t", 0, 1 - (cluster.partition("t", 0).leader or 0))
    await attempt(lambda: consumer.receive_batch(timeout=LIMIT))
    cluster.fail("ListOffsets", 6, times=None)  # not the leader, for ever
    await attempt(lambda: consumer.seek_to_end([T0]))
    await attempt(lambda: consumer.position(T0, timeout=LIMIT))
    cluster.fail("Heartbeat", 25, times=1)  # fenced
    await attempt(lambda: consumer.receive_batch(timeout=LIMIT))
    await attempt(lambda: consumer.receive_batch(timeout=LIMIT))


async def share(
    queue: trikafka.ShareConsumer, cluster: ScriptedCluster, errors: list[BaseException]
) -> None:
    try:
        await cluster.seen("ShareGroupHeartbeat")
        with trio.move_on_after(LIMIT):
            delivery = await queue.receive()
            delivery.accept()
            with trio.CancelScope(shield=True):  # it has a limit of its own
                await delivery.acknowledged()
        queue.health()
        await queue.flush()
    except (trikafka.TrikafkaError, trio.ClosedResourceError) as error:
        errors.append(error)


async def produce(producer: trikafka.Producer) -> None:
    await producer.send("t", b"1")
    await producer.enqueue("t", b"2")
    producer.send_nowait("t", b"3")
    with contextlib.suppress(trio.WouldBlock):
        producer.send_nowait("u", b"3")
    await producer.flush(timeout=LIMIT)
    producer.statistics()
    if pa is not None:
        await producer.send_arrow("t", pa.table({"value": [b"4", b"5"]}))
    for _ in range(20):
        await producer.enqueue("t", b"x" * 10_000)


async def transact(
    producer: trikafka.Producer, cluster: ScriptedCluster, errors: list[BaseException]
) -> None:
    """Run transactions of version 1, which has more requests."""
    cluster.fail("AddPartitionsToTxn", 15, times=1)  # no coordinator at the moment
    for end in ("commit", "abort", "prepare"):
        try:
            async with producer.transaction(timeout=LIMIT) as txn:
                producer.send_nowait("t", b"1")
                if end != "prepare":
                    await txn.send_offsets({T0: 1}, trikafka.GroupMetadata("g"), timeout=LIMIT)
                    await producer.flush(timeout=LIMIT)
                await getattr(txn, end)(timeout=LIMIT)
        except (trikafka.TrikafkaError, trio.ClosedResourceError) as error:
            errors.append(error)


def texts_seen(errors: list[BaseException], caplog: pytest.LogCaptureFixture) -> str:
    """Return all texts that the user sees."""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    lines += [f"{type(error).__name__}: {error}" for error in errors]
    return "\n".join(lines)


@pytest.mark.parametrize(("kind", "member", "fault"), ROWS, ids=IDS)
async def test_error_names_plugin_seat_and_method(
    kind: ManagerKind,
    member: str,
    fault: str,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    plugin = Takes(**{kind: lambda context: Faulty(context.builtin(kind), member, fault)})
    common = {
        "plugins": [plugin],
        "default_api_timeout_ms": LIMIT * 1000,
        "request_timeout_ms": 1000,
        "close_timeout_ms": LIMIT * 1000,
        "retry_backoff_max_ms": 100,
    }
    errors: list[BaseException] = []
    name = f"plugin 'Takes': {kind}.{member}"

    def is_named() -> bool:
        return name in texts_seen(errors, caplog)

    with trio.fail_after(120):
        async with ScriptedCluster(
            nodes=2, topics={"t": 1, "u": 1}, transaction_version=1
        ) as cluster:
            cluster.append("t", 0, [b"x"] * 10)
            common |= {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
            try:
                if kind == "transactions" or member in IN_TRANSACTIONS:
                    cluster.offer("InitProducerId", (0, 6))
                    cluster.transactions.two_phase = True
                    async with trikafka.open_producer(
                        **common, transactional_id="x", two_phase_commit=True
                    ) as producer:
                        await producer.partitions_for("t")
                        await transact(producer, cluster, errors)
                elif kind == "produce":
                    settings = {
                        "buffer_memory": 70_000,
                        "max_block_ms": LIMIT * 1000,
                        "delivery_timeout_ms": 9000,
                    }
                    async with trikafka.open_producer(**common, **settings) as producer:
                        await produce(producer)
                elif kind.startswith("share"):
                    cluster.shares.times.auto_offset_reset = "earliest"
                    async with trikafka.open_share_consumer("t", **common, group_id="g") as queue:
                        with trio.move_on_after(3 * LIMIT):
                            await share(queue, cluster, errors)
                else:
                    more = {
                        "group_id": "g",
                        "auto_offset_reset": "earliest",
                        "group_protocol": "classic",
                    }
                    more["heartbeat_interval_ms"] = 500
                    async with trikafka.open_consumer("t", **common, **more) as consumer:
                        await walk(consumer, cluster, errors, is_named)
            except Named:
                pass
            except Exception as error:
                errors.append(error)
            text = texts_seen(errors, caplog)
            assert name in text, text
            if fault in ("raises", "raises a group"):
                assert "oops" in text
            assert all(isinstance(error, trikafka.TrikafkaError) for error in errors), errors


async def test_run_that_returns_ends_the_client(autojump_clock: MockClock) -> None:
    class Idle:
        async def run(self) -> None:
            await trio.sleep(1)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(  # noqa: PT012
            trikafka.ClientFailedError, match=r"plugin 'Takes': fetch.run returned, "
        ) as caught:
            given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
            async with trikafka.open_consumer(
                plugins=[Takes(fetch=lambda context: Idle())], **given
            ) as consumer:
                consumer.assign([T0])
                began = trio.current_time()
                await consumer.receive()
        assert trio.current_time() - began == pytest.approx(1.0, abs=0.01)
        assert isinstance(caught.value.__cause__, PluginError)


@pytest.mark.parametrize("timeout", [0.0, 0.5, 7.0])
async def test_hanging_commit_keeps_the_calls_limit(
    timeout: float, autojump_clock: MockClock
) -> None:
    plugin = Takes(commit=lambda context: Faulty(context.builtin("commit"), "commit", "hangs"))
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
            "enable_auto_commit": False,
        }
        async with trikafka.open_consumer(plugins=[plugin], **given) as consumer:
            consumer.assign([T0])
            began = trio.current_time()
            with pytest.raises(KafkaTimeoutError) as caught:
                await consumer.commit({T0: 1}, timeout=timeout)
            assert trio.current_time() - began == pytest.approx(timeout + 0.05)
            assert str(caught.value) == (
                f"commit did not finish within {timeout:g} s"
                " (1 attempt; the last one failed with: plugin 'Takes': commit.commit did not "
                "return)"
            )
            # The user's own scopes cancel at once and raise nothing.
            with trio.move_on_after(0.2) as scope:
                await consumer.commit({T0: 1}, timeout=9)
            assert scope.cancelled_caught


# A receive raises WouldBlock where no record is ready, and ClosedResourceError where the consumer is
# closed: a program would take those of the listener's own channel for them.
@pytest.mark.parametrize(
    "error", [ValueError("not today"), trio.WouldBlock("today"), trio.ClosedResourceError("today")]
)
async def test_failing_listener_of_a_plugin_is_named(
    error: Exception, autojump_clock: MockClock
) -> None:
    class Listener(trikafka.RebalanceListener):
        async def on_partitions_assigned(self, partitions: Any) -> None:
            raise error

    class Plugin:
        @trikafka.hookimpl
        def trikafka_rebalance_listener(self) -> Listener:
            return Listener()

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
        }
        async with trikafka.open_consumer("t", plugins=[Plugin()], **given) as consumer:
            with pytest.raises(
                PluginError,
                match=r"^plugin 'Plugin': listener.on_partitions_assigned failed: .*today",
            ) as caught:
                await consumer.receive()
            assert caught.value.__cause__ is error


async def test_hanging_listener_of_a_plugin_is_named(autojump_clock: MockClock) -> None:
    class Listener(trikafka.RebalanceListener):
        async def on_partitions_assigned(self, partitions: Any) -> None:
            await trio.sleep_forever()

    class Plugin:
        @trikafka.hookimpl
        def trikafka_rebalance_listener(self) -> Listener:
            return Listener()

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_consumer(
            "t", **given, group_id="g", max_poll_interval_ms=50_000, plugins=[Plugin()]
        ) as consumer:
            with pytest.raises(
                KafkaTimeoutError,
                match=r"on_partitions_assigned of <plugin 'Plugin': listener, Listener>",
            ):
                await consumer.receive()


class SyncListener(trikafka.RebalanceListener):
    def on_partitions_revoked(self, partitions: Any) -> None: ...  # type: ignore[override]


class MisspeltListener(trikafka.RebalanceListener):
    """The method of the base class would be called in the place of this one, and do nothing."""

    async def on_partition_revoked(self, partitions: Any) -> None: ...


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (SyncListener, "Listener.*, of which on_partitions_revoked must be `async def`"),
        (MisspeltListener, "on_partition_revoked of .* did you mean on_partitions_revoked"),
    ],
)
async def test_wrong_listener_of_a_plugin_is_refused(
    listener: type[trikafka.RebalanceListener], says: str
) -> None:
    class Plugin:
        @trikafka.hookimpl
        def trikafka_rebalance_listener(self) -> trikafka.RebalanceListener:
            return listener()

    with pytest.raises(PluginError, match=rf"^plugin 'Plugin': .*{says}"):
        async with trikafka.open_consumer(bootstrap_servers="h:1", plugins=[Plugin()]):
            pass


async def test_sync_listener_is_refused_by_subscribe(autojump_clock: MockClock) -> None:
    class Listener(trikafka.RebalanceListener):
        def on_partitions_assigned(self, partitions: Any) -> None: ...  # type: ignore[override]

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
        }
        async with trikafka.open_consumer(**given) as consumer:
            with pytest.raises(
                trikafka.ConfigurationError,
                match=r"must be `async def`: on_partitions_assigned of ",
            ):
                consumer.subscribe(["t"], Listener())
            assert not consumer.subscription()


async def test_async_observer_is_refused_at_opening() -> None:
    class Watcher(trikafka.interfaces.Observer):
        async def closed(self) -> None: ...  # type: ignore[override]

    class Plugin:
        @trikafka.hookimpl
        def trikafka_observer(self) -> Watcher:
            return Watcher()

    with pytest.raises(
        PluginError, match=r"^plugin 'Plugin': .*Watcher.*, of which closed must be plain functions"
    ):
        async with trikafka.open_producer(bootstrap_servers="h:1", plugins=[Plugin()]):
            pass


async def test_assignor_without_a_name_is_refused() -> None:
    class Named:
        name = 3
        cooperative = False

        def assign(self, members: Any, partitions: Any) -> Any: ...

    class Plugin:
        @trikafka.hookimpl
        def trikafka_assignor(self, name: str) -> object:
            return Named()

    with pytest.raises(
        PluginError,
        match=r"^plugin 'Plugin': .* for 'mine' an assignor whose name is not text: 3$",
    ):
        async with trikafka.open_consumer(
            "t",
            bootstrap_servers="h:1",
            plugins=[Plugin()],
            group_id="g",
            group_protocol="classic",
            partition_assignment_strategy=["mine"],
        ):
            pass


async def test_failing_user_data_is_named(autojump_clock: MockClock) -> None:
    class Broken:
        name = "broken"
        cooperative = False

        def assign(self, members: Any, partitions: Any) -> Any: ...

        def user_data(self, topics: Any, last: Any) -> bytes:
            raise KeyError("oops")

    class Plugin:
        @trikafka.hookimpl
        def trikafka_assignor(self, name: str) -> object:
            return Broken()

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        given |= {"group_id": "g", "group_protocol": "classic"}
        with pytest.raises(
            (PluginError, trikafka.ClientFailedError),
            match=r"plugin 'Plugin': assignor 'broken'.user_data failed: KeyError",
        ):
            async with trikafka.open_consumer(
                "t", plugins=[Plugin()], partition_assignment_strategy=["broken"], **given
            ) as consumer:
                await consumer.receive_batch(timeout=10)


async def test_unknown_seat_is_named() -> None:
    class Plugin:
        @trikafka.hookimpl
        def trikafka_request_manager(self, kind: str, context: Any) -> object:
            return context.builtin("fetsh") if kind == "fetch" else None

    with pytest.raises(trikafka.IllegalStateError, match="there is no seat 'fetsh'; the seats: "):
        async with trikafka.open_consumer(bootstrap_servers="h:1", plugins=[Plugin()]):
            pass


@pytest.mark.parametrize("error", [ZeroDivisionError(), trio.WouldBlock()])
async def test_failing_assignor_is_named(error: Exception, autojump_clock: MockClock) -> None:
    class Broken:
        name = "broken"
        cooperative = False

        def assign(self, members: Any, partitions: Any) -> Any:
            raise error

    class Plugin:
        @trikafka.hookimpl
        def trikafka_assignor(self, name: str) -> object:
            return Broken()

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "g",
            "group_protocol": "classic",
        }
        async with trikafka.open_consumer(
            "t", plugins=[Plugin()], partition_assignment_strategy=["broken"], **given
        ) as consumer:
            with pytest.raises(
                PluginError,
                match=rf"^plugin 'Plugin': assignor 'broken'.assign failed: {type(error).__name__}",
            ):
                await consumer.receive_batch(timeout=10)


@pytest.mark.parametrize("method", ["opened", "failed", "closed"])
async def test_failing_observer_never_ends_the_client(
    method: str, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    class Watcher:
        def __getattr__(self, name: str) -> Any:
            if name not in ("opened", "failed", "closed"):
                raise AttributeError(name)
            return self.refuse

        def refuse(self, *args: object) -> None:
            if method == "failed" and not (args and isinstance(args[0], Exception)):
                return
            if method == "closed" and args:
                return
            if method == "opened" and (not args or isinstance(args[0], Exception)):
                return
            raise ValueError("no")

    class Plugin:
        @trikafka.hookimpl
        def trikafka_observer(self) -> object:
            return Watcher()

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        if method == "failed":
            plugin = Takes(fetch=lambda context: Faulty(context.builtin("fetch"), "run", "raises"))
            with pytest.raises(trikafka.ClientFailedError, match=r"fetch\.run failed: KeyError"):
                async with trikafka.open_consumer(plugins=[Plugin(), plugin], **given):
                    await trio.sleep_forever()
        else:
            async with trikafka.open_producer(plugins=[Plugin()], **given) as producer:
                await producer.send("t", b"x")
    said = [record.getMessage() for record in caplog.records if record.name == "trikafka.plugins"]
    assert said == [f"plugin 'Plugin': observer.{method} failed: ValueError('no')"]


@pytest.mark.parametrize("chosen", ["raise", 7, "0", None, True])
async def test_failing_partitioner_is_named(chosen: Any, autojump_clock: MockClock) -> None:
    def choose(topic: str, key: bytes | None, numbers: Any) -> Any:
        if chosen == "raise":
            raise KeyError(key)
        return chosen

    class Plugin:
        @trikafka.hookimpl
        def trikafka_partitioner(self, name: str) -> object:
            return choose

    what = "failed: KeyError" if chosen == "raise" else f"chose {chosen!r} of 2 partitions of 't'"
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        given = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        async with trikafka.open_producer(
            plugins=[Plugin()], partitioner="mine", **given
        ) as producer:
            with pytest.raises(PluginError) as caught:
                await producer.send("t", b"v", key=b"k")
            assert str(caught.value).startswith(f"plugin 'Plugin': partitioner 'mine' {what}")
            assert (await producer.send("t", b"v", partition=1)).partition == 1


@pytest.mark.parametrize("fault", ["lies", "raises"])
async def test_failing_drop_ends_the_close(
    fault: str, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """The close is shielded there, so that no limit of the program's would end it."""

    class Drops(Faulty):
        def _plain(self, name: str) -> Callable[..., Any]:
            return (lambda *args, **kwargs: True) if fault == "lies" else super()._plain(name)

    plugin = Takes(produce=lambda context: Drops(context.builtin("produce"), "drop", fault))
    with trio.fail_after(120):
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            cluster.silence("Produce", times=None)
            with contextlib.suppress(trikafka.PluginError):
                async with trikafka.open_producer(
                    bootstrap_servers=cluster.bootstrap_servers,
                    dial=cluster.dial,
                    plugins=[plugin],
                    close_timeout_ms=1000,
                ) as producer:
                    await producer.enqueue("t", b"1")
            await producer.aclose()
            with pytest.raises(trio.ClosedResourceError):
                producer.send_nowait("t", b"2")
    assert ("plugin 'Takes': produce.drop has returned True 100 times" in caplog.text) == (
        fault == "lies"
    )


@pytest.mark.parametrize("counts", [[5, 4], [3, 9], [7]], ids=str)
def test_a_drop_without_progress_is_bounded(counts: list[int]) -> None:
    """Also one whose number of unsettled batches goes up and down."""
    left = itertools.cycle(counts)
    accumulator = SimpleNamespace(unsettled=lambda: [None] * next(left))
    slot = PluginSlot("'P'", "produce", 60.0, lambda: False)
    drop = _bounded_drop(SimpleNamespace(accumulator=accumulator), lambda: True, slot)
    assert sum(1 for _ in itertools.takewhile(bool, (drop() for _ in range(1000)))) < 200


def test_a_drop_that_fails_batches_goes_on() -> None:
    left = iter(range(1000, 0, -1))
    accumulator = SimpleNamespace(unsettled=lambda: [None] * next(left))
    slot = PluginSlot("'P'", "produce", 60.0, lambda: False)
    drop = _bounded_drop(SimpleNamespace(accumulator=accumulator), lambda: True, slot)
    assert all(drop() for _ in range(1000))
