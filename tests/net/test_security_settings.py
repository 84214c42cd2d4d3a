"""Settings of TLS and SASL: valid combinations, names in Java and librdkafka, hidden secrets."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from trikafka.config import AdminConfig, from_properties
from trikafka.config.properties import read_properties
from trikafka.config.security_properties import NAMES
from trikafka.errors import ConfigurationError

SECRET = "s3cr3t-5f2c"
PLAIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "a",
    "sasl_plain_password": SECRET,
}
OAUTH = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
ENDPOINT = {
    "sasl_oauth_token_endpoint_url": "https://id.test/token",
    "sasl_oauth_client_id": "me",
    "sasl_oauth_client_secret": SECRET,
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"security_protocol": "SSL"},
        {
            "security_protocol": "SSL",
            "ssl_cafile": "ca.pem",
            "ssl_certfile": "me.pem",
            "ssl_password": SECRET,
        },
        {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()},
        PLAIN,
        {**PLAIN, "sasl_mechanism": "SCRAM-SHA-512", "security_protocol": "SASL_PLAINTEXT"},
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_credentials": lambda: ("a", SECRET),
        },
        {**OAUTH, "sasl_oauth_token_provider": asyncio.sleep},
        {**OAUTH, **ENDPOINT},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "A-PLUGINS"},
    ],
)
def test_valid_settings_show_no_secret(settings: dict[str, Any]) -> None:
    config = AdminConfig.build(settings)
    assert SECRET not in repr(config) + str(config)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"security_protocol": "TLS"},
            "security_protocol must be one of 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL'",
        ),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile needs security_protocol='SSL'"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism needs security_protocol='SASL_SSL'"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism: PLAIN, SCRAM-SHA-256"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "needs sasl_plain_username"),
        ({**PLAIN, "sasl_plain_password": None}, "needs sasl_plain_password"),
        ({**PLAIN, "sasl_credentials": lambda: ("a", "b")}, "sasl_credentials, not both"),
        ({**OAUTH}, "needs sasl_oauth_token_provider, or sasl_oauth_token_endpoint_url with"),
        (
            {**OAUTH, **ENDPOINT, "sasl_oauth_client_secret": None},
            "needs sasl_oauth_token_provider, or",
        ),
        ({**OAUTH, **ENDPOINT, "sasl_oauth_token_provider": asyncio.sleep}, "not both"),
        (
            {"security_protocol": "SSL", "ssl_keyfile": SECRET},
            "ssl_keyfile and ssl_password need ssl_certfile",
        ),
        (
            {
                "security_protocol": "SSL",
                "ssl_context": ssl.create_default_context(),
                "ssl_cafile": "x",
            },
            "is used as it is",
        ),
        (
            {**OAUTH, **ENDPOINT, "sasl_oauth_extensions": {"pool": 5}},
            "sasl_oauth_extensions: the value of extension 'pool' must be text of ASCII",
        ),
        (
            {**OAUTH, **ENDPOINT, "sasl_oauth_extensions": {"pool 1": SECRET}},
            "sasl_oauth_extensions: an extension's name must be of the letters A to Z",
        ),
        (
            {
                "security_protocol": "SSL",
                "ssl_context": ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
            },
            "ssl_context is a server's",
        ),
        (
            {
                "security_protocol": "SSL",
                "ssl_minimum_version": "TLSv1.3",
                "ssl_ciphers": "ECDHE+AESGCM",
            },
            "ssl_ciphers has no meaning with ssl_minimum_version='TLSv1.3'",
        ),
        (
            {"security_protocol": "SSL", "ssl_context": "x"},
            "ssl_context must be a SSLContext or None",
        ),
        (
            {**PLAIN, "sasl_plain_password": SECRET.encode()},
            "sasl_plain_password must be text or None, not bytes",
        ),
    ],
)
def test_contradictory_settings_show_no_secret(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AdminConfig.build(settings)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "settings"),
    [
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": 'org.apache.kafka.ScramLoginModule required username="al\\"ice" '
                'password="p;=x";',
            },
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": 'al"ice',
                "sasl_plain_password": "p;=x",
            },
        ),
        (
            {
                "sasl.jaas.config": "x.PlainLoginModule required\n username=alice\n password='secret';"
            },
            {"sasl_plain_username": "alice", "sasl_plain_password": "secret"},
        ),
        (
            {
                "security.protocol": "ssl",
                "ssl.ca.location": "ca.pem",
                "ssl.certificate.location": "me.pem",
                "ssl.key.location": "me.key",
                "ssl.key.password": "k",
                "ssl.endpoint.identification.algorithm": "none",
            },
            {
                "security_protocol": "SSL",
                "ssl_cafile": "ca.pem",
                "ssl_certfile": "me.pem",
                "ssl_keyfile": "me.key",
                "ssl_password": "k",
                "ssl_check_hostname": False,
            },
        ),
        (
            {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "ca.pem",
                "ssl.endpoint.identification.algorithm": "https",
            },
            {"ssl_cafile": "ca.pem", "ssl_check_hostname": True},
        ),
        (
            {
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": "t.p12",
                "ssl.truststore.password": "t",
                "ssl.keystore.location": "k.p12",
                "ssl.keystore.password": "k",
                "ssl.key.password": "k",
            },
            {
                "ssl_cafile": "t.p12",
                "ssl_ca_password": "t",
                "ssl_certfile": "k.p12",
                "ssl_password": "k",
            },
        ),
        ({"ssl.truststore.type": "JKS", "ssl.keystore.type": "JKS"}, {}),  # Java's default
        # of an environment without the variable
        (dict.fromkeys((*NAMES, "auto.offset.reset", "connections.max.idle.ms")), {}),
        ({"compression.type": "gzip", "compression.level": None}, {"compression_type": "gzip"}),
        (
            {"sasl.jaas.config": "x.PlainLoginModule REQUIRED username=a password=b;"},
            {"sasl_plain_username": "a", "sasl_plain_password": "b"},
        ),
        (
            {"ssl.truststore.location": "t.jks", "ssl.truststore.password": "t"},
            {"ssl_cafile": "t.jks", "ssl_ca_password": "t"},
        ),
        ({"ssl.enabled.protocols": "TLSv1.3, TLSv1.2", "ssl.protocol": "TLSv1.3"}, {}),
        ({"ssl.enabled.protocols": "TLSv1.3"}, {"ssl_minimum_version": "TLSv1.3"}),
        ({"enable.ssl.certificate.verification": "True"}, {}),
        ({"sasl.login.refresh.window.factor": "0.8", "sasl.login.retry.backoff.ms": "100"}, {}),
        ({"sasl.login.connect.timeout.ms": "1", "sasl.login.read.timeout.ms": "1"}, {}),
        (
            {
                "sasl.jaas.config": "x.ScramLoginModule required username=a password=b tokenauth=false;"
            },
            {"sasl_plain_username": "a", "sasl_plain_password": "b"},
        ),
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": "x.ScramLoginModule required username=a password=b tokenauth=true;",
            },
            {
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_username": "a",
                "sasl_plain_password": "b",
                "sasl_scram_token_auth": True,
            },
        ),
        (  # as Amazon's page has it
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
                "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
            },
            {"sasl_mechanism": "AWS_MSK_IAM"},
        ),
        (
            {"sasl.mechanisms": "PLAIN", "sasl.username": "a", "sasl.password": "b"},
            {"sasl_mechanism": "PLAIN", "sasl_plain_username": "a", "sasl_plain_password": "b"},
        ),
        (
            {
                "sasl.oauthbearer.token.endpoint.url": "https://id.test",
                "sasl.jaas.config": 'x.OAuthBearerLoginModule required clientId="me" clientSecret="s" '
                'scope="kafka";',
            },
            {
                "sasl_oauth_token_endpoint_url": "https://id.test",
                "sasl_oauth_client_id": "me",
                "sasl_oauth_client_secret": "s",
                "sasl_oauth_scope": "kafka",
            },
        ),
        (  # as Java's client needs it, and as a cloud documents it
            {
                "client.dns.lookup": "use_all_dns_ips",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.login.callback.handler.class": "org.apache.kafka.common.security."
                "oauthbearer.secured.OAuthBearerLoginCallbackHandler",
            },
            {"sasl_mechanism": "OAUTHBEARER"},
        ),
        (
            {
                "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
            },
            {},
        ),
        (
            {"sasl.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.method": "OIDC"},
            {"sasl_mechanism": "OAUTHBEARER"},
        ),
        (
            {
                "sasl.jaas.config": 'OAuthBearerLoginModule required clientId=me clientSecret=s extension_pool="p '
                '1" '
                "extension_k=v;"
            },
            {
                "sasl_oauth_client_id": "me",
                "sasl_oauth_client_secret": "s",
                "sasl_oauth_extensions": {"pool": "p 1", "k": "v"},
            },
        ),
        (
            {"sasl.jaas.config": "x.Krb5LoginModule required serviceName=broker;"},
            {"sasl_kerberos_service_name": "broker"},
        ),
        (
            {
                "sasl.jaas.config": "x.Krb5LoginModule required useTicketCache=true doNotPrompt=true debug=false;"
            },
            {},
        ),
        (
            {
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
                "storeKey=true"
                ' keyTab="/etc/a b.keytab" principal="alice@EXAMPLE.COM";'
            },
            {
                "sasl_kerberos_keytab": "/etc/a b.keytab",
                "sasl_kerberos_principal": "alice@EXAMPLE.COM",
            },
        ),
        (
            {"sasl.kerberos.keytab": "k", "sasl.kerberos.principal": "alice"},  # librdkafka's
            {"sasl_kerberos_keytab": "k", "sasl_kerberos_principal": "alice"},
        ),
        (  # GSSAPI is the default of both, so their files need not name it
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;",
            },
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
        ),
        (
            {"security.protocol": "sasl_plaintext", "sasl.kerberos.service.name": "kafka"},
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "GSSAPI",
                "sasl_kerberos_service_name": "kafka",
            },
        ),
        (  # for another mechanism, which is then missing: an error when the client opens
            {
                "security.protocol": "SASL_SSL",
                "sasl.jaas.config": "x.PlainLoginModule required username=a password=b;",
            },
            {
                "security_protocol": "SASL_SSL",
                "sasl_plain_username": "a",
                "sasl_plain_password": "b",
            },
        ),
    ],
)
def test_names_of_java_and_librdkafka_are_read(
    properties: dict[str, str], settings: dict[str, Any]
) -> None:
    assert from_properties(properties) == settings


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"ssl.keystore.location": "t.jks"}, "is a store of type JKS: trikafka reads PEM"),
        (
            {"ssl.truststore.type": "BCFKS"},
            "ssl.truststore.type is 'BCFKS': trikafka reads PEM and PKCS12",
        ),
        (
            {"ssl.truststore.password": SECRET},
            "ssl.truststore.password needs ssl.truststore.location",
        ),
        (
            {
                "ssl.keystore.location": "k.p12",
                "ssl.keystore.password": SECRET,
                "ssl.key.password": "other",
            },
            "a PKCS12 store has one password",
        ),
        (
            {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "t",
                "ssl.truststore.password": SECRET,
            },
            "a PEM file has none",
        ),
        (
            {"sasl.jaas.config": f"x.LdapLoginModule required password={SECRET};"},
            "the login module LdapLoginModule; known are",
        ),
        ({"sasl.jaas.config": f"password={SECRET}"}, "must be '<login module> required"),
        (
            {"sasl.jaas.config": f"x.PlainLoginModule required password={SECRET};"},
            "has no username",
        ),
        # A quote without its backslash: the rest belongs to the password, even if it looks like
        # options.
        (
            {
                "sasl.jaas.config": f'x.PlainLoginModule required username=a password="p"{SECRET}=x";'
            },
            "cannot be read after",
        ),
        (
            {
                "sasl.jaas.config": f'x.PlainLoginModule required username=a password="p" {SECRET}=x";'
            },
            "cannot be read after",
        ),
        (
            {"sasl.jaas.config": f"x.PlainLoginModule required username=a password=p;{SECRET};"},
            "cannot be read after",
        ),
        (
            {
                "sasl.jaas.config": "x.PlainLoginModule required username=a password=p; y.PlainLoginModule "
                "required;"
            },
            "cannot be read",
        ),
        (
            {"sasl.jaas.config": "x.Krb5LoginModule required keyTab=k principal=p;"},
            "keyTab without useKeyTab=true",
        ),
        (
            {"sasl.jaas.config": "x.Krb5LoginModule required useKeyTab=true principal=p;"},
            "useKeyTab=true and no keyTab",
        ),
        ({"sasl.jaas.config": "x.Krb5LoginModule required ticketCache=/tmp/c;"}, "KRB5CCNAME"),
        ({"sasl.jaas.config": "x.Krb5LoginModule required realm=X;"}, "does not know: realm"),
        ({"sasl.kerberos.kinit.cmd": "kinit"}, "'sasl.kerberos.kinit.cmd' is not supported"),
        ({"sasl.password": SECRET, "sasl_plain_password": "other"}, "given twice"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "must be 'https', or empty"),
        ({"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}, "Java's names of ciphers"),
        (
            {"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"},
            "client.dns.lookup must be 'use_all_dns_ips'",
        ),
        (
            {"sasl.login.callback.handler.class": "com.corp.Handler"},
            "sasl.login.callback.handler.class must be 'org.apache",
        ),
        ({"sasl.oauthbearer.method": SECRET}, "sasl.oauthbearer.method must be 'oidc'"),
        (
            {"ssl.provider": "x"},
            "'ssl.provider' is not supported: it names a class of Java",
        ),
        (
            {"sasl.login.class": "x"},
            "'sasl.login.class' is not supported: it names a class of Java: leave",
        ),
        (
            {"ssl.enabled.protocols": "TLSv1.2"},
            "trikafka offers TLSv1.2 and TLSv1.3: leave it out, add TLSv1.3, or",
        ),
        (
            {"ssl.protocol": "SSLv3"},
            "or be left out; ssl_minimum_version is the oldest version that is spoken",
        ),
        (
            {"enable.ssl.certificate.verification": "false"},
            "must be 'true', which is what trikafka does, or be left out",
        ),
        (
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required "
                f"awsProfileName={SECRET};",
            },
            "gives IAMLoginModule awsProfileName: leave it out, and give the plugin for "
            "AWS_MSK_IAM the credentials",
        ),
        (
            {"sasl.client.callback.handler.class": "com.corp.Handler"},
            "a plugin offers mechanisms that",
        ),
    ],
)
def test_meaningless_property_is_named(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_properties(properties)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_file_of_properties_is_read() -> None:
    text = "# a comment\n\n  security.protocol = SSL\n! another\n"
    text += "sasl.jaas.config=x.PlainLoginModule required \\\n   username=a \\\n  password=b;\na=\n"
    assert read_properties(text) == {
        "security.protocol": "SSL",
        "sasl.jaas.config": "x.PlainLoginModule required username=a password=b;",
        "a": "",
    }
    with pytest.raises(ConfigurationError, match="line 2: this is not NAME=VALUE") as caught:
        read_properties(f"a=b\n{SECRET}\n")
    assert SECRET not in str(caught.value)
