"""GSSAPI without a key distribution centre: faults of the client's settings are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from trikafka._net.kerberos import Kerberos
from trikafka.errors import HandshakeError


@pytest.fixture(autouse=True)
def realm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Configure a realm without a server."""
    config = tmp_path / "krb5.conf"
    config.write_text(
        "[libdefaults]\n default_realm = NOBODY.TEST\n dns_lookup_kdc = false\n "
        "dns_canonicalize_hostname = false\n"
    )
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")


@pytest.mark.parametrize("principal", [None, "alice"])
@pytest.mark.parametrize("prefix", ["", "FILE:"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        (b"", "the file is not a key table"),
        (b"not keys", "the file is not a key table"),
    ],
)
def test_unusable_key_table_is_named(
    tmp_path: Path, principal: str | None, prefix: str, content: bytes | None, says: str
) -> None:
    file = tmp_path / "alice.keytab"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(HandshakeError) as caught:
        Kerberos("kafka", "127.0.0.1", principal, f"{prefix}{file}").first()
    who = "" if principal is None else " for 'alice' (sasl_kerberos_principal)"
    table = f"'{prefix}{file}' (sasl_kerberos_keytab)"
    assert str(caught.value).startswith(
        f"GSSAPI: there is no ticket{who} by the key table {table}: {says}"
    )
