"""Mistakes of newcomers with ``run_tasks`` and ``process``: one sentence, before anything is done
or lost.
"""

from __future__ import annotations

import inspect
import logging
import re
import signal
from collections.abc import AsyncIterator
from functools import partial, wraps
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from tasking import Values, cluster_of, committed, consumer_of, producer_of, running, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ConfigurationError, NewTopic, Record, RetryPolicy
from trikafka.errors import UnknownTopicOrPartitionError
from trikafka.tasks.callbacks import check_async
from trikafka.testing import ScriptedCluster


async def two(record: Record, txn: object) -> None: ...


async def none() -> None: ...


async def one(record: Record) -> None: ...


def test_handler_whose_signature_fails_is_called() -> None:
    """On Python 3.14 a signature fails for an annotation that only type checkers import."""

    class Odd:
        @property
        def __signature__(self) -> Any:
            raise NameError("name 'Order' is not defined")

        async def __call__(self, record: Record) -> None: ...

    check_async("handler", Odd(), "record")


class Handlers:
    """Handlers of all kinds."""

    async def right(self, record: Record) -> None: ...

    def returns(self, record: Record) -> Any:
        if record:
            return self.right(record)
        return None

    def chooses(self, record: Record) -> Any:
        return self.right(record) if record else None

    def raises(self, record: Record) -> None:
        raise NotImplementedError

    @staticmethod
    def decorated(function: Any) -> Any:
        @wraps(function)
        async def wrapper(record: Record) -> None:
            function(record)

        return wrapper

    def plain(self, record: Record) -> None:
        if not record:
            return
        print(record)

    def __call__(self, record: Record) -> None:
        print(record)

    async def yields(self, record: Record) -> AsyncIterator[Record]:
        yield record


@pytest.mark.parametrize(
    "handler",
    [
        Handlers().plain,
        Handlers(),
        partial(Handlers.plain, Handlers()),
        lambda record: None,
        Handlers().yields,
    ],
)
def test_a_handler_without_a_result_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"handler must be an async function \(async def"):
        check_async("handler", handler, "record")


@pytest.mark.parametrize(
    "handler",
    [
        Handlers().right,
        Handlers().returns,
        Handlers().chooses,
        Handlers().raises,
        partial(Handlers.right, Handlers()),
        lambda record: one(record),
        Handlers.decorated(Handlers().plain),
        Mock(),
        print,
        Values,
    ],
)
def test_a_handler_that_may_be_awaited_is_called(handler: Any) -> None:
    check_async("handler", handler, "record")


def forgetful(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any) -> None:
        function(*args)

    return wrapper


def yielding(function: Any) -> Any:
    @wraps(function)
    async def wrapper(*args: Any) -> AsyncIterator[None]:
        yield await function(*args)

    return wrapper


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (forgetful(one), "the decorator of one returns nothing"),
        (partial(forgetful(two), txn=None), "the decorator of two returns nothing"),
        (yielding(one), "the decorator of one has a yield, which makes it an async generator"),
        (forgetful(none).__get__(3), "the decorator of none returns nothing"),
    ],
)
def test_decorator_without_an_awaitable_is_named(handler: Any, said: str) -> None:
    """The function below it may be right."""
    with pytest.raises(ConfigurationError, match=rf"\(async def\), but {said}$"):
        check_async("handler", handler, "record")


def end_of(cluster: ScriptedCluster, topic: str) -> int:
    return sum(
        len(cluster.records(topic, number))
        for number in range(len(cluster._state.topics[topic].partitions))
    )


@pytest.mark.parametrize("transactional", [False, True])
async def test_plain_function_is_found_at_its_first_call(
    autojump_clock: Clock, transactional: bool
) -> None:
    """Its record is no dead letter, is not retried, and nothing of it is committed."""
    seen: list[Record] = []
    name: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    async with (
        cluster_of(1, records=5, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, **name) as producer,
    ):
        options: dict[str, Any] = {
            "producer": producer,
            "dead_letter": "dead",
            "retry": RetryPolicy(Exception, attempts=3),
        }
        with (
            trio.fail_after(60),
            pytest.raises(
                ConfigurationError, match=r"handler must be an async function .* returned None"
            ),
        ):
            await trikafka.run_tasks(consumer, seen.append, **options)  # type: ignore[arg-type]
        assert [record.offset for record in seen] == [0]
        assert end_of(cluster, "dead") == 0
        assert committed(cluster) is None
        again = Values()
        async with running(consumer, again, **options):  # nothing is lost
            await until(lambda: len(again.done) == 5)


