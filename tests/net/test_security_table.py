"""Every setting of TLS and SASL with every protocol and mechanism: it has a meaning or is refused."""

from __future__ import annotations

import ssl
from dataclasses import fields
from typing import Any

import pytest

from trikafka.config import AdminConfig, from_properties
from trikafka.config.security import SASL_BUILTIN, SecurityConfig
from trikafka.errors import ConfigurationError

SECRET = "s3cr3t-77aa"
TLS, PASSWORD, SCRAM, OAUTH, KERBEROS = "TLS", "password", "SCRAM", "OAUTHBEARER", "GSSAPI"


async def token() -> str:
    return SECRET


#: A value that is not the default, and what the setting is of.
TABLE: dict[str, tuple[Any, str]] = {
    "ssl_context": (ssl.create_default_context(), TLS),
    "ssl_cafile": ("ca.pem", TLS),
    "ssl_ca_password": (SECRET, TLS),
    "ssl_certfile": ("me.pem", TLS),
    "ssl_keyfile": ("me.key", TLS),
    "ssl_password": (SECRET, TLS),
    "ssl_check_hostname": (False, TLS),
    "ssl_crlfile": ("crl.pem", TLS),
    "ssl_minimum_version": ("TLSv1.3", TLS),
    "ssl_ciphers": ("ECDHE+AESGCM", TLS),
    "sasl_plain_username": ("alice", PASSWORD),
    "sasl_plain_password": (SECRET, PASSWORD),
    "sasl_credentials": (lambda: ("alice", SECRET), PASSWORD),
    "sasl_scram_token_auth": (True, SCRAM),
    "sasl_oauth_token_provider": (token, OAUTH),
    "sasl_oauth_token_endpoint_url": ("https://id.test/token", OAUTH),
    "sasl_oauth_client_id": ("me", OAUTH),
    "sasl_oauth_client_secret": (SECRET, OAUTH),
    "sasl_oauth_scope": ("kafka", OAUTH),
    "sasl_oauth_cafile": ("ca.pem", OAUTH),
    "sasl_oauth_header_urlencode": (False, OAUTH),
    "sasl_oauth_grant_type": ("jwt-bearer", OAUTH),
    "sasl_oauth_assertion_private_key_file": ("me.key", OAUTH),
    "sasl_oauth_assertion_private_key_passphrase": (SECRET, OAUTH),
    "sasl_oauth_assertion_algorithm": ("ES256", OAUTH),
    "sasl_oauth_assertion_claim_iss": ("me", OAUTH),
    "sasl_oauth_assertion_claim_sub": ("me", OAUTH),
    "sasl_oauth_assertion_claim_aud": ("them", OAUTH),
    "sasl_oauth_assertion_claim_exp_seconds": (60, OAUTH),
    "sasl_oauth_assertion_claim_nbf_seconds": (0, OAUTH),
    "sasl_oauth_assertion_claim_jti_include": (True, OAUTH),
    "sasl_oauth_assertion_template_file": ("more.json", OAUTH),
    "sasl_oauth_assertion_file": ("assertion.jwt", OAUTH),
    "sasl_oauth_extensions": ({"pool": SECRET}, OAUTH),
    "sasl_kerberos_service_name": ("broker", KERBEROS),
    "sasl_kerberos_principal": ("alice", KERBEROS),
    "sasl_kerberos_keytab": ("alice.keytab", KERBEROS),
}
#: The settings that make each whole, by protocol and mechanism.
WHOLE: dict[tuple[str, str | None], tuple[str, ...]] = {
    ("PLAINTEXT", None): (),
    ("SSL", None): (),
    **{
        (protocol, mechanism): ("sasl_plain_username", "sasl_plain_password")
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    },
    ("SASL_SSL", "OAUTHBEARER"): (
        "sasl_oauth_token_endpoint_url",
        "sasl_oauth_client_id",
        "sasl_oauth_client_secret",
    ),
    ("SASL_SSL", "GSSAPI"): (),
    ("SASL_SSL", "A-PLUGINS"): (),
}
#: Settings that are another way to do the same, and are refused beside it. Also settings that need
#: another one.
INSTEAD = {
    "sasl_credentials": ("sasl_plain_username", "sasl_plain_password"),
    "sasl_oauth_token_provider": (
        "sasl_oauth_token_endpoint_url",
        "sasl_oauth_client_id",
        "sasl_oauth_client_secret",
    ),
}
GRANT, KEY = "sasl_oauth_grant_type", "sasl_oauth_assertion_private_key_file"
NEEDS = {
    "ssl_keyfile": ("ssl_certfile",),
    "ssl_password": ("ssl_certfile",),
    "ssl_ca_password": ("ssl_cafile",),
    **{name: (GRANT, KEY) for name in TABLE if name.startswith("sasl_oauth_assertion_")},
    "sasl_oauth_assertion_file": (GRANT,),
    GRANT: (KEY,),
}


def test_table_is_complete() -> None:
    assert set(TABLE) == {one.name for one in fields(SecurityConfig)} - {
        "security_protocol",
        "sasl_mechanism",
    }
    assert {mechanism for _, mechanism in WHOLE} >= set(SASL_BUILTIN)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(("protocol", "mechanism"), WHOLE)
def test_setting_has_a_meaning_or_is_refused(
    protocol: str, mechanism: str | None, name: str
) -> None:
    value, of = TABLE[name]
    names = [each for each in WHOLE[protocol, mechanism] if each not in INSTEAD.get(name, ())]
    names += NEEDS.get(name, ())
    settings = {each: TABLE[each][0] for each in names} | {
        "security_protocol": protocol,
        name: value,
    }
    if mechanism is not None:
        settings["sasl_mechanism"] = mechanism
    kind = {"OAUTHBEARER": OAUTH, "GSSAPI": KERBEROS, "A-PLUGINS": of, None: None}.get(
        mechanism, PASSWORD
    )
    own = kind == PASSWORD and (mechanism or "").startswith(of)
    if ("SSL" in protocol) if of == TLS else own or of == kind:
        AdminConfig.build(settings)
        return
    with pytest.raises(ConfigurationError) as caught:
        AdminConfig.build(settings)
    # The certificate that a key needs comes first, and is equally out of place.
    assert str(caught.value).split()[0] in (name, *NEEDS.get(name, ()))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"sasl_mechanism": "PLAIN", "sasl_kerberos_keytab": "k"},
            "sasl_kerberos_keytab is for sasl_mechanism='GSSAPI', and has no meaning with 'PLAIN'",
        ),
        (
            {"sasl_mechanism": "GSSAPI", "sasl_plain_password": SECRET},
            "sasl_plain_password is for sasl_mechanism='PLAIN' or 'SCRAM-SHA-256' or "
            "'SCRAM-SHA-512', and has no meaning with"
            " 'GSSAPI'",
        ),
        (
            {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_provider": token,
                "sasl_oauth_scope": "s",
            },
            "sasl_oauth_scope is asked for at sasl_oauth_token_endpoint_url: a token provider has "
            "its own",
        ),
    ],
)
def test_purpose_of_a_setting_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AdminConfig.build({"security_protocol": "SASL_SSL", **settings})
    assert str(caught.value) == says


def test_given_default_is_no_contradiction() -> None:
    """Files of properties that programs share often have it:

    Java's and librdkafka's examples do.
    """
    shared = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.kerberos.service.name": "kafka",
    }
    AdminConfig.build(from_properties({**shared, "sasl.username": "a", "sasl.password": SECRET}))
