"""Certificates that were revoked: ``ssl_crlfile``."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from test_net_tls import AUTHORITY, OTHER, connect, receive, server_context, serving

from trikafka.errors import ConfigurationError, HandshakeError

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


def revocations(*revoked: trustme.LeafCert, authority: trustme.CA = AUTHORITY, ends: datetime.datetime = NOW + DAY) -> str:
    """What an authority publishes of the certificates that are not to be trusted any more."""
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    key: Any = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject).last_update(NOW - 2 * DAY).next_update(ends)
    for leaf in revoked:
        number = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(NOW - DAY).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


async def test_a_certificate_that_was_revoked_and_one_that_was_not(tmp_path: Path) -> None:
    bad, good = AUTHORITY.issue_cert("localhost"), AUTHORITY.issue_cert("localhost")
    text, file = revocations(bad), tmp_path / "revoked.pem"
    file.write_text(text)
    async with serving(server_context(bad)) as node:
        for given in (text, str(file)):
            with pytest.raises(HandshakeError, match=r"the certificate of localhost:\d+ was revoked \(ssl_crlfile\)"):
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
        (revocations(authority=OTHER), "cannot be checked against ssl_crlfile: unable to get certificate CRL"),
    ],
    ids=["old", "of another authority"],
)
async def test_a_list_that_says_nothing_of_it(text: str, says: str) -> None:
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        with pytest.raises(HandshakeError, match=says):
            await connect(node, ssl_crlfile=text)


async def test_a_file_that_is_no_list(tmp_path: Path) -> None:
    file = tmp_path / "revoked.pem"
    file.write_text("nothing")
    async with serving(server_context(AUTHORITY.issue_cert("localhost"))) as node:
        with pytest.raises(ConfigurationError, match="ssl_crlfile"):
            await connect(node, ssl_crlfile=str(file))
