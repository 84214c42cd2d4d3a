"""Certificates and keys as stores and as text:

PKCS12 as Java writes it, and keys that touch no disk.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from open_files import open_files
from test_tls import AUTHORITY, OTHER, PEM, blocking_server, connect, receive, server_context

from trikafka._net.stores import authorities
from trikafka._net.tls_context import make_context, pem_lines
from trikafka.config import AdminConfig, ConsumerConfig, ProducerConfig, from_properties
from trikafka.errors import ConfigurationError

PASSWORD = "s3cr3t-90bd"
#: What OpenSSL writes before an object that it took from a store.
PREAMBLE = "Bag Attributes\n    friendlyName: k\nsubject=CN = me\n"
Store = Callable[..., Path]


def keytool(*arguments: str) -> None:
    subprocess.run(
        ["keytool", *arguments, "-storepass", PASSWORD, "-noprompt"],
        check=True,
        capture_output=True,
    )


def identity() -> tuple[str, str]:
    """Return a client's certificate with its chain, and its key, each as PEM."""
    made = AUTHORITY.create_child_ca().issue_cert("me@test")
    return "".join(
        part.bytes().decode() for part in made.cert_chain_pems
    ), made.private_key_pem.bytes().decode()


def openssl_store(folder: Path, certificate: str, key: str) -> Path:
    (folder / "me.pem").write_text(key + certificate)
    store = folder / "me.p12"
    command = [
        "openssl",
        "pkcs12",
        "-export",
        "-in",
        folder / "me.pem",
        "-out",
        store,
        "-passout",
        f"pass:{PASSWORD}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return store


@pytest.fixture(scope="module")
def trust_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a trust store with two authorities as Java writes it."""
    folder = tmp_path_factory.mktemp("trust")
    for name, authority in (("ours", AUTHORITY), ("other", OTHER)):
        authority.cert_pem.write_to_path(folder / f"{name}.pem")
        keytool(
            "-importcert",
            "-alias",
            name,
            "-file",
            f"{folder}/{name}.pem",
            "-keystore",
            f"{folder}/trust.p12",
        )
    return folder / "trust.p12"


async def secured(authority: trustme.CA, **settings: Any) -> None:
    """Connect to a server that asks for a certificate, and receive a response."""
    context = server_context(authority.issue_cert("localhost"), verify_mode=ssl.CERT_REQUIRED)
    AUTHORITY.configure_trust(context)
    with blocking_server(context) as node:
        transport = await connect(node, **settings)
        await transport.send_all([memoryview(b"hello")])
        assert await receive(transport, 5) == b"hello"
        await transport.aclose()


async def test_stores_of_java_are_read(trust_store: Path, tmp_path: Path) -> None:
    store = openssl_store(tmp_path, *identity())
    keytool(  # Java's own form of it
        "-importkeystore",
        "-srckeystore",
        str(store),
        "-srcstorepass",
        PASSWORD,
        "-destkeystore",
        f"{tmp_path}/java.p12",
    )
    for kind in ({"ssl.truststore.type": "PKCS12", "ssl.keystore.type": "PKCS12"}, {}):
        properties = {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(trust_store),
            "ssl.truststore.password": PASSWORD,
            "ssl.keystore.location": f"{tmp_path}/java.p12",
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
        }
        settings = from_properties({**properties, **kind})
        await secured(AUTHORITY, **settings)
        await secured(OTHER, **settings)


async def test_store_of_openssl_is_read(tmp_path: Path) -> None:
    store = openssl_store(tmp_path, *identity())
    await secured(AUTHORITY, ssl_certfile=str(store), ssl_password=PASSWORD)


def test_store_with_several_keys_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cryptography package reads the first one; Java's client would choose."""
    both = tmp_path / "both.p12"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        keytool(
            "-importkeystore",
            "-srckeystore",
            str(openssl_store(tmp_path / name, *identity())),
            "-srcstorepass",
            PASSWORD,
            "-srcalias",
            "1",
            "-destalias",
            name,
            "-destkeystore",
            str(both),
        )
    given = {"security_protocol": "SSL", "ssl_cafile": PEM, "ssl_password": PASSWORD}
    make_context(AdminConfig.build({**given, "ssl_certfile": str(tmp_path / "one/me.p12")}))
    assert not caplog.records
    make_context(AdminConfig.build({**given, "ssl_certfile": str(both)}))
    (warning,) = caplog.records
    assert "several private keys: that of" in warning.getMessage()


def test_unusable_stores_are_explained(trust_store: Path, tmp_path: Path) -> None:
    store = openssl_store(tmp_path, *identity())
    keytool(
        "-importcert",
        "-alias",
        "a",
        "-file",
        f"{trust_store.parent}/ours.pem",
        "-storetype",
        "JKS",
        "-keystore",
        f"{tmp_path}/java.store",
    )
    (tmp_path / "der").write_bytes(ssl.PEM_cert_to_DER_cert(PEM))
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"ssl_cafile": str(trust_store)},
            "ssl_cafile '.*': the PKCS12 store cannot be opened: its password is missing",
        ),
        (
            {"ssl_cafile": str(trust_store), "ssl_ca_password": "x"},
            "ssl_cafile '.*': .* its password is wrong",
        ),
        (
            {"ssl_certfile": str(store), "ssl_password": "x"},
            "ssl_certfile '.*': .* its password is wrong",
        ),
        (
            {"ssl_certfile": str(trust_store), "ssl_password": PASSWORD},
            "ssl_certfile '.*': .* holds no private key",
        ),
        (
            {"ssl_certfile": f"{tmp_path}/java.store"},
            "ssl_certfile '.*': a store of type JKS: .* keytool -importkeystore",
        ),
        ({"ssl_cafile": f"{tmp_path}/der"}, "neither PEM nor a PKCS12 store"),
    ]
    for settings, says in wrong:
        with pytest.raises(ConfigurationError, match=says) as caught:
            make_context(AdminConfig.build({"security_protocol": "SSL", **settings}))
        assert PASSWORD not in str(caught.value)


