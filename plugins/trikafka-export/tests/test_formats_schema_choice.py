"""The choice of a registry's schema to pin, unknown ids, and requests in an outage."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from scripted_registry import ScriptedRegistry, WaitedTime, framed
from test_formats_avro import encoded, field, record
from test_formats_protobuf import a_file, add
from trikafka_export.formats import framing
from trikafka_export.formats import registry as registry_module
from trikafka_export.formats.errors import SchemaError, SchemaRegistryTimeoutError, UnreadableError
from trikafka_export.formats.missing_schemas import MissingSchemas
from trikafka_export.formats.options import RegistrySettings, parse_options
from trikafka_export.formats.parsing import Parser
from trikafka_export.formats.registry import RegistryClient
from trikafka_export.formats.schema_choice import choose, named
from trikafka_export.task import Stopped, Stopper

from trikafka import ConfigurationError, ExportError, KafkaTimeoutError
from trikafka.interfaces import PlannedRange


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry() as registry:
        yield registry


def settings_of(url: str, **more: Any) -> RegistrySettings:
    found = parse_options(
        {
            "value_format": "avro",
            "schema_registry": url,
            "schema_registry_timeout_ms": 30_000,
            **more,
        }
    ).registry
    assert found is not None
    return found


def versions(registry: ScriptedRegistry, id: int, **subjects: int) -> None:
    body = [
        {"subject": subject.replace("__", "-"), "version": version}
        for subject, version in subjects.items()
    ]
    registry.says[f"/schemas/ids/{id}/versions"] = [(200, body)]


def chosen(registry: ScriptedRegistry, ids: list[int], column: str = "value") -> str:
    values = [framed(id, b"") for id in ids]
    found = choose(
        "avro", named(values), "orders", column, settings_of(registry.url), lambda seconds: None
    )
    return str(found["schema"]["name"])


def schemas(registry: ScriptedRegistry, *ids: int) -> None:
    for id in ids:
        registry.avro(id, record(field("x", "int"), name=f"S{id}"))


def test_schema_of_another_subject_is_skipped(registry: ScriptedRegistry) -> None:
    """The newest schema of the topic's own subject is chosen, for values and for keys."""
    schemas(registry, 3, 5, 9)
    versions(registry, 3, orders__value=1)
    versions(registry, 5, orders__value=2)
    versions(registry, 9, payments__value=1, orders__key=7)
    assert chosen(registry, [3, 5, 9, 9, 9]) == "S5"
    assert chosen(registry, [3, 5, 9], "key") == "S9"


def test_version_of_the_subject_decides(registry: ScriptedRegistry) -> None:
    """The versions of a subject decide, not the ids.

    A schema that another subject had first keeps its low id.
    """
    schemas(registry, 3, 5)
    versions(registry, 3, **{"older__value": 1, ":.ctx:orders__value": 2})
    versions(registry, 5, **{":.ctx:orders__value": 1})
    assert chosen(registry, [3, 5]) == "S3"


def test_subject_of_most_values_decides(
    registry: ScriptedRegistry,
) -> None:
    """If records name the subjects, the subject of most values decides."""
    schemas(registry, 3, 5, 9)
    versions(registry, 3, **{"shop.Order": 1})
    versions(registry, 5, **{"shop.Order": 2})
    versions(registry, 9, **{"shop.Payment": 1})
    assert chosen(registry, [3, 3, 5, 9, 9]) == "S5"


def test_registry_without_subjects_gives_newest(registry: ScriptedRegistry) -> None:
    """If the registry lists no subjects, the schema with the highest id is chosen."""
    schemas(registry, 3, 5)
    registry.says["/schemas/ids/3/versions"] = [(405, b"")]
    registry.says["/schemas/ids/5/versions"] = [(200, {"no": "list"})]
    assert chosen(registry, [5, 3, 3]) == "S5"


def test_stray_value_does_not_hide_the_message(
    registry: ScriptedRegistry,
) -> None:
    """A value without message indexes does not hide which message the other values are."""
    file = a_file()
    for name in ("A", "B"):
        add(file.message_type.add(name=name), name.lower(), "int32")
    registry.protobuf(7, file)

    def pinned(*rests: bytes) -> Any:
        found = named(framed(7, rest) for rest in rests)
        return choose(
            "protobuf", found, "t", "value", settings_of(registry.url), lambda seconds: None
        )["message"]

    assert pinned(b"\xff\xff", b"\x02\x02", b"\x02\x02", b"\0") == "p.B"
    with pytest.raises(ExportError, match="no message indexes follow the schema's id 7"):
        pinned(b"\xff", b"")


# --- requests ---


