"""The examples of docs/security.md and docs/operating.md, run as written.

Only names that belong to the readers are replaced.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from cluster_waits import PATIENT
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open
from trikafka_broker.security import PASSWORD, unsecured_token

import trikafka

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a broker with TLS and SASL at one port, and mutual TLS at another."""
    options: Any = {
        "tls": True,
        "sasl": ["plain", "scram", "oauth"],
        "listeners": {"MTLS": "SSL"},
        "properties": {**PATIENT, "listener.name.mtls.ssl.client.auth": "required"},
    }
    with _open(request.config, options) as cluster:
        yield cluster


def example(document: str, name: str, *changes: tuple[str, str]) -> str:
    (text,) = re.findall(
        rf"<!-- run: {name} -->\n```python\n(.*?)```",
        (DOCS / document).read_text(encoding="utf-8"),
        re.DOTALL,
    )
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return str(text)


async def connects(**settings: Any) -> None:
    with trio.fail_after(400):
        async with trikafka.open_admin(**settings) as admin:
            assert await admin.describe_cluster()


async def by_sasl(cluster: KafkaCluster, text: str, **names: Any) -> None:
    """Run an example that sets ``settings``, and connect with them.

    The cluster's addresses and its authority are added.
    """
    exec(text, names)
    place = {name: cluster.client_settings()[name] for name in ("bootstrap_servers", "ssl_cafile")}
    await connects(**names["settings"], **place)


@contextmanager
def token_endpoint() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                json.dumps({"access_token": unsecured_token(), "expires_in": 60}).encode()
            )

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_mutual_tls_connects(
    secured: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(secured.security_directory / "ca.pem", tmp_path)
    both = (secured.security_directory / "client.pem").read_text()
    key, separator, chain = both.partition("-----END PRIVATE KEY-----\n")
    (tmp_path / "client.key").write_text(key + separator)
    (tmp_path / "client.pem").write_text(chain)
    names: dict[str, Any] = {}
    exec(
        example("security.md", "tls", ("kafka.example:9093", secured.bootstrap_servers_of("MTLS"))),
        names,
    )
    await connects(**names["settings"])


def test_converted_key_store_connects(secured: KafkaCluster, tmp_path: Path) -> None:
    """The two commands convert Java's store as written, except for the passwords.

    They would ask for passwords at a terminal.
    """

    def run(command: str, *more: str) -> None:
        subprocess.run([*command.split(), *more], check=True, capture_output=True, cwd=tmp_path)

    first, second = re.findall(
        r"^    ((?:keytool|openssl) .*)$",
        (DOCS / "security.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    client = str(secured.security_directory / "client.pem")
    run("openssl pkcs12 -export -name client -passout pass:123456 -out made.p12", "-in", client)
    store = (
        "-srckeystore made.p12 -srcstorepass 123456 -destkeystore client.jks -deststorepass "
        "123456 -deststoretype JKS"
    )
    run(f"keytool -importkeystore {store}")
    run(first, "-srcstorepass", "123456", "-deststorepass", "123456")
    run(second, "-passin", "pass:123456", "-passout", "pass:of the key")
    made = str(tmp_path / "client.pem")
    assert "ENCRYPTED" in Path(made).read_text()
    settings = {
        "bootstrap_servers": secured.bootstrap_servers_of("MTLS"),
        "security_protocol": "SSL",
        "ssl_cafile": str(secured.security_directory / "ca.pem"),
        "ssl_certfile": made,
        "ssl_password": "of the key",
    }
    trio.run(partial(connects, **settings))


async def test_password_connects(secured: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    await by_sasl(secured, "import os\n" + example("security.md", "scram"))


async def test_credentials_function_connects(secured: KafkaCluster) -> None:
    async def read(name: str) -> str:
        assert name == "kafka/alice"
        return PASSWORD

    await by_sasl(secured, example("security.md", "credentials"), vault=SimpleNamespace(read=read))


async def test_token_endpoint_connects(
    secured: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "s")
    with token_endpoint() as url:
        await by_sasl(
            secured,
            "import os\n"
            + example("security.md", "oauth", ("https://id.example/oauth2/token", url)),
        )


async def test_assertion_connects(
    secured: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await trio.run_process(["openssl", "genrsa", "-out", "orders.key", "2048"], capture_stderr=True)
    with token_endpoint() as url:
        await by_sasl(
            secured, example("security.md", "assertion", ("https://id.example/oauth2/token", url))
        )


async def test_failed_token_provider_is_an_error(secured: KafkaCluster) -> None:
    async def token() -> str:
        raise OSError("the vault is sealed")

    settings = {**secured.client_settings("OAUTHBEARER"), "sasl_oauth_token_provider": token}
    with pytest.raises(trikafka.AuthenticationError, match="the vault is sealed"):
        await connects(**settings)


async def test_token_function_connects(secured: KafkaCluster) -> None:
    async def token_for(what: str) -> str:
        assert what == "kafka"
        return unsecured_token()

    await by_sasl(
        secured, example("security.md", "token"), identity=SimpleNamespace(token_for=token_for)
    )


async def test_plugin_mechanism_connects(secured: KafkaCluster) -> None:
    """A plugin's mechanism replaces a built-in one of the same name.

    It is offered under a name that the broker knows. The settings need a token provider, which is
    not called.
    """

    async def sign_request_for(host: str) -> bytes:
        assert host == "127.0.0.1"
        return f"n,,\1auth=Bearer {unsecured_token()}\1\1".encode()

    text = example("security.md", "mechanism", ("AWS_MSK_IAM", "OAUTHBEARER"))
    text += (
        "\nsettings = {'security_protocol': 'SASL_SSL', 'sasl_mechanism': 'OAUTHBEARER', "
        "'plugins': [Plugin()],"
    )
    text += " 'sasl_oauth_token_provider': lambda: ''}"
    await by_sasl(secured, text, sign_request_for=sign_request_for, trikafka=trikafka)


async def test_states_and_health_are_printed(
    secured: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(400):
        async with trikafka.open_consumer(
            group_id="docs", **secured.client_settings("SCRAM-SHA-256")
        ) as consumer:
            await consumer.list_topics()
            exec(example("security.md", "states"), {"consumer": consumer})
            line = capsys.readouterr().out.splitlines()[0]
            assert re.search(r"general ready \{.*'new': .*'authenticating': ", line)
            exec(example("operating.md", "health"), {"consumer": consumer})
            assert capsys.readouterr().out == ""
        exec(example("operating.md", "health"), {"consumer": consumer})
        assert capsys.readouterr().out == "the consumer is closed\n"
