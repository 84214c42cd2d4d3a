"""Files that take long to open, or never end: the event loop goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from netting import NODE, Asked, config, open_parts
from test_tls import AUTHORITY, PEM
from trio.testing import MockClock

import trikafka
from trikafka._net import assertions, stores
from trikafka._net.oauth import ClientCredentials
from trikafka._net.tls_context import TlsContexts
from trikafka.errors import ConfigurationError, KafkaConnectionError
from trikafka.testing import ScriptedCluster

IDENTITY = AUTHORITY.issue_cert("me@test").private_key_and_cert_chain_pem.bytes().decode()
#: The first bytes of a store in PKCS12.
STORE = b"\x30\x82\x01\x00"


class SlowOpening:
    """Stores whose opening takes until :attr:`done` is set."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.opened = 0

    def __call__(self, content: bytes, password: str | None) -> str:
        self.opened += 1
        assert self.done.wait(30)
        return IDENTITY


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowOpening]:
    made = SlowOpening()
    monkeypatch.setattr(stores, "identity", made)
    yield made
    made.done.set()


def contexts(store: Path, **settings: Any) -> TlsContexts:
    store.write_bytes(STORE)
    given = {"security_protocol": "SSL", "ssl_cafile": PEM, "ssl_certfile": str(store)}
    return TlsContexts(config(**given, **settings))


@pytest.mark.parametrize("settings", [{}, {"ssl_password": "x"}])
async def test_slow_store_stops_no_other_task(
    opening: SlowOpening, tmp_path: Path, settings: dict[str, str]
) -> None:
    slow = contexts(tmp_path / "me.p12", **settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.refresh)
        await trio.testing.wait_all_tasks_blocked()
        # Another client needs the contexts that the clients of a program share.
        await TlsContexts(config(security_protocol="SSL", ssl_cafile=PEM)).refresh()
        opening.done.set()
    assert await slow.context()


async def test_store_of_a_cancelled_caller_is_opened_once(
    opening: SlowOpening, tmp_path: Path
) -> None:
    slow = contexts(tmp_path / "me.p12")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.refresh)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.refresh)
        await trio.testing.wait_all_tasks_blocked()
        opening.done.set()
    assert opening.opened == 1


async def test_slow_store_delays_a_dial_by_its_limit(
    opening: SlowOpening,
    mock_clock: MockClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each dial waited for the end, then loaded the store itself."""
    file = tmp_path / "me"
    file.write_text(IDENTITY)
    slow = TlsContexts(config(security_protocol="SSL", ssl_cafile=PEM, ssl_certfile=str(file)))
    first = await slow.context()
    file.write_bytes(STORE)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(slow.refresh, 5)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(5)
    await slow.refresh(5)
    assert await slow.context() is first
    assert [record.message for record in caplog.records] == [
        "TLS files have changed; until the new ones can be loaded, the previous ones stay in use:"
        " loading the new ones takes more than 5 s"
    ]
    opening.done.set()
    mock_clock.jump(10)
    await slow.refresh(5)
    assert await slow.context() is not first
    assert opening.opened == 1


async def test_slow_store_is_opened_once_for_all_dials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = []

    def fail(content: bytes, password: str | None) -> str:
        opened.append(content)
        raise ConfigurationError("damaged")

    monkeypatch.setattr(stores, "identity", fail)
    file = tmp_path / "me"
    file.write_text(IDENTITY)
    slow = TlsContexts(config(security_protocol="SSL", ssl_cafile=PEM, ssl_certfile=str(file)))
    await slow.context()
    file.write_bytes(STORE)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(slow.refresh)
    assert len(opened) == len(caplog.records) == 1


async def test_broker_is_dialled_beside_a_slow_store(
    opening: SlowOpening, mock_clock: MockClock, tmp_path: Path
) -> None:
    file = tmp_path / "me"
    file.write_text(IDENTITY)
    settings = {"security_protocol": "SSL", "ssl_cafile": PEM, "ssl_certfile": str(file)}
    async with (
        ScriptedCluster() as cluster,
        open_parts(cluster, bootstrap=False, **settings) as parts,
        trio.open_nursery() as nursery,
    ):
        cluster.lose(0)
        await parts.brokers._security.check()
        file.write_bytes(STORE)
        asked = Asked(nursery, lambda: parts.brokers.connection(NODE))
        for _ in range(2):  # the limits for the store and for the dial
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(10)
        with pytest.raises(KafkaConnectionError, match="takes no connection"):
            await asked.outcome()


async def test_slow_oauth_store_stops_no_other_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opening = SlowOpening()
    monkeypatch.setattr(stores, "authorities", opening)
    file = tmp_path / "ca.p12"
    file.write_bytes(STORE)
    tokens = ClientCredentials(
        config(
            **OAUTH,
            sasl_oauth_client_id="me",
            sasl_oauth_client_secret="x",
            sasl_oauth_cafile=str(file),
        )
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tokens.check)
        await trio.testing.wait_all_tasks_blocked()
        opening.done.set()


async def test_slow_key_of_assertions_stops_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def slow(given: object) -> str:
        assert done.wait(240)
        return "a.b.c"

    monkeypatch.setattr(assertions, "assertion", slow)
    tokens = ClientCredentials(
        config(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_endpoint_url="https://id.test",
            sasl_oauth_grant_type="jwt-bearer",
            sasl_oauth_assertion_private_key_file="key.pem",
            sasl_oauth_assertion_private_key_passphrase="x",
        )
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tokens.check)
        await trio.testing.wait_all_tasks_blocked()
        done.set()


async def test_changed_permissions_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(PEM)
    one = TlsContexts(config(security_protocol="SSL", ssl_cafile=str(file)))
    before = one._look()
    # The file system's clock may tick less often than this test takes.
    first, scratch = file.stat().st_ctime_ns, tmp_path / "scratch"
    with trio.fail_after(240):
        while scratch.touch() or scratch.stat().st_ctime_ns <= first:
            await trio.lowlevel.checkpoint()
    file.chmod(0o400)
    assert one._look() != before


OAUTH = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_token_endpoint_url": "https://id.test",
}
BEARER = {**OAUTH, "sasl_oauth_grant_type": "jwt-bearer"}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("ssl_cafile", {}),
        ("ssl_cafile", {"ssl_ca_password": "x"}),
        ("ssl_certfile", {}),
        ("ssl_certfile", {"ssl_keyfile": IDENTITY}),
        ("ssl_keyfile", {"ssl_certfile": IDENTITY}),
        ("ssl_crlfile", {}),
        (
            "sasl_oauth_cafile",
            {**OAUTH, "sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "x"},
        ),
        ("sasl_oauth_assertion_file", BEARER),
        ("sasl_oauth_assertion_private_key_file", BEARER),
        (
            "sasl_oauth_assertion_template_file",
            {**BEARER, "sasl_oauth_assertion_private_key_file": IDENTITY},
        ),
    ],
)
async def test_pipe_in_place_of_a_file_is_refused(
    name: str, others: dict[str, Any], tmp_path: Path
) -> None:
    """Opening it would wait for a writer, for ever."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    given: dict[str, Any] = {"security_protocol": "SSL", **others, name: pipe}
    if given["security_protocol"] == "SSL" and name != "ssl_cafile":
        given["ssl_cafile"] = PEM
    with pytest.raises(
        ConfigurationError, match=rf"{name}.*: a pipe or a device, not a regular file"
    ):
        async with trikafka.open_admin(bootstrap_servers="a:1", **given):
            raise AssertionError("it was opened")