def test_unknown_id_is_requested_once(
    registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown id is requested once for all ranges, and again after a while."""
    schemas(registry, 1)
    good = framed(1, encoded(record(field("x", "int"), name="S1"), {"x": 3}))
    format = {
        "value": "avro",
        "value_framing": "registry",
        "schemas": {"t": {"schema": record(field("x", "int"), name="S1")}},
    }
    values = [framed(1_000 + number % 50, b"?") for number in range(200)] + [good]
    settings = settings_of(registry.url)
    for _ in range(3):
        parser = Parser.of(format, "t", settings)
        assert parser is not None
        table, refused = parser.parse(pa.table({"value": pa.array(values, pa.binary())}))
        assert (table.num_rows, len(refused)) == (1, 200)
        assert refused[7][1] == f"the schema registry {registry.url} has no schema 1007"
    assert len(registry.asked) == 51
    monkeypatch.setattr(registry_module, "_UNKNOWN_FOR", -1.0)
    client = RegistryClient(settings)
    for _ in range(2):
        with pytest.raises(UnreadableError):
            client.schema(1_000)
    assert len(registry.asked) == 53, "it is believed for a while only"


def test_memory_of_unknown_ids_is_bounded(
    registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_MOST_UNKNOWN", 3)
    monkeypatch.setattr(framing, "_MOST_UNREADABLE", 3)
    client = RegistryClient(settings_of(registry.url))

    def by_id(id: int) -> Any:
        return client.schema(id)

    framed_ = framing.Framed(pa.int32(), by_id)
    _, bad = framed_.decode(pa.array([framed(id, b"") for id in range(20)]))
    assert (len(bad), len(client._unknown), len(framed_._unreadable) <= 3) == (20, 3, True)


def test_threads_share_requests_for_a_schema(
    registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that need one schema send one request; at most four requests are in flight."""
    now, most, lock = [0], [0], threading.Lock()
    said = registry._next

    def slow(path: str) -> tuple[int, Any]:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return said(path)

    monkeypatch.setattr(registry, "_next", slow)
    schemas(registry, *range(8))
    client = RegistryClient(settings_of(registry.url))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(client.schema, [number % 8 for number in range(32)]))
    assert [each.id for each in found] == [number % 8 for number in range(32)]
    assert len(registry.asked) == 8
    assert most[0] <= 4


def test_wait_for_another_request_can_be_stopped(registry: ScriptedRegistry) -> None:
    client, stopper = RegistryClient(settings_of(registry.url)), Stopper()
    stopper.stop()
    with client._turn(5, time.sleep), pytest.raises(Stopped):
        client.schema(1, wait=stopper.wait)


def test_one_attempt_is_enough_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage was seen, one attempt is made until the registry responds again."""
    clock = WaitedTime()
    monkeypatch.setattr(registry_module, "time", clock)
    with ScriptedRegistry() as registry:
        registry.says["/schemas/ids/1"] = [(503, {})]
        client = RegistryClient(settings_of(registry.url))
        counts = []
        for _ in range(3):
            with pytest.raises(SchemaRegistryTimeoutError) as caught:
                client.schema(1, wait=clock.sleep)
            counts.append(caught.value.attempts)
        assert counts[0] > 1
        assert counts[1:] == [1, 1]
        schemas(registry, 2)
        client.schema(2)
        with pytest.raises(SchemaRegistryTimeoutError) as caught:
            client.schema(1, wait=clock.sleep)
        assert caught.value.attempts > 1


# --- topics without a schema ---

FORMAT = {"value": "avro", "value_framing": "registry", "schemas": {"a": {}}}
A, B = PlannedRange("a", 0, 0, 9, "a"), PlannedRange("b", 0, 0, 9, "b")


def test_topic_without_schema_waits_alone() -> None:
    missing, error = MissingSchemas(), SchemaError("no column")
    missing.add("b", error)
    assert missing.skips("b", True)
    assert not missing.skips("c", True)
    missing.check(FORMAT, ["a", "b"])
    assert missing.of(FORMAT, [A, B]) == {B: error}
    with pytest.raises(SchemaError):
        missing.check(FORMAT, ["b"])


def test_silent_registry_is_asked_once() -> None:
    """A registry that was silent for one topic is not asked for the other topics."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = RegistryClient(settings_of(url, schema_registry_timeout_ms=50))
        with pytest.raises(SchemaRegistryTimeoutError) as caught:
            client.schema(1)
    missing = MissingSchemas()
    missing.add("b", ExportError("other"))
    missing.add("c", caught.value)
    assert [missing.skips("d", by_registry) for by_registry in (False, True)] == [False, True]
    with pytest.raises(KafkaTimeoutError) as both:
        missing.check({**FORMAT, "schemas": {}}, ["b", "c", "d"])
    assert both.value.__notes__ == ["also failed: ExportError: other"]
    missing.clear()
    assert not missing.skips("d", True)


def test_configuration_error_ends_the_export() -> None:
    """A configuration error is raised at once, and not kept for its topic."""
    with pytest.raises(ConfigurationError, match="wrong"):
        MissingSchemas().add("b", ConfigurationError("wrong"))


def test_missing_schema_of_a_plan_is_retriable() -> None:
    """A plan without the schema of one of its topics has a time-out for that topic."""
    (error,) = MissingSchemas().of(FORMAT, [A, B]).values()
    assert isinstance(error, KafkaTimeoutError)
