"""GSSAPI against a real key distribution centre (MIT's krb5kdc) and a real broker.

Without such a centre the tests fail, and name the system's packages that are missing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import PATIENT, topic_reported
from trikafka_broker import KafkaCluster
from trikafka_broker.ports import Ports
from trikafka_broker.pytest_plugin import _open

import trikafka
from trikafka import AuthenticationError

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
REALM = "TRIKAFKA.TEST"
#: Debian's folder of the tools, which is not on every user's path.
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
NEEDED = [
    name
    for name in ("krb5kdc", "kdb5_util", "kadmin.local")
    if shutil.which(name, path=PATH) is None
]
NEEDED += [] if importlib.util.find_spec("gssapi") else ["the package gssapi"]


class Kdc:
    """A realm of its own below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = Ports()
        self.port = self._ports.take()
        self.config = directory / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n "
            "dns_canonicalize_hostname = false\n rdns = false\n"
            f" udp_preference_limit = 1\n[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n "
            f"}}\n"
        )
        (directory / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = "
            f"127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file "
            f"= {directory}/stash\n }}\n"
        )
        self.environment = {
            "PATH": PATH,
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
        }
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        for principal in ("kafka/127.0.0.1", "alice", "carol"):
            self.administer(f"addprinc -randkey {principal}")
            self.administer(f"ktadd -k {self.keytab(principal)} {principal}")
        self.process = subprocess.Popen(
            ["krb5kdc", "-n"], env={**os.environ, **self.environment}, stderr=subprocess.DEVNULL
        )
        self._await_port()

    def keytab(self, principal: str) -> Path:
        return self.directory / f"{principal.partition('/')[0]}.keytab"

    def administer(self, query: str) -> None:
        self._run("kadmin.local", "-q", query)

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, env={**os.environ, **self.environment}, check=True, capture_output=True
        )

    def _await_port(self) -> None:
        until = time.monotonic() + 240
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the KDC does not listen")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._ports.release()


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    if NEEDED:
        pytest.fail(
            f"there is no {', no '.join(NEEDED)} (Debian, Ubuntu: apt install krb5-kdc "
            "krb5-admin-server libkrb5-dev; then scripts/environment.py test)"
        )
    made = Kdc(tmp_path_factory.mktemp("kdc"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, kdc: Kdc) -> Iterator[KafkaCluster]:
    login = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        "doNotPrompt=true"
        f' keyTab="{kdc.keytab("kafka")}" principal="kafka/127.0.0.1@{REALM}";'
    )
    options: Any = {
        "listeners": {"KRB": "SASL_PLAINTEXT"},
        "properties": {
            **PATIENT,
            "listener.name.krb.sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.krb.gssapi.sasl.jaas.config": login,
            "listener.name.krb.gssapi.connections.max.reauth.ms": 2_000,
            "sasl.kerberos.service.name": "kafka",
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={kdc.config}")
        with _open(request.config, options) as cluster:
            yield cluster


@pytest.fixture
def settings(
    broker: KafkaCluster, kdc: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kdc.keytab("alice")))
    servers = broker.bootstrap_servers_of("KRB")
    return {
        "bootstrap_servers": servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
    }


async def test_example_of_the_page_connects(settings: dict[str, Any]) -> None:
    (text,) = re.findall(
        r"<!-- run: kerberos -->\n```python\n(.*?)```",
        SECURITY.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    defined: dict[str, Any] = {}
    exec(text, defined)
    with trio.fail_after(400):
        async with trikafka.open_admin(**{**defined["settings"], **settings}) as admin:
            assert await admin.describe_cluster()


async def test_session_by_a_ticket_is_renewed(settings: dict[str, Any]) -> None:
    """Records are sent and read by a ticket, while the session is authenticated again."""
    with trio.fail_after(400):
        async with trikafka.open_admin(**settings) as admin:
            await admin.create_topics({"krb": trikafka.NewTopic(1, 1)})
            await topic_reported(admin, "krb", 1)
        async with (
            trikafka.open_producer(linger_ms=0, **settings) as producer,
            trikafka.open_consumer(
                "krb", group_id="krb", auto_offset_reset="earliest", **settings
            ) as consumer,
        ):
            sent, again = 0, 0.0
            while not again:
                await producer.send("krb", b"%d" % sent)
                assert (await anext(aiter(consumer))).value == b"%d" % sent
                sent += 1
                ready = [
                    each for each in producer.statistics().connections if each.state == "ready"
                ]
                again = max(
                    (each.seconds.get("reauthenticating", 0.0) for each in ready), default=0.0
                )


async def test_key_table_is_for_one_client(
    settings: dict[str, Any], kdc: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A key table and a principal in the settings concern this client alone.

    The environment has no ticket and gets none. Two clients of a process can be two users.
    """
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(tmp_path / "none"))
    login = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true"
    alice = f'{login} keyTab="{kdc.keytab("alice")}" principal="alice";'
    with trio.fail_after(400):
        async with trikafka.open_admin(
            **settings, **trikafka.from_properties({"sasl.jaas.config": alice})
        ) as admin:
            assert await admin.describe_cluster()
        async with trikafka.open_admin(
            **settings, sasl_kerberos_keytab=str(kdc.keytab("kafka"))
        ) as admin:
            assert await admin.describe_cluster()
        with pytest.raises(AuthenticationError, match="GSSAPI"):
            async with trikafka.open_admin(**settings, sasl_kerberos_keytab=str(tmp_path / "none")):
                pass
        with pytest.raises(AuthenticationError, match="GSSAPI"):
            async with trikafka.open_admin(**settings):
                pass
    assert not (tmp_path / "tickets").exists()


async def test_missing_ticket_is_an_error(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(tmp_path / "none"))
    with trio.fail_after(400), pytest.raises(AuthenticationError, match="GSSAPI"):
        async with trikafka.open_admin(**settings):
            pass


async def test_unknown_service_is_an_error(settings: dict[str, Any]) -> None:
    with trio.fail_after(400), pytest.raises(AuthenticationError, match="GSSAPI"):
        async with trikafka.open_admin(**settings, sasl_kerberos_service_name="other"):
            pass


async def for_ever(again: Callable[[], Awaitable[object]]) -> None:
    while True:
        await again()
        await trio.sleep(0.2)


async def test_changed_key_names_its_key_table(settings: dict[str, Any], kdc: Kdc) -> None:
    """The error about a changed key names the key table and the principal.

    Previously the error was "Ticket expired", after the last ticket by the old key had expired.
    """
    keytab = kdc.keytab("carol")
    kdc.administer("modprinc -maxlife 2sec carol")
    carol = {"sasl_kerberos_keytab": str(keytab), "sasl_kerberos_principal": "carol"}

    async def known() -> None:
        async with trikafka.open_admin(**settings, **carol) as admin:
            assert await admin.describe_cluster()

    async def known_at_last() -> None:
        """Connect. On a busy machine a ticket may expire before it is used."""
        while True:
            try:
                await known()
            except AuthenticationError as error:
                if "expired" not in str(error):
                    raise
            else:
                return

    with trio.fail_after(400):
        await known_at_last()
        await trio.to_thread.run_sync(kdc.administer, "change_password -randkey carol")
        with pytest.raises(AuthenticationError) as caught:
            await for_ever(known_at_last)  # as long as the ticket lasts
        assert str(caught.value) == (
            "GSSAPI: there is no ticket for 'carol' (sasl_kerberos_principal) by the key table "
            f"'{keytab}' (sasl_kerberos_keytab):"
            " Decrypt integrity check failed (the key was changed at the key distribution centre: "
            "a new key table is needed)"
        )
        keytab.unlink()
        await trio.to_thread.run_sync(kdc.administer, f"ktadd -k {keytab} carol")
        await known_at_last()


async def test_error_names_the_environments_tickets(settings: dict[str, Any], kdc: Kdc) -> None:
    with trio.fail_after(400):
        with pytest.raises(AuthenticationError) as caught:
            async with trikafka.open_admin(**settings, sasl_kerberos_service_name="other"):
                pass
        cache, table = os.environ["KRB5CCNAME"], kdc.keytab("alice")
        assert str(caught.value).startswith(
            "GSSAPI: no ticket for the service 'other@127.0.0.1' by the credentials cache "
            f"'{cache}' (KRB5CCNAME) of"
            f" 'alice@{REALM}' or the key table '{table}' (KRB5_CLIENT_KTNAME): Server "
            f"other/127.0.0.1@{REALM} not found"
        )
        assert str(caught.value).endswith(
            "(the key distribution centre does not know the brokers by this name: see"
            " sasl_kerberos_service_name)"
        )
        with pytest.raises(
            AuthenticationError, match=r"(?s)cache .* of 'bob' \(sasl_kerberos_principal\)"
        ):
            async with trikafka.open_admin(**settings, sasl_kerberos_principal="bob"):
                pass
