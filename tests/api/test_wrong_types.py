"""Arguments of a wrong type: one error of ours that shows the right line."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

import trikafka
from trikafka import ConfigurationError, NotOpenError
from trikafka.config import ProducerConfig
from trikafka.testing import ScriptedCluster


@pytest.fixture
async def settings(autojump_clock: trio.testing.MockClock) -> AsyncIterator[dict[str, Any]]:
    async with ScriptedCluster(topics={"orders": 1}) as cluster:
        yield {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}


async def handler(*_: object) -> None: ...


def opened(call: str, client: str, rest: str) -> str:
    return (
        f"; write: async with trikafka.open_{client}(...) as {client}: await "
        f"trikafka.{call}({rest})"
    )


@pytest.mark.parametrize(
    ("call", "rest", "says"),
    [
        (lambda given: trikafka.run_tasks(given, handler), "consumer, handler", "run_tasks"),
        (
            lambda given: trikafka.process(given, given, handler),
            "consumer, producer, handler",
            "process",
        ),
        (
            lambda given: trikafka.ensure_topics(given, {}),
            'consumer, {"jobs": NewTopic(3)}',
            "ensure_topics",
        ),
    ],
)
async def test_wrong_consumer_is_explained(
    call: Callable[[Any], Any], rest: str, says: str
) -> None:
    """Python's own error was ``'str' object has no attribute '_config'``."""
    shown = {
        "orders": "'orders'",
        trikafka.open_consumer("orders", group_id="g"): "one that is not open yet",
        trikafka.open_producer(): "trikafka.open_producer(...)",
        handler: "the function handler",
        ProducerConfig(): "a ProducerConfig",
        "u:s3cr3t@host:1": "a str",
    }
    for given, told in shown.items():
        with pytest.raises(ConfigurationError) as caught:
            await call(given)
        assert str(caught.value) == f"{says}() takes an open consumer, not {told}" + opened(
            says, "consumer", rest
        )


async def test_wrong_producer_is_explained(
    autojump_clock: trio.testing.MockClock, settings: dict[str, Any]
) -> None:
    async with trikafka.open_consumer(
        "orders", group_id="g", enable_auto_commit=False, **settings
    ) as consumer:
        wrong: Any = trikafka.open_producer()
        with pytest.raises(
            ConfigurationError,
            match=r"^run_tasks\(\) takes an open producer, not one that is not open yet; write",
        ):
            await trikafka.run_tasks(consumer, handler, producer=wrong, dead_letter="d")
        wrong = consumer
        with pytest.raises(
            ConfigurationError,
            match=r"^process\(\) takes an open producer, not a Consumer; write: async with",
        ):
            await trikafka.process(consumer, wrong, handler)


@pytest.mark.parametrize(
    "value", [pa.array([b"a"]), pa.chunked_array([[b"a"]]), [b"a"], {"value": [b"a"]}]
)
async def test_column_is_no_table(
    autojump_clock: trio.testing.MockClock, value: Any, settings: dict[str, Any]
) -> None:
    """Arrow's own error was ``Cannot import schema:

    ArrowSchema describes non-struct type binary``.
    """
    async with trikafka.open_producer(**settings) as producer:
        for send in (producer.send_arrow, producer.enqueue_arrow):
            with pytest.raises(ConfigurationError) as caught:
                await send("orders", value)
            assert str(caught.value).startswith(type(value).__name__)
            assert str(caught.value).endswith(
                ': give a table with the values in a column, such as pa.table({"value": values})'
            )
        assert producer.statistics().buffer_used == 0


