"""Revoked certificates: ``ssl_crlfile``."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from netting import config
from test_tls import AUTHORITY, OTHER, PEM, connect, dial, receive, server_context, serving

from trikafka._net.security import Security
from trikafka._net.tls_context import make_context
from trikafka.errors import ConfigurationError, HandshakeError

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def revocations(
    *revoked: trustme.LeafCert | trustme.CA,
    authority: trustme.CA = AUTHORITY,
    ends: datetime.datetime = NOW + DAY,
) -> str:
    """Return the list of revoked certificates that an authority publishes."""
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    key: Any = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(NOW - 2 * DAY)
        .next_update(ends)
    )
    for leaf in revoked:
        pem = leaf.cert_pem if isinstance(leaf, trustme.CA) else leaf.cert_chain_pems[0]
        number = x509.load_pem_x509_certificate(pem.bytes()).serial_number
        entry = (
            x509.RevokedCertificateBuilder()
            .serial_number(number)
            .revocation_date(NOW - DAY)
            .build()
        )
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def trust_store_of(authority: trustme.CA) -> bytes:
    """Return a trust store in PKCS12 with an authority."""
    certificate = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    return pkcs12.serialize_key_and_certificates(
        None, None, None, [certificate], serialization.NoEncryption()
    )


async def test_revoked_certificate_is_refused(tmp_path: Path) -> None:
    bad, good = AUTHORITY.issue_cert("localhost"), AUTHORITY.issue_cert("localhost")
    text, file = revocations(bad), tmp_path / "revoked.pem"
    file.write_text(text)
    async with serving(server_context(bad)) as node:
        for given in (text, str(file)):
            with pytest.raises(
                HandshakeError,
                match=r"the certificate of localhost:\d+ was revoked \(ssl_crlfile\)",
            ):
                await connect(node, ssl_crlfile=given)
        await (await connect(node)).aclose()
    async with serving(server_context(good)) as node:
        transport = await connect(node, ssl_crlfile=str(file))
        transport.send_now([b"hello"])
        assert await receive(transport, 5) == b"hello"
        await transport.aclose()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (revocations(ends=NOW - DAY), "cannot be checked against ssl_crlfile: CRL has expired"),
        (
            revocations(authority=OTHER),
            "cannot be checked against ssl_crlfile: unable to get certificate CRL",
        ),
    ],
    ids=["old", "of another authority"],
)
async def test_unusable_revocation_list_is_an_error(text: str, says: str) -> None:
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        with pytest.raises(HandshakeError, match=says):
            await connect(node, ssl_crlfile=text)


async def test_revoked_authority_is_refused() -> None:
    middle = AUTHORITY.create_child_ca()
    leaf = middle.issue_cert("localhost")
    of_middle = revocations(authority=middle)
    async with serving(server_context(leaf)) as node:
        with pytest.raises(HandshakeError, match=r"the certificate of localhost:\d+ was revoked"):
            await connect(node, ssl_crlfile=of_middle + revocations(middle))
        await (await connect(node, ssl_crlfile=of_middle + revocations())).aclose()
        for without_a_list in (of_middle, revocations()):
            with pytest.raises(
                HandshakeError, match=r"needs a list \(CRL\) that is valid of each authority"
            ):
                await connect(node, ssl_crlfile=without_a_list)


async def test_directory_of_lists_trusts_no_authority(tmp_path: Path) -> None:
    """A directory may have the certificates of authorities beside their lists."""
    bad = AUTHORITY.issue_cert("localhost")
    good = AUTHORITY.issue_cert("localhost")
    for authority in (AUTHORITY, OTHER):
        file = tmp_path / "certificate"
        authority.cert_pem.write_to_path(file)
        hashed = await trio.run_process(
            ["openssl", "x509", "-hash", "-noout", "-in", str(file)], capture_stdout=True
        )
        stem = hashed.stdout.decode().strip()
        file.rename(tmp_path / f"{stem}.0")
        (tmp_path / f"{stem}.r0").write_text(revocations(bad, authority=authority))
    given = {"ssl_crlfile": str(tmp_path)}
    async with serving(server_context(good)) as node:
        await (await connect(node, **given)).aclose()
    async with serving(server_context(bad)) as node:
        with pytest.raises(HandshakeError, match="was revoked"):
            await connect(node, **given)
    async with serving(server_context(OTHER.issue_cert("localhost"))) as node:
        with pytest.raises(HandshakeError):
            await connect(node, **given)


@pytest.mark.parametrize("kind", ["text", "file", "directory"])
async def test_authority_beside_lists_is_not_trusted(tmp_path: Path, kind: str) -> None:
    """Lists are often kept in one file with their authorities."""
    text = OTHER.cert_pem.bytes().decode() + revocations() + revocations(authority=OTHER)
    file = tmp_path / "9d66eef0.r0"
    file.write_text(text)
    given = {"text": text, "file": str(file), "directory": str(tmp_path)}[kind]
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        await (await connect(node, ssl_crlfile=given)).aclose()
    async with serving(server_context(OTHER.issue_cert("localhost"))) as node:
        with pytest.raises(HandshakeError, match="authority that is not trusted"):
            await connect(node, ssl_crlfile=given)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"nothing", "holds no list in PEM"),
        (OTHER.cert_pem.bytes(), "holds no list in PEM"),
        (trust_store_of(OTHER), "holds no list in PEM"),
        (f"{revocations()}{revocations()[:200]}".encode(), "a list that is damaged or incomplete"),
        (
            f"{revocations()[:200]}\n{OTHER.cert_pem.bytes().decode()}{revocations()}".encode(),
            "a list that is damaged or incomplete",
        ),
    ],
    ids=["no PEM", "an authority", "a trust store", "a cut list", "a cut list and an authority"],
)
async def test_file_without_whole_lists_is_refused(
    tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "revoked.pem"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"ssl_crlfile: .*{says}"):
        make_context(config(security_protocol="SSL", ssl_cafile=PEM, ssl_crlfile=str(file)))


async def test_list_renewed_in_a_directory_is_read(tmp_path: Path) -> None:
    """A program that renews the list may write into the same file."""
    leaf = AUTHORITY.issue_cert("localhost")
    file = tmp_path / "9d66eef0.r0"
    file.write_text(revocations())
    given = config(security_protocol="SSL", ssl_cafile=PEM, ssl_crlfile=str(tmp_path))
    security = Security(given)
    async with serving(server_context(leaf)) as node:
        await (await security.connect(dial, node)).aclose()
        file.write_text(revocations(leaf))
        await security.refresh()
        with pytest.raises(HandshakeError, match="was revoked"):
            await security.connect(dial, node)