@pytest.mark.parametrize("kind", ["run_tasks", "process"])
async def test_forgotten_await_ends_the_run(autojump_clock: Clock, kind: str) -> None:
    """Nothing was done for the record, so it is not committed."""

    async def work(record: object) -> None:
        raise AssertionError("this work never begins")

    async def handler(record: object, *_: object) -> object:
        return work(record)

    async with (
        cluster_of(1, records=5) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, transactional_id="x") as producer,
    ):
        run: Any = partial(trikafka.run_tasks, consumer, handler)
        if kind == "process":
            run = partial(trikafka.process, consumer, producer, handler)
        with trio.fail_after(60), pytest.raises(ConfigurationError, match=r"write 'await .*work"):
            await run()
        assert committed(cluster) is None


class Unjudged(type):
    """A class of errors whose membership test fails."""

    def __instancecheck__(cls, thing: object) -> bool:
        raise LookupError("no such code")


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_failing_judgement_is_raised_alone(
    autojump_clock: Clock, transactional: bool, concurrency: int
) -> None:
    """In no group, and nothing is committed."""
    kind: Any = Unjudged("Kind", (Exception,), {})
    name: dict[str, Any] = {"transactional_id": "x"} if transactional else {}

    async def fails(record: Record) -> None:
        raise ValueError(record.offset)

    async with (
        cluster_of(1, records=5, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, **name) as producer,
    ):
        with trio.fail_after(60), pytest.raises(LookupError, match="no such code"):
            await trikafka.run_tasks(
                consumer,
                fails,
                producer=producer,
                dead_letter="dead",
                retry=RetryPolicy(kind),
                concurrency=concurrency,
            )
        assert end_of(cluster, "dead") == 0
        assert committed(cluster) is None


class Flagged(Exception):
    """An error of another library, whose attribute has a name of trikafka's."""

    fatal = True


async def test_foreign_flags_end_no_run(autojump_clock: Clock) -> None:
    handler = Values()

    async def fails(record: Record) -> None:
        if record.offset == 1:
            raise Flagged
        await handler(record)

    async with (
        cluster_of(1, records=3, topics={"dead": 1}) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster) as producer,
    ):
        async with running(consumer, fails, producer=producer, dead_letter="dead"):
            await until(lambda: len(handler.done) == 2)
        assert end_of(cluster, "dead") == 1


async def test_plain_function_may_return_an_awaitable(
    autojump_clock: Clock,
) -> None:
    handler = Values()
    async with cluster_of(1, records=3) as cluster, consumer_of(cluster) as consumer:
        async with running(consumer, lambda record: handler(record)):
            await until(lambda: len(handler.done) == 3)


async def test_plain_prepare_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster, consumer_of(cluster) as consumer:
        with (
            trio.fail_after(60),
            pytest.raises(ConfigurationError, match="prepare must be an async function"),
        ):
            await trikafka.run_tasks(consumer, one, prepare=lambda tp: None)  # type: ignore[arg-type, return-value]


async def test_wrong_handler_signature_is_refused(autojump_clock: Clock) -> None:
    called = one(None)  # type: ignore[arg-type]
    wrong: list[tuple[str, Any, dict[str, Any]]] = [
        (r"give one and not one\(\.\.\.\)", called, {}),
        (r"handler must be an async function, called with \(record\), not 3", 3, {}),
        (
            r"handler is called with \(record\), which two\(record.*missing a required argument: "
            r"'txn'",
            two,
            {},
        ),
        (r"called with \(record\), which none\(\)", none, {}),
        (r"called with \(batch\)", two, {"batches": True}),
        (r"prepare is called with \(partition\)", one, {"prepare": none}),
    ]
    async with cluster_of(1, records=1) as cluster, consumer_of(cluster) as consumer:
        for match, handler, options in wrong:
            with pytest.raises(ConfigurationError, match=match):
                await trikafka.run_tasks(consumer, handler, **options)
    # The coroutine was closed, so Python does not warn of it.
    assert inspect.getcoroutinestate(called) == inspect.CORO_CLOSED


