"""The client of a schema registry over real HTTP: requests, responses, and hidden secrets."""

from __future__ import annotations

import base64
import pickle
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from scripted_registry import ScriptedRegistry, WaitedTime, framed
from trikafka_export.formats import registry as registry_module
from trikafka_export.formats.errors import (
    SchemaRegistryError,
    SchemaRegistryTimeoutError,
    UnreadableError,
)
from trikafka_export.formats.options import RegistrySettings, parse_options
from trikafka_export.formats.parsing import Parser
from trikafka_export.formats.registry import RegistryClient
from trikafka_export.task import Stopped, Stopper

from trikafka import ConfigurationError, KafkaTimeoutError

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "security"))
from searching import Search

MARK = "MARK-55-secret"


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with ScriptedRegistry() as registry:
        yield registry


def settings_of(url: str, **more: Any) -> RegistrySettings:
    given = {"value_format": "json", "schema_registry": url, "schema_registry_timeout_ms": 30_000}
    found = parse_options(
        given | {f"schema_registry_{name}": value for name, value in more.items()}
    ).registry
    assert found is not None
    return found


def test_schema_and_references_are_requested_once(registry: ScriptedRegistry) -> None:
    def reference(name: str) -> dict[str, Any]:
        return {"name": name, "subject": f"of {name}/x", "version": 3}

    registry.says["/schemas/ids/1"] = {
        "schema": "top",
        "references": [reference("a"), reference("b")],
    }
    registry.says["/subjects/of%20a%2Fx/versions/3"] = {
        "schema": "A",
        "references": [reference("b")],
    }
    registry.says["/subjects/of%20b%2Fx/versions/3"] = {"schema": "B"}
    client = RegistryClient(settings_of(registry.url + "/"))
    found = client.schema(1)
    assert (found.type, found.text, found.references) == ("AVRO", "top", (("b", "B"), ("a", "A")))
    assert client.schema(1) is found
    assert len(registry.asked) == 3
    assert "Authorization" not in registry.headers[0]


def test_circular_references_are_refused(registry: ScriptedRegistry) -> None:
    registry.avro(1, "x", references=[{"name": "a", "subject": "a", "version": 1}])
    registry.says["/subjects/a/versions/1"] = {
        "schema": "A",
        "references": [{"name": "a", "subject": "a", "version": 1}],
    }
    with pytest.raises(SchemaRegistryError, match="references in a circle, by 'a'"):
        RegistryClient(settings_of(registry.url)).schema(1)


def test_unknown_id_is_an_unreadable_record(
    registry: ScriptedRegistry,
) -> None:
    """Only the registry's own error for an unknown id concerns the record; another 404 does not."""
    client = RegistryClient(settings_of(registry.url))
    with pytest.raises(
        UnreadableError, match=f"the schema registry {registry.url} has no schema 4"
    ):
        client.schema(4)
    registry.says["/schemas/ids/5"] = [(404, b"<html>no such page</html>")]
    with pytest.raises(
        SchemaRegistryError,
        match="is not a working schema registry: for schema 5 it returned HTTP status 404",
    ):
        client.schema(5)
    assert registry.asked == ["/schemas/ids/4", "/schemas/ids/5"], "neither is tried again"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"schema": 5}'])
def test_body_without_schema_is_an_error(registry: ScriptedRegistry, body: bytes) -> None:
    """A response without a schema is an error of the registry, and not a dead letter."""
    registry.says["/schemas/ids/1"] = [(200, body)]
    with pytest.raises(
        SchemaRegistryError, match="it returned neither a schema nor an error"
    ) as caught:
        RegistryClient(settings_of(registry.url)).schema(1)
    assert (caught.value.url, caught.value.id) == (registry.url, 1)


def test_busy_registry_is_retried(registry: ScriptedRegistry) -> None:
    registry.says["/schemas/ids/1"] = [(503, {}), (429, b""), (200, {"schema": '"int"'})]
    waits: list[float] = []
    assert RegistryClient(settings_of(registry.url)).schema(1, wait=waits.append).text == '"int"'
    assert len(waits) == 2
    assert 0.08 <= waits[0] <= 0.12 < waits[1] <= 0.24, "0.1 and 0.2 s, give or take 20 %"