async def told() -> None: ...


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"sink_options": "key=hunter2"},
            r'sink_options must be a mapping .* sink_options=\{"name": "value"\}, not a text$',
        ),
        ({"sink_options": ["delta"]}, r"sink_options must be a mapping .*, not a list$"),
        ({"sink_options": {5: "x"}}, r"sink_options must be a mapping .*: 5 is not a name$"),
        (
            {"on_progress": 5},
            r"^on_progress must be a plain function \(def\), called with an ExportProgress, not 5$",
        ),
        ({"on_progress": handler}, r"^on_progress must be a plain function .*, not an async one$"),
        ({"fail_on_data_loss": "no"}, "^fail_on_data_loss must be True or False, not 'no'$"),
        (
            {"start": None},
            "^start must be 'earliest', a time in milliseconds or a mapping of offsets, not None$",
        ),
        (
            {"task_timeout": 5},
            r"^unknown setting 'task_timeout' for export\(\); did you mean 'task_timeout_ms'\?$",
        ),
        (
            {"max_records": 5},
            r"^unknown setting 'max_records' for export\(\); did you mean "
            r"'max_records_per_file'\?$",
        ),
        ({"topics": 5}, "^export needs the names of one or more topics, not 5$"),
        (
            {"topics": [["orders"]]},
            "^export needs the names of one or more topics, and one of them is a list$",
        ),
        (
            {"destination": 5},
            "^the destination must be a path or an address, such as '/data/flights', not 5$",
        ),
        (
            {"destination": b"/data"},
            "^the destination must be a path or an address, .*, not a bytes$",
        ),
    ],
)
async def test_wrong_export_arguments_are_explained(
    given: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """An error of Python's, a wrong hint, or an error far into the run would not help."""
    where = tmp_path / "out"
    arguments: dict[str, Any] = {
        "topics": "orders",
        "destination": where,
        "bootstrap_servers": "nowhere:1",
        **given,
    }
    with pytest.raises(ConfigurationError, match=says):
        await trikafka.export(**arguments)
    assert not where.exists()


async def test_wrong_sink_options_are_explained(tmp_path: Path) -> None:
    wrong: Any = "delta"
    with pytest.raises(ConfigurationError, match="sink_options must be a mapping"):
        await trikafka.check_export(tmp_path, sink_options=wrong)


async def test_sink_batches_names_its_successor(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"was removed: examples/group_files\.py"):
        await trikafka.sink_batches(object(), tmp_path, flush_ms=1_000)


@pytest.mark.parametrize("acks", [1.0, 0.0, -1.0, True])
def test_acks_is_a_whole_number(acks: Any) -> None:
    """Once, 1.0 counted as 1, and 0.0 as 0."""
    with pytest.raises(
        ConfigurationError, match=rf"^acks must be one of 0, 1, -1, 'all', not {acks}$"
    ):
        ProducerConfig.build({"acks": acks})


def test_unopened_client_is_explained() -> None:
    """The traceback names no private class."""
    client: Any = trikafka.open_consumer("orders", group_id="g")
    with pytest.raises(NotOpenError) as caught:
        client.receive()
    assert isinstance(caught.value, trikafka.IllegalStateError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (NotOpenError, str(caught.value))


async def test_clients_are_not_copied(
    autojump_clock: trio.testing.MockClock, settings: dict[str, Any]
) -> None:
    """Once, pickle named a class of kafka-python, and a copy was half a client."""
    async with (
        trikafka.open_consumer("orders", group_id="g", **settings) as consumer,
        trikafka.open_producer(**settings) as producer,
        trikafka.open_share_consumer("orders", group_id="s", **settings) as queue,
        trikafka.open_admin(**settings) as admin,
    ):
        for client in (consumer, producer, queue, admin):
            name = type(client).__name__
            for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=rf"^trikafka\.{name} has .* in each process"):
                    duplicate(client)


async def test_statistics_are_plain_values(
    autojump_clock: trio.testing.MockClock, settings: dict[str, Any]
) -> None:
    """A program sends them to another process, or makes JSON of them."""
    async with (
        trikafka.open_consumer("orders", group_id="g", **settings) as consumer,
        trikafka.open_producer(**settings) as producer,
    ):
        await producer.send("orders", b"x")
        while not consumer.assignment():
            await consumer.receive_batch(timeout=0.1)
        await consumer.position(trikafka.TopicPartition("orders", 0))
        for found in (consumer.statistics(), producer.statistics()):
            assert pickle.loads(pickle.dumps(found)) == found
            assert dataclasses.asdict(found)["connections"]


async def test_health_can_be_pickled(
    autojump_clock: trio.testing.MockClock, settings: dict[str, Any]
) -> None:
    """A program sends it to the process that answers its probes."""
    async with (
        trikafka.open_consumer("orders", group_id="g", **settings) as consumer,
        trikafka.open_share_consumer("orders", group_id="s", **settings) as queue,
        trikafka.open_producer(**settings) as producer,
    ):
        while not consumer.assignment():
            await consumer.receive_batch(timeout=0.1)
        await consumer.position(trikafka.TopicPartition("orders", 0))
        for client in (consumer, queue, producer):
            found: Any = client.health()
            assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found


async def test_value_that_is_not_bytes_is_explained(
    autojump_clock: trio.testing.MockClock, settings: dict[str, Any]
) -> None:
    value: Any = {"id": 1}
    async with trikafka.open_producer(**settings) as producer:
        with pytest.raises(TypeError) as caught:
            await producer.send("orders", value)
    assert str(caught.value) == (
        "value must be bytes-like or None, not dict; encode it first, such as "
        "value=json.dumps(value).encode()"
    )