async def test_wrong_handler_of_process_is_refused(autojump_clock: Clock) -> None:
    async with (
        cluster_of(1, records=5) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, transactional_id="x") as producer,
    ):
        with pytest.raises(
            ConfigurationError, match=r"handler is called with \(batch, txn\), which one\("
        ):
            await trikafka.process(consumer, producer, one)  # type: ignore[arg-type]
        plain: Any = lambda batch, txn: len(batch)  # noqa: E731
        with (
            trio.fail_after(60),
            pytest.raises(
                ConfigurationError, match=r"handler must be an async function .* returned 5"
            ),
        ):
            await trikafka.process(consumer, producer, plain)
        assert committed(cluster) is None


@pytest.mark.parametrize(
    ("option", "match"),
    [
        (
            {"retry": 3},
            r"retry must be a RetryPolicy, such as RetryPolicy\(ConnectionError, attempts=3\), "
            r"not 3",
        ),
        (
            {"stop_on": signal.SIGTERM},
            r"stop_on must be a collection of signals, such as \[signal.SIGTERM\]",
        ),
        ({"stop_on": "SIGTERM"}, "stop_on must be a collection"),
        ({"stop_on": ["SIGTERM"]}, "stop_on must hold signals"),
        ({"stop_on": [signal.SIGKILL]}, "stop_on must hold signals"),
        ({"stop_on": [True]}, "stop_on must hold signals.* not True"),
        ({"topics": ["x"]}, r"topics must be a mapping of names to NewTopic.*\['x'\]"),
        ({"topics": {"x": 3}}, "topics must have a NewTopic for 'x', not 3"),
        ({"topics": {"": NewTopic(1)}}, "topics must be names"),
        ({"topics": {"no name": NewTopic(1)}}, "topics: topic 'no name' has ' ' in its name"),
        ({"dead_letter": 3}, "dead_letter must be the name of a topic"),
        ({"batches": "no"}, "batches must be True or False, not 'no'"),
    ],
)
async def test_wrong_task_options_are_refused(
    autojump_clock: Clock, option: dict[str, Any], match: str
) -> None:
    handler = Values()
    async with cluster_of(1, records=1) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(ConfigurationError, match=match):
            await trikafka.run_tasks(consumer, handler, **option)
        assert handler.seen == []


async def test_consumer_must_leave_commits_to_run_tasks(autojump_clock: Clock) -> None:
    async with cluster_of(1) as cluster:
        async with consumer_of(cluster, enable_auto_commit=True) as consumer:
            with pytest.raises(
                ConfigurationError,
                match=r"^run_tasks commits by itself: .* enable_auto_commit=False$",
            ):
                await trikafka.run_tasks(consumer, one)
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
        }
        async with trikafka.open_consumer(**given) as consumer:
            with pytest.raises(
                ConfigurationError, match=r"^run_tasks commits what is done, .* with a group_id$"
            ):
                await trikafka.run_tasks(consumer, one)


@pytest.mark.parametrize("transactional", [False, True])
async def test_missing_dead_letter_topic_is_explained(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, transactional: bool
) -> None:
    own = ValueError("the handler's own")
    handler = Values(fail=lambda record: own)
    name: dict[str, Any] = {"transactional_id": "x"} if transactional else {}
    async with (
        cluster_of(1, records=2) as cluster,
        consumer_of(cluster) as consumer,
        producer_of(cluster, **name) as producer,
    ):
        with (
            trio.fail_after(600),
            pytest.raises(UnknownTopicOrPartitionError) as raised,
            caplog.at_level(logging.WARNING),
        ):
            await trikafka.run_tasks(consumer, handler, producer=producer, dead_letter="absent")
        assert committed(cluster) is None
    assert "the dead-letter topic 'absent'" in str(raised.value)
    assert 'topics={"absent": NewTopic(1)}' in str(raised.value)
    assert raised.value.__cause__ is own
    (note,) = raised.value.__notes__
    assert note.startswith("raised while offset 0 of t-0 was written to the dead-letter topic")
    assert "goes to absent after 1 attempt: " in caplog.text


