"""Secrets of clients that talk to a real broker and fail in each way: none appears anywhere."""

from __future__ import annotations

import http.server
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from cluster_waits import PATIENT, topic_reported
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open

import trikafka
from trikafka.cli.app import run

sys.path.insert(0, str(Path(__file__).parent.parent / "security"))
from searching import Search

MARK = "MARK-5d0c-secret"
OPENERS: dict[str, Callable[..., Any]] = {
    "consumer": trikafka.open_consumer,
    "producer": trikafka.open_producer,
    "admin": trikafka.open_admin,
}
#: A client certificate that no broker accepts; a line of its key is the mark.
STRANGER = trustme.CA().issue_cert("stranger@test")
STRANGERS_KEY = STRANGER.private_key_pem.bytes().decode()
KEY_MARK = STRANGERS_KEY.splitlines()[2]


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a broker with a user whose password is the mark to search for."""
    login = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_marked="{MARK}" '
        'user_alice="alice-secret";'
    )
    properties = {
        **PATIENT,
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.secured.plain.sasl.jaas.config": login,
    }
    options: Any = {
        "tls": True,
        "sasl": ["plain", "scram", "oauth"],
        "listeners": {"MTLS": "SSL"},
        "properties": properties,
    }
    with _open(request.config, options) as cluster:
        yield cluster


class Answer(http.server.BaseHTTPRequestHandler):
    """A token endpoint that fails in the way that its path names."""

    answers: dict[str, tuple[int, object]] = {
        "/refuses": (401, {"error": "invalid_client"}),
        "/fails": (503, "no"),
        "/says-nothing": (200, {}),
        "/odd-token": (200, {"access_token": f"{MARK} with spaces"}),
        "/odd-life": (200, {"access_token": MARK, "expires_in": "soon"}),
        "/unknown-token": (200, {"access_token": MARK, "expires_in": 300}),
        "/half-a-pair": (200, {"access_token": f"{MARK}\ud800"}),
    }

    def do_POST(self) -> None:
        status, answer = self.answers[self.path.partition("?")[0]]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def token_endpoint() -> Iterator[int]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def silence() -> Iterator[int]:
    """Open a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def wrongs(cluster: KafkaCluster, endpoint: int) -> dict[str, dict[str, Any]]:
    """Return settings that the broker, or a part before it, refuses."""
    tls = {"ssl_cafile": str(cluster.security_directory / "ca.pem")}
    sasl = {**cluster.client_settings("PLAIN"), "sasl_plain_password": MARK}
    own = {**sasl, "sasl_plain_username": None, "sasl_plain_password": None}
    oauth = {
        **cluster.client_settings("OAUTHBEARER"),
        "sasl_oauth_token_provider": None,
        "sasl_oauth_client_id": "me",
    }
    mutual = {
        "bootstrap_servers": cluster.bootstrap_servers_of("MTLS"),
        "security_protocol": "SSL",
        **tls,
    }
    chain = STRANGER.cert_chain_pems[0].bytes().decode()

    async def failing() -> Any:
        raise LookupError("no such entry")

    def url(path: str) -> dict[str, Any]:
        return {
            **oauth,
            "sasl_oauth_token_endpoint_url": f"http://127.0.0.1:{endpoint}{path}?key={MARK}",
        } | {"sasl_oauth_client_secret": MARK}

    return {
        "PLAIN": sasl,
        "SCRAM": {**sasl, "sasl_mechanism": "SCRAM-SHA-512"},
        "a name that is not known": {
            **sasl,
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "nobody",
        },
        "no TLS": {**sasl, "security_protocol": "SASL_PLAINTEXT", "ssl_cafile": None},
        "TLS to a plain port": {**sasl, "bootstrap_servers": cluster.bootstrap_servers},
        "another authority": {**sasl, "ssl_cafile": None},
        "credentials": {**own, "sasl_credentials": lambda: ("alice", MARK)},
        "credentials, unencodable": {**own, "sasl_credentials": lambda: ("alice", f"{MARK}\ud800")},
        "credentials, unencodable, SCRAM": {
            **own,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_credentials": lambda: ("alice", f"{MARK}\ud800"),
        },
        "credentials, a null character": {
            **own,
            "sasl_credentials": lambda: ("alice", f"{MARK}\0"),
        },
        "credentials, three": {**own, "sasl_credentials": lambda: ("alice", MARK, MARK)},
        "credentials, bytes": {**own, "sasl_credentials": lambda: ("alice", MARK.encode())},
        "credentials, failing": {**own, "sasl_credentials": failing},
        "token": {**oauth, "sasl_oauth_client_id": None, "sasl_oauth_token_provider": lambda: MARK},
        "token, with spaces": {
            **oauth,
            "sasl_oauth_client_id": None,
            "sasl_oauth_token_provider": lambda: f"{MARK} x",
        },
        "token, unencodable": {
            **oauth,
            "sasl_oauth_client_id": None,
            "sasl_oauth_token_provider": lambda: f"{MARK}\ud800",
        },
        "token, a list": {
            **oauth,
            "sasl_oauth_client_id": None,
            "sasl_oauth_token_provider": lambda: [MARK],
        },
        "token, unencodable extension": {
            **oauth,
            "sasl_oauth_client_id": None,
            "sasl_oauth_token_provider": lambda: trikafka.OAuthToken(MARK, {"key": "\ud800"}),
        },
        **{f"endpoint: {path[1:]}": url(path) for path in Answer.answers},
        "endpoint: unreachable": url("")
        | {"sasl_oauth_token_endpoint_url": f"http://127.0.0.1:1/?key={MARK}"},
        "endpoint: userinfo": url("")
        | {"sasl_oauth_token_endpoint_url": f"http://me:{MARK}@127.0.0.1:1/"},
        "endpoint: no URL": url("") | {"sasl_oauth_token_endpoint_url": f"me:{MARK}@127.0.0.1"},
        "endpoint: no port": url("")
        | {"sasl_oauth_token_endpoint_url": f"http://127.0.0.1:{MARK}/"},
        "a certificate that is not known": {
            **mutual,
            "ssl_certfile": chain,
            "ssl_keyfile": STRANGERS_KEY,
        },
        "in one text": {**mutual, "ssl_certfile": STRANGERS_KEY + chain},
        "refused": {**sasl, "bootstrap_servers": "127.0.0.1:1"},
        "unresolvable": {**sasl, "bootstrap_servers": "no-such-host.invalid:9092"},
    }