def test_unreachable_registry_is_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable registry is a time-out that names its URL without the password."""
    clock = WaitedTime()
    monkeypatch.setattr(registry_module, "time", clock)
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
    url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    client = RegistryClient(settings_of(f"http://me:{MARK}@{url[7:]}"))
    what = f"asking the schema registry {url} for the schema 9 did not finish"
    with pytest.raises(SchemaRegistryTimeoutError, match=what) as caught:
        client.schema(9, wait=clock.sleep)
    unused.close()
    assert isinstance(caught.value, KafkaTimeoutError)
    assert (caught.value.url, caught.value.id) == (url, 9)
    assert caught.value.attempts > 10
    search = Search(MARK)
    search.error(caught.value)
    search.verify()


def test_silent_registry_is_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = RegistryClient(
            settings_of(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_ms=300)
        )
        with pytest.raises(SchemaRegistryTimeoutError):
            client.schema(9)


def test_stopped_export_stops_the_retries(registry: ScriptedRegistry) -> None:
    registry.says["/schemas/ids/1"] = [(503, {})]
    stopper = Stopper()

    def wait(seconds: float) -> None:
        stopper.stop()
        stopper.wait(seconds)

    with pytest.raises(Stopped):
        RegistryClient(settings_of(registry.url)).schema(1, wait=wait)


def test_credentials_are_sent_and_hidden(registry: ScriptedRegistry, tmp_path: Path) -> None:
    """Credentials are sent from each option that can hold them, and appear in no repr."""
    registry.avro(1, "int")
    (tmp_path / "secret").write_text(f"me:{MARK}\n")
    host = registry.url.removeprefix("http://")
    for settings in (
        settings_of(registry.url, auth=f"me:{MARK}"),
        settings_of(registry.url, auth=f"@{tmp_path / 'secret'}"),
        settings_of(f"http://me:{MARK}@{host}"),
    ):
        assert settings.url == registry.url
        RegistryClient(settings).schema(1)
        assert (
            registry.headers[-1]["Authorization"]
            == "Basic " + base64.b64encode(f"me:{MARK}".encode()).decode()
        )
        RegistryClient(pickle.loads(pickle.dumps(settings))).schema(1)
        search = Search(MARK)
        search.text("repr", repr(pickle.loads(pickle.dumps(settings))))
        search.verify()
    RegistryClient(settings_of(registry.url, token=MARK)).schema(1)
    assert registry.headers[-1]["Authorization"] == f"Bearer {MARK}"


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_names_the_setting(registry: ScriptedRegistry, status: int) -> None:
    registry.says["/schemas/ids/1"] = [(status, {"message": "no"})]
    what = rf"refuses access to the schema 1 \(HTTP status {status}\): check schema_registry_auth"
    with pytest.raises(SchemaRegistryError, match=what) as caught:
        RegistryClient(settings_of(registry.url, auth=f"me:{MARK}")).schema(1)
    search = Search(MARK)
    search.error(caught.value)
    search.verify()


def test_redirect_is_not_followed(
    registry: ScriptedRegistry,
) -> None:
    """A redirect is refused: following it would send the credentials to another server."""
    with ScriptedRegistry() as other:
        registry.says["/schemas/ids/1"] = [(302, f"{other.url}/schemas/ids/1")]
        with pytest.raises(SchemaRegistryError, match="HTTP status 302"):
            RegistryClient(settings_of(registry.url, token=MARK)).schema(1)
        assert not other.asked


def test_own_tls_authority_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ScriptedRegistry(context) as registry:
        registry.avro(1, "int")
        client = RegistryClient(settings_of(registry.url, cafile=str(tmp_path / "ca.pem")))
        assert client.schema(1).text == '"int"'
        with pytest.raises(SchemaRegistryError, match="has a certificate that is not trusted"):
            RegistryClient(settings_of(registry.url)).schema(1)


def test_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(
        ConfigurationError, match=r"schema_registry_cafile: .* holds no certificates"
    ):
        RegistryClient(settings_of("https://localhost", cafile=str(tmp_path / "ca.pem")))


def test_value_is_read_by_its_own_schema(registry: ScriptedRegistry) -> None:
    """A value is read by the schema that it names; values without a usable one are refused."""
    registry.avro(1, "int")
    registry.avro(2, "string")
    registry.avro(3, {"type": "array", "items": "null"})
    registry.says["/schemas/ids/4"] = {"schema": "{}", "schemaType": "PROTOBUF"}
    format = {"value": "avro", "value_framing": "registry", "schemas": {"t": {"schema": "long"}}}
    parser = Parser.of(format, "t", settings_of(registry.url))
    assert parser is not None
    values = [framed(1, b"\x02"), b"", framed(2, b"\x02a"), framed(1, b"\x04"), None]
    values += [framed(3, b"\0"), framed(4, b"\0"), b"\x01234567"]
    table = pa.table({"offset": list(range(len(values))), "value": pa.array(values, pa.binary())})
    read, refused = parser.parse(table)
    assert dict(zip(read["offset"].to_pylist(), read["value"].to_pylist(), strict=True)) == {
        0: 1,
        3: 2,
        4: None,
    }
    assert [row["offset"] for row, _ in refused] == [1, 2, 5, 6, 7]
    assert len(registry.asked) == 4
    with pytest.raises(ConfigurationError, match="schema_registry"):
        Parser.of(format, "t")


def test_plain_bytes_have_no_length(registry: ScriptedRegistry) -> None:
    """Values of a schema of plain bytes have no length, as Confluent's serializers write them."""
    registry.avro(1, "bytes")
    format = {"key": "avro", "key_framing": "registry", "key_schemas": {"t": {"schema": "bytes"}}}
    parser = Parser.of(format, "t", settings_of(registry.url))
    assert parser is not None
    read, refused = parser.parse(
        pa.table({"key": pa.array([framed(1, b"raw"), None, framed(1, b"")], pa.binary())})
    )
    assert (read["key"].to_pylist(), refused) == ([b"raw", None, b""], [])


def test_tombstones_need_no_request(registry: ScriptedRegistry) -> None:
    format = {"value": "avro", "value_framing": "registry", "schemas": {"t": {"schema": "long"}}}
    parser = Parser.of(format, "t", settings_of(registry.url))
    assert parser is not None
    for values in ([None, None], []):
        read, refused = parser.parse(pa.table({"value": pa.array(values, pa.binary())}))
        assert (read["value"].to_pylist(), read["value"].type, refused) == (values, pa.int64(), [])
    assert not registry.asked


def test_frames_of_a_cyclic_chain_are_removed() -> None:
    """The contexts that no traceback shows lose their frames, too."""
    errors = [OSError("first"), OSError("hidden"), OSError("reason")]
    for error in errors:
        try:
            raise error
        except OSError:
            pass
    first, hidden, reason = errors
    first.__cause__ = reason
    first.__context__ = hidden
    first.reason = reason  # type: ignore[attr-defined]
    reason.__cause__ = hidden.__context__ = first
    registry_module._without_frames(first)
    assert [error.__traceback__ for error in errors] == [None] * 3
