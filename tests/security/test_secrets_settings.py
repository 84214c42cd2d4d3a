"""Invalid secrets: they are in no error, cause, frame's locals or log."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trustme
from searching import Search

import trikafka
from trikafka._net.auth import SaslAuthenticator
from trikafka.config import ConsumerConfig, from_properties
from trikafka.config.secrets import Secret, redacted
from trikafka.types import Node

MARK = "MARK-b7e1-secret"
BROKEN = f"{MARK}-\ud800"  # cannot be encoded
_AUTHORITY = trustme.CA()
_LEAF = _AUTHORITY.issue_cert("client@test")
CHAIN = _LEAF.cert_chain_pems[0].bytes().decode()
#: A key that cannot be read, with the mark in it.
KEY = f"-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----\n"
OPENERS = [trikafka.open_consumer, trikafka.open_producer, trikafka.open_admin]
PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
}
OAUTH: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
ENDPOINT = {
    "sasl_oauth_token_endpoint_url": "http://127.0.0.1:9/token",
    "sasl_oauth_client_id": "me",
}
TLS = {"security_protocol": "SSL"}

WRONG: dict[str, dict[str, Any]] = {
    "password, bytes": {**PLAIN, "sasl_plain_password": MARK.encode()},
    "password, a list": {**PLAIN, "sasl_plain_password": [MARK]},
    "password, another setting is wrong": {
        **PLAIN,
        "sasl_plain_password": MARK,
        "request_timeout_ms": "soon",
    },
    "password, another setting is unknown": {
        **PLAIN,
        "sasl_plain_password": MARK,
        "no_such_setting": 1,
    },
    "password, its own name is wrong": {**PLAIN, "sasl_plain_pasword": MARK},
    "password, without SASL": {"sasl_plain_password": MARK},
    "password, beside credentials": {
        **PLAIN,
        "sasl_plain_password": MARK,
        "sasl_credentials": lambda: ("a", MARK),
    },
    "password, unencodable": {**PLAIN, "sasl_plain_password": BROKEN},
    "password, unencodable name": {
        **PLAIN,
        "sasl_plain_username": "\ud800",
        "sasl_plain_password": MARK,
    },
    "password, unknown mechanism": {
        **PLAIN,
        "sasl_mechanism": "NO-SUCH",
        "sasl_plain_password": MARK,
    },
    "credentials, no function": {
        **PLAIN,
        "sasl_plain_username": None,
        "sasl_credentials": ("alice", MARK),
    },
    "token, no function": {**OAUTH, "sasl_oauth_token_provider": MARK},
    "private key, without its first line": {
        **OAUTH,
        **ENDPOINT,
        "sasl_oauth_client_id": None,
        "sasl_oauth_grant_type": "jwt-bearer",
        "sasl_oauth_assertion_private_key_file": MARK,
    },
    "assertion, in place of its file": {
        **OAUTH,
        **ENDPOINT,
        "sasl_oauth_client_id": None,
        "sasl_oauth_grant_type": "jwt-bearer",
        "sasl_oauth_assertion_file": f"eyJhbGciOiJub25lIn0.{MARK}.x",
    },
    "client secret, bytes": {**OAUTH, **ENDPOINT, "sasl_oauth_client_secret": MARK.encode()},
    "client secret, unencodable": {**OAUTH, **ENDPOINT, "sasl_oauth_client_secret": BROKEN},
    "client secret, no id": {**OAUTH, "sasl_oauth_client_secret": MARK},
    "userinfo in the URL": {
        **OAUTH,
        "sasl_oauth_token_endpoint_url": f"http://me:{MARK}@127.0.0.1:9/",
    },
    "userinfo in the URL, bytes": {
        **OAUTH,
        "sasl_oauth_token_endpoint_url": f"http://me:{MARK}@127.0.0.1:9/".encode(),
    },
    "extensions": {**OAUTH, "sasl_oauth_extensions": [("key", MARK)]},
    "userinfo in an address": {"bootstrap_servers": f"me:{MARK}@localhost:9092"},
    "userinfo in one of several": {
        "bootstrap_servers": ["localhost:9092", f"me:{MARK}@localhost:9092"]
    },
    "a proxy as address": {"bootstrap_servers": f"http://me:{MARK}@proxy:3128"},
    "address, bytes": {"bootstrap_servers": f"me:{MARK}@localhost:9092".encode()},
    "key, bytes": {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": KEY.encode()},
    "key, unreadable": {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": KEY},
    "key, taken for a path": {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": MARK},
    "key, no path at all": {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": f"{MARK}\0"},
    "key, a path too long": {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": MARK * 1000},
    "key, unencodable": {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": f"{KEY}\ud800"},
    "key in the certificate, unreadable": {**TLS, "ssl_certfile": CHAIN + KEY},
    "key in the certificate, bytes": {**TLS, "ssl_certfile": (CHAIN + KEY).encode()},
    "key in the certificate, another setting is wrong": {
        **TLS,
        "ssl_certfile": CHAIN + KEY,
        "client_id": 5,
    },
    "key among the authorities": {**TLS, "ssl_cafile": KEY},
    "ssl_password, bytes": {**TLS, "ssl_certfile": CHAIN, "ssl_password": MARK.encode()},
    "ssl_password, no certificate": {**TLS, "ssl_password": MARK},
    "ssl_password, unencodable": {**TLS, "ssl_certfile": CHAIN, "ssl_password": BROKEN},
}


def locked_key() -> str:
    from cryptography.hazmat.primitives import serialization as s

    loaded = s.load_pem_private_key(_LEAF.private_key_pem.bytes(), None)
    return loaded.private_bytes(
        s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"sesame")
    ).decode()


@pytest.mark.parametrize("opener", OPENERS, ids=["consumer", "producer", "admin"])
@pytest.mark.parametrize("name", WRONG)
async def test_wrong_secret_at_opening_is_hidden(
    opener: Callable[..., Any],
    name: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    await _search(opener, WRONG[name], caplog, capfd)


@pytest.mark.parametrize("password", [f"wrong {MARK}", MARK * 100], ids=["wrong", "too long"])
async def test_password_of_a_key_is_hidden(
    password: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": locked_key(), "ssl_password": password}
    await _search(trikafka.open_admin, settings, caplog, capfd)


async def _search(
    opener: Callable[..., Any],
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    search = Search(MARK)
    with (
        caplog.at_level(logging.DEBUG),
        trio.fail_after(240),
        pytest.raises(trikafka.ConfigurationError) as caught,
    ):
        async with opener(**{"bootstrap_servers": "127.0.0.1:9", **settings}):
            pass
    search.error(caught.value)
    search.log(caplog.records)
    search.text("output", "".join(capfd.readouterr()))
    search.verify()


@pytest.mark.parametrize(
    "properties",
    [
        {"sasl.jaas.config": f"x.PlainLoginModule required username=alice password={MARK}"},
        {"sasl.jaas.config": f"x.PlainLoginModule required user=alice password='{MARK}';"},
        {"sasl.jaas.config": f"password={MARK}"},
        {"sasl.jaas.config": f"x.NoSuchModule required password={MARK};"},
        {
            "sasl.jaas.config": f"x.OAuthBearerLoginModule required clientSecret={MARK};",
            "sasl.oauthbearer.client.secret": MARK,
        },
        {"sasl.password": MARK, "fetch.min.bytes": "few"},
        {"sasl.passwd": MARK},
        {"sasl.password": MARK, "sasl.plain.password": MARK},
        {"ssl.key.pem": KEY, "ssl.keystore.type": "JKS"},
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": MARK,
            "ssl.keystore.location": "x",
        },
        {"ssl.keystore.type": "PEM", "ssl.keystore.password": MARK, "ssl.keystore.location": "x"},
        {"ssl.keystore.key": KEY, "enable.auto.commit": "yes"},
    ],
)
def test_wrong_properties_hide_secrets(properties: dict[str, str]) -> None:
    search = Search(MARK)
    try:
        settings = from_properties(properties)
        search.text("settings", repr(settings))
        ConsumerConfig.take(settings)
    except trikafka.ConfigurationError as error:
        search.error(error)
    search.verify()


def test_secret_is_used_and_never_shown() -> None:
    settings: dict[str, Any] = {
        **PLAIN,
        "sasl_plain_password": MARK,
        "bootstrap_servers": "localhost:9092",
    }
    config = ConsumerConfig.build(settings)
    assert config.sasl_plain_password == MARK
    assert f"{config.sasl_plain_password}" == MARK
    assert (config.sasl_plain_password or "").encode() == MARK.encode()
    search = Search(MARK)
    twins = [config, copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))]
    for twin in twins:
        assert twin.sasl_plain_password == MARK
        search.text(
            "repr", repr(twin) + repr(vars(twin)) + repr(dataclasses.asdict(twin)) + f"{twin}"
        )
    search.verify()
    assert repr(config.bootstrap_servers) == "'localhost:9092'"


def test_public_setting_is_shown() -> None:
    found = from_properties({"group.id": "g", "sasl.password": MARK, "bootstrap.servers": "a:1"})
    assert (
        repr(found)
        == "{'group_id': 'g', 'sasl_plain_password': <secret>, 'bootstrap_servers': 'a:1'}"
    )
    assert type(found["group_id"]) is str
    assert isinstance(found["sasl_plain_password"], Secret)


def test_provider_is_not_shown() -> None:
    provider = functools.partial(lambda token: token, MARK)
    config = ConsumerConfig.build({**OAUTH, "sasl_oauth_token_provider": provider})
    search = Search(MARK)
    search.text("repr", repr(config))
    search.verify()


def test_extensions_are_not_shown() -> None:
    config = ConsumerConfig.build(
        {
            **OAUTH,
            "sasl_oauth_token_provider": lambda: MARK,
            "sasl_oauth_extensions": {"pool": MARK},
        }
    )
    assert config.sasl_oauth_extensions == {"pool": MARK}
    search = Search(MARK)
    search.text("repr", repr(config) + repr(vars(config)))
    search.verify()


@pytest.mark.parametrize(
    "text",
    [
        f"cannot reach https://client:{MARK}@idp.test/token: refused",
        f"GET https://idp.test/?Action=x&X-Amz-Signature={MARK}&X-Amz-Date=1: 403",
        f"POST client_id=me&client_secret={MARK}: 400",
        f"headers: {{'Authorization': 'Bearer {MARK}'}}",
    ],
)
@pytest.mark.parametrize("step", ["source", "mechanism"])
async def test_secret_in_an_error_of_a_library_is_hidden(text: str, step: str) -> None:
    """Errors of HTTP libraries have the address of the request."""

    class Mechanism:
        def first(self) -> bytes:
            raise RuntimeError(text)

        def respond(self, challenge: bytes) -> None:
            """No-op."""

    def make(node: Node) -> Mechanism:
        if step == "source":
            raise RuntimeError(text)
        return Mechanism()

    async def ask(request: Any) -> Any:
        return SimpleNamespace(error_code=0, mechanisms=())

    config = ConsumerConfig.build({**PLAIN, "sasl_plain_password": "p"})
    with pytest.raises(trikafka.HandshakeError, match=r"RuntimeError: .*<secret>") as caught:
        await SaslAuthenticator(config, make)(ask, Node(0, "broker", 9092))
    search = Search(MARK)
    search.text("error", f"{caught.value}")
    search.verify()


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 401: Basic authentication required",
        "the server wants (Bearer authorization); basic credentials.",
        "cannot reach http://proxy:3128/: refused",
    ],
)
def test_words_of_an_error_are_not_hidden(text: str) -> None:
    assert redacted(text) == text


async def test_bare_key_in_place_of_its_path_is_hidden(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some stores of secrets keep a key without the lines around it."""
    body = "".join(_LEAF.private_key_pem.bytes().decode().splitlines()[1:-1])
    settings: dict[str, Any] = {**TLS, "ssl_certfile": CHAIN, "ssl_keyfile": body}
    assert body not in repr(ConsumerConfig.build(settings))
    with pytest.raises(trikafka.ConfigurationError) as caught:
        async with trikafka.open_admin(bootstrap_servers="localhost:9", **settings):
            raise AssertionError("it was opened")
    search = Search(body[:60])
    search.error(caught.value)
    search.log(caplog.records)
    search.verify()