class Watching:
    """An observer with all methods."""

    def __init__(self, search: Search) -> None:
        self._search = search

    @trikafka.hookimpl
    def trikafka_observer(self, context: Any) -> Any:
        self._search.text(
            "context", f"{context!r} {vars(context)!r} {context.config!r} {vars(context.config)!r}"
        )
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name.startswith("trikafka_"):
            raise AttributeError(name)
        return lambda *told: self._search.text(f"observer.{name}", repr(told))


@pytest.mark.parametrize("client", OPENERS)
async def test_refused_client_shows_no_secret(
    secured: KafkaCluster, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    search = Search(MARK, KEY_MARK)
    failed = []
    with token_endpoint() as port, caplog.at_level(logging.DEBUG):
        for name, settings in wrongs(secured, port).items():
            with trio.move_on_after(240):
                try:
                    async with OPENERS[client](**settings, plugins=[Watching(search)]) as opened:
                        search.client(opened)
                except trikafka.TrikafkaError as error:
                    failed.append(name)
                    search.error(error)
    search.log(caplog.records)
    search.verify()
    assert failed == list(wrongs(secured, 0))


@pytest.mark.parametrize("client", OPENERS)
async def test_cancelled_client_shows_no_secret(
    secured: KafkaCluster, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled client shows no secret.

    It is cancelled while a port is silent, while the credentials are looked up, and while a token
    endpoint is silent.
    """
    search = Search(MARK)

    async def waiting() -> tuple[str, str]:
        await trio.sleep_forever()
        raise AssertionError

    with silence() as port, caplog.at_level(logging.DEBUG):
        sasl = {**secured.client_settings("PLAIN"), "sasl_plain_password": MARK}
        own = {
            **sasl,
            "sasl_plain_username": None,
            "sasl_plain_password": None,
            "sasl_credentials": waiting,
        }
        oauth = {
            **secured.client_settings("OAUTHBEARER"),
            "sasl_oauth_token_provider": None,
            "sasl_oauth_client_id": "me",
        }
        oauth |= {
            "sasl_oauth_client_secret": MARK,
            "sasl_oauth_token_endpoint_url": f"http://127.0.0.1:{port}/?key={MARK}",
        }
        for settings in ({**sasl, "bootstrap_servers": f"127.0.0.1:{port}"}, own, oauth):
            for more in ({}, {"socket_connection_setup_timeout_ms": 100}):
                with trio.move_on_after(0.3):
                    try:
                        async with OPENERS[client](**settings, **more, plugins=[Watching(search)]):
                            pass
                    except trikafka.TrikafkaError as error:
                        search.error(error)
                    except trio.Cancelled as error:  # a debugger would show this traceback
                        search.error(error)
                        raise
    search.log(caplog.records)
    search.verify()


@pytest.mark.parametrize("how", ["options", "file"])
@pytest.mark.parametrize("command", ["topics", "consume", "produce"])
def test_command_with_debug_shows_no_secret(
    secured: KafkaCluster,
    how: str,
    command: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = Search(MARK)
    jaas = (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" '
        f'password="{MARK}";'
    )
    java = {**secured.java_settings("PLAIN"), "sasl.jaas.config": jaas}
    others = {**secured.librdkafka_settings("PLAIN"), "sasl.password": MARK}
    arguments = {
        "topics": ["topics"],
        "consume": ["consume", "t"],
        "produce": ["produce", "-t", "t", "/dev/null"],
    }[command]
    for properties in (
        java,
        others,
        {**java, "no.such.name": "1"},
        {**others, "sasl.password": f"{MARK}\ud800"},
    ):
        if how == "file":
            file = tmp_path / "client.properties"
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            file.write_bytes(
                text.encode("utf-8", "surrogateescape" if "\udc80" in text else "surrogatepass")
            )
            given = ["-F", str(file)]
        else:
            given = [
                part for name, value in properties.items() for part in ("-X", f"{name}={value}")
            ]
        with caplog.at_level(logging.DEBUG):
            code = run(
                ["--debug", "-b", secured.bootstrap_servers_of("SECURED"), *given, *arguments]
            )
        out = "".join(capfd.readouterr())
        assert code in (1, 2)
        assert "Traceback" in out
        search.text(f"output of {command}", out)
    search.log(caplog.records)
    search.verify()


async def test_client_without_broker_shows_no_secret(
    secured: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A client whose broker is killed shows no secret.

    This is the last test of the module: the broker is gone after it.
    """
    search = Search(MARK)
    sasl = {
        **secured.client_settings("PLAIN"),
        "sasl_plain_username": "marked",
        "sasl_plain_password": MARK,
    }
    common = {
        **sasl,
        "plugins": [Watching(search)],
        "close_timeout_ms": 1_000,
    }
    with caplog.at_level(logging.DEBUG), trio.fail_after(300):
        async with trikafka.open_admin(bootstrap_servers=secured.bootstrap_servers) as admin:
            await admin.create_topics({"marked": trikafka.NewTopic(1, 1)})
            await topic_reported(admin, "marked", 1)
        async with (
            trikafka.open_consumer(
                "marked", group_id="marked", auto_offset_reset="earliest", **common
            ) as consumer,
            trikafka.open_producer(
                linger_ms=0, **common, delivery_timeout_ms=8_000, request_timeout_ms=7_500
            ) as producer,
            trikafka.open_admin(**common) as admin,
        ):
            clients = consumer, producer, admin
            while True:
                try:
                    await producer.send("marked", b"x")
                    break
                except trikafka.DeliveryTimeoutError:  # its limit is short for a busy machine
                    pass
            assert (await anext(aiter(consumer))).value == b"x"
            for each in clients:
                search.client(each)
            secured.brokers[0].kill()
            for call in (
                lambda: producer.send("marked", b"y"),
                lambda: consumer.commit(timeout=1),
                lambda: admin.list_topics(timeout=1),
                lambda: consumer.end_offsets([trikafka.TopicPartition("marked", 0)], timeout=1),
            ):
                with pytest.raises(trikafka.TrikafkaError) as caught:
                    await call()
                search.error(caught.value)
            for each in clients:
                search.client(each)
    assert any("lost" in record.getMessage() for record in caplog.records)
    search.log(caplog.records)
    search.verify()