@pytest.fixture(scope="module")
def jks_store(trust_store: Path) -> Path:
    """Make a trust store of type JKS by keytool, with two authorities."""
    store = trust_store.parent / "trust.jks"
    for name in ("ours", "other"):
        certificate = f"{trust_store.parent}/{name}.pem"
        keytool(
            "-importcert",
            "-alias",
            f"{name}-\xe9",
            "-file",
            certificate,
            "-storetype",
            "JKS",
            "-keystore",
            str(store),
        )
    assert store.read_bytes().startswith(b"\xfe\xed\xfe\xed")
    return store


@pytest.mark.parametrize(
    "kind", [{}, {"ssl.truststore.type": "JKS"}, {"ssl.truststore.type": "jks"}]
)
@pytest.mark.parametrize("password", [{}, {"ssl.truststore.password": PASSWORD}])
async def test_jks_trust_store_is_read(
    jks_store: Path, kind: dict[str, str], password: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No package and no password are needed, as in Java."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(jks_store)}
    settings = from_properties({**given, **kind, **password})
    context = make_context(AdminConfig.build({**settings, "bootstrap_servers": "a:1"}))
    found = context.get_ca_certs(binary_form=True)
    expected = [
        ssl.PEM_cert_to_DER_cert(one.cert_pem.bytes().decode()) for one in (AUTHORITY, OTHER)
    ]
    assert sorted(found) == sorted(expected)


async def test_jks_store_is_trusted_by_a_connection(jks_store: Path, tmp_path: Path) -> None:
    store = openssl_store(tmp_path, *identity())
    given = {"ssl_cafile": str(jks_store), "ssl_ca_password": PASSWORD}
    await secured(OTHER, **given, ssl_certfile=str(store), ssl_password=PASSWORD)


def test_unusable_jks_stores_are_explained(jks_store: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.jks"
    source = openssl_store(tmp_path, *identity())
    keytool(
        "-importkeystore",
        "-srckeystore",
        str(source),
        "-srcstorepass",
        PASSWORD,
        "-deststoretype",
        "JKS",
        "-destkeystore",
        str(keys),
    )
    whole = jks_store.read_bytes()
    empty = whole[:8] + bytes(4) + bytes(20)
    cases: list[tuple[bytes, str | None, str]] = [
        (whole, "x", "cannot be opened: its password is wrong, or the file is damaged"),
        (whole, "", "its password is wrong"),
        (
            whole[:200] + b"\0" + whole[201:],
            PASSWORD,
            "its password is wrong, or the file is damaged",
        ),
        (whole[:-1], PASSWORD, "its password is wrong, or the file is damaged"),
        (whole + b"\0", None, "is damaged"),
        (whole[:4] + b"\0\0\0\x09" + whole[8:], None, "has version 9"),
        (empty, None, "holds no certificates"),
        (keys.read_bytes(), PASSWORD, "holds a private key, .* keytool -importkeystore"),
        (
            b"\xce" * 4 + whole[4:],
            PASSWORD,
            "a store of type JCEKS: .* keytool -importkeystore",
        ),
    ]
    store = tmp_path / "wrong.jks"
    for content, password, says in cases:
        store.write_bytes(content)
        settings = {
            "security_protocol": "SSL",
            "ssl_cafile": str(store),
            "ssl_ca_password": password,
        }
        with pytest.raises(ConfigurationError, match=f"ssl_cafile '.*': .*{says}") as caught:
            make_context(AdminConfig.build(settings))
        assert PASSWORD not in str(caught.value)


def test_any_jks_bytes_are_read_or_refused(jks_store: Path) -> None:
    """The store is cut anywhere, or any length in it is changed."""
    whole = jks_store.read_bytes()
    read = 0
    for at in range(4, len(whole)):
        for content in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
            try:
                authorities(content, None)
                read += 1
            except ConfigurationError:
                pass
    assert 0 < read < len(whole), "without a password a certificate's own bytes are not looked at"


def test_missing_package_is_named(trust_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    settings = {
        "security_protocol": "SSL",
        "ssl_cafile": str(trust_store),
        "ssl_ca_password": PASSWORD,
    }
    with pytest.raises(
        ConfigurationError,
        match=r"needs the package cryptography: pip install 'trikafka\[crypto\]'",
    ):
        make_context(AdminConfig.build(settings))


# -- text
# ---------------------------------------------------------------------------------------------------------------------

_written: list[object] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _written is not None and event == "open":
        path, _, flags = arguments
        if not isinstance(path, int) and (flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            _written.append(path)


@pytest.fixture
def written() -> Iterator[list[object]]:
    """Record the paths that are opened for writing.

    Python has no way to remove such a hook.
    """
    global _written
    if _written is None and "hooked" not in _hook.__dict__:
        sys.addaudithook(_hook)
        _hook.__dict__["hooked"] = True
    _written = []
    yield _written
    _written = None


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("locked", [False, True])
async def test_key_as_text_touches_no_disk(
    piped: bool, locked: bool, written: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if piped:  # a system without files in memory
        monkeypatch.delattr(os, "memfd_create")
    certificate, key = identity()
    settings: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}
    if locked:
        loaded: Any = serialization.load_pem_private_key(key.encode(), None)
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        form = serialization.PrivateFormat.PKCS8
        text = loaded.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
        settings = {"ssl_certfile": certificate, "ssl_keyfile": text, "ssl_password": PASSWORD}
    open_before = open_files()
    make_context(AdminConfig.build({"security_protocol": "SSL", "ssl_cafile": PEM, **settings}))
    make_context(
        AdminConfig.build(
            {"security_protocol": "SSL", **settings, "ssl_certfile": certificate * 100}
        )
    )
    assert written == []
    # Files that earlier tests left open may be closed meanwhile, so only new ones count.
    assert not open_files() - open_before
    await secured(AUTHORITY, **settings)


@pytest.mark.parametrize(
    "reshaped",
    [
        lambda text: text.replace("\n", "\\n"),
        lambda text: text.replace("\n", " "),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\\r\\n"),
        lambda text: text.replace("\n", "\\r"),
        lambda text: (PREAMBLE + text).replace("\n", "\\n"),
        lambda text: (PREAMBLE + text).replace("\n", " "),
        lambda text: PREAMBLE.strip() + text.replace("\n", ""),
        lambda text: "\n".join("    " + line for line in text.splitlines()),
    ],
)
async def test_lines_of_pem_text_may_be_lost(reshaped: Any) -> None:
    """As in an environment, a properties file or a file of YAML."""
    certificate, key = identity()
    both = OTHER.cert_pem.bytes().decode() + PEM
    for given in (
        {"ssl_certfile": reshaped(certificate), "ssl_keyfile": reshaped(key)},
        {"ssl_certfile": reshaped(key + certificate)},
    ):
        await secured(AUTHORITY, ssl_cafile=reshaped(both), **given)
    loaded: Any = serialization.load_pem_private_key(key.encode(), None)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    old = loaded.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
    assert "DEK-Info: " in old
    for each in (old, old.replace("\n", "\\n"), PREAMBLE + old):
        await secured(AUTHORITY, ssl_certfile=certificate, ssl_keyfile=each, ssl_password=PASSWORD)


@pytest.mark.parametrize("edge", ["-----BEGIN X-----", "-----END X-----", ""])
@pytest.mark.parametrize("more", [" ", "\\n", "-----BEGIN X-----", "-----BEGIN "])
def test_damaged_pem_is_read_in_one_pass(edge: str, more: str) -> None:
    """The event loop waits meanwhile: in quadratic time this test would take minutes."""
    text = edge + more * 200_000
    assert pem_lines(text) == text
    assert pem_lines(more * 200_000 + "-----BEGIN X-----x-----END X-----").endswith(
        "\n-----BEGIN X-----\nx\n-----END X-----\n"
    )


def test_object_without_its_end_is_kept() -> None:
    """OpenSSL reports it. An end of another name ends nothing."""
    text = "-----BEGIN A-----\nx\n-----END B-----\n"
    assert pem_lines(text) == text
    whole = "-----BEGIN B-----\ny\n-----END B-----\n"
    assert pem_lines("-----BEGIN A-----\nx\n" + whole) == f"-----BEGIN A-----\nx\n{whole}\n"


@pytest.mark.parametrize("piped", [False, True])
def test_wrong_key_as_text_is_explained(piped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if piped:
        monkeypatch.delattr(os, "memfd_create")
    certificate, _ = identity()
    _, other = identity()
    broken = "-----BEGIN PRIVATE KEY-----\n" + "x" * 200_000  # more than a pipe holds
    wrong = [
        (other, "not that of the certificate"),
        (broken, "OpenSSL cannot read it|or cannot be read"),
    ]
    for key, says in wrong:
        settings = {"security_protocol": "SSL", "ssl_certfile": certificate, "ssl_keyfile": key}
        with pytest.raises(ConfigurationError, match=says):
            make_context(AdminConfig.build(settings))


@pytest.mark.parametrize("client", [AdminConfig, ConsumerConfig, ProducerConfig])
def test_settings_hide_their_secrets(client: type[AdminConfig]) -> None:
    _, key = identity()
    made = client(
        bootstrap_servers=f"alice:{PASSWORD}@a:1",
        ssl_certfile=key,
        sasl_plain_password=PASSWORD,
        sasl_oauth_token_endpoint_url=f"https://me:{PASSWORD}@id.test",
    )
    shown = repr(made) + repr(vars(made))
    assert PASSWORD not in shown
    assert key.splitlines()[1] not in shown
    assert made.sasl_plain_password == PASSWORD


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_oldest_tls_version_is_a_setting(version: str) -> None:
    context = server_context(
        AUTHORITY.issue_cert("localhost"), maximum_version=ssl.TLSVersion.TLSv1_2
    )
    with blocking_server(context) as node:
        if version == "TLSv1.3":
            with pytest.raises(
                Exception,
                match=r"no TLS version or cipher in common \(ssl_minimum_version, ssl_ciphers\)",
            ):
                await connect(node, ssl_minimum_version=version)
        else:
            await (await connect(node, ssl_minimum_version=version)).aclose()