async def test_ctrl_c_may_stop_in_order() -> None:
    done: list[int] = []

    async def handler(record: Record) -> None:
        if not done:
            signal.raise_signal(signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked(0.01)  # Trio has delivered the signal
        done.append(record.offset)

    async with cluster_of(1, records=5) as cluster, consumer_of(cluster) as consumer:
        with trio.fail_after(240):
            await trikafka.run_tasks(consumer, handler, stop_on=[signal.SIGTERM, signal.SIGINT])
        assert done == [0]
        assert committed(cluster) == 1


async def test_numbers_beyond_any_float_are_allowed(autojump_clock: Clock) -> None:
    """They stand for infinity, as in ``timeout=``."""
    huge = 10**400
    policy = trikafka.RetryPolicy(ValueError, backoff_ms=huge, backoff_max_ms=50)
    failed: list[int] = []

    async def handler(records: Any, txn: Any = None) -> None:
        if len(failed) < 3 and txn is None:
            failed.append(0)
            raise ValueError

    async with (
        cluster_of(1, records=5) as cluster,
        producer_of(cluster, transactional_id="x") as producer,
        consumer_of(cluster) as consumer,
    ):
        async with running(consumer, handler, retry=policy):
            await until(lambda: committed(cluster) == 5)
        cluster.append("t", 0, [b"more"])
        with trio.move_on_after(10):
            await trikafka.process(consumer, producer, handler, commit_interval=huge)
        assert committed(cluster) == 6


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals")
async def test_signal_without_a_name_stops_too() -> None:
    """Python names only the first and the last one of the real-time signals."""
    done: list[int] = []

    async def handler(record: Record) -> None:
        if not done:
            signal.raise_signal(number)
            await trio.testing.wait_all_tasks_blocked(0.01)  # Trio has delivered the signal
        done.append(record.offset)

    number: Any = signal.SIGRTMIN + 2
    async with cluster_of(1, records=5) as cluster, consumer_of(cluster) as consumer:
        with trio.fail_after(240):
            await trikafka.run_tasks(consumer, handler, stop_on=[number])
        assert committed(cluster) == len(done) == 1


@pytest.mark.parametrize("by", ["name", "assignment"])
async def test_dead_letter_topic_is_not_read(autojump_clock: Clock, by: str) -> None:
    """Its records would fail again, each time as another one."""
    async with (
        cluster_of(1, records=1, topics={"t.dead": 1}) as cluster,
        producer_of(cluster) as producer,
        trikafka.open_consumer(
            group_id="g",
            enable_auto_commit=False,
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
        ) as consumer,
    ):
        if by == "name":
            consumer.subscribe(["t", "t.dead"])
        else:
            consumer.assign([trikafka.TopicPartition("t.dead", 0)])
        with pytest.raises(ConfigurationError, match="reads the dead-letter topic"):
            await trikafka.run_tasks(consumer, never, dead_letter="t.dead", producer=producer)


async def test_dead_letters_go_to_another_cluster(autojump_clock: Clock) -> None:
    async def handler(record: trikafka.Record) -> None:
        raise KeyError("bad")

    async with (
        cluster_of(1, records=1) as cluster,
        ScriptedCluster(topics={"t": 1}, cluster_id="other") as other,
        producer_of(other) as producer,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def run() -> None:
            await trikafka.run_tasks(consumer, handler, dead_letter="t", producer=producer)

        nursery.start_soon(run)
        await until(lambda: committed(cluster) == 1)
        assert [record.value for record in other.records("t", 0)] == [b"0"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("exists", [True, False])
async def test_pattern_with_its_dead_letters_ends_the_run(
    autojump_clock: Clock, exists: bool
) -> None:
    """With ``exists=False`` the pattern matches the topic only once the run has made it."""

    async def handler(record: trikafka.Record) -> None:
        raise KeyError("bad")

    topics = {"t.dead": trikafka.NewTopic(1)}
    async with (
        cluster_of(1, records=1, topics={"t.dead": 1} if exists else {}) as cluster,
        producer_of(cluster) as producer,
        trikafka.open_consumer(
            re.compile(r"t.*"),
            group_id="g",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=1000,
            bootstrap_servers=cluster.bootstrap_servers,
            dial=cluster.dial,
        ) as consumer,
    ):
        with (
            pytest.raises(ConfigurationError, match="out of what its pattern matches"),
            trio.fail_after(300),
        ):
            await trikafka.run_tasks(
                consumer, handler, dead_letter="t.dead", producer=producer, topics=topics
            )
        assert len(cluster.records("t.dead", 0)) <= 1


async def never(record: trikafka.Record) -> None:
    pytest.fail("a record was handled")


async def test_signals_need_the_main_thread(autojump_clock: Clock) -> None:
    """Trio's refusal would come from a task of the run, in a group."""

    async def handler(record: Record) -> None: ...

    async def main() -> None:
        async with cluster_of(1) as cluster, consumer_of(cluster) as consumer:
            with pytest.raises(ConfigurationError, match="only for a run in the main thread"):
                await trikafka.run_tasks(consumer, handler, stop_on=[signal.SIGTERM])

    await trio.to_thread.run_sync(trio.run, main)
