"""The settings of secured connections, TLS and SASL, of every client.

Names are kafka-python's. Files may be given as paths or as PEM text. Secrets never appear in a
``repr`` or an error: see :mod:`.secrets`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ..errors import ConfigurationError
from .extensions import wrong_extension
from .secrets import holds_secret, secret
from .setting import INT32, setting, settings_of

#: A function that returns user name and password for each authentication.
Credentials = Callable[[], tuple[str, str] | Awaitable[tuple[str, str]]]
#: A function that returns an OAuth token as text or as an :class:`OAuthToken`.
TokenProvider = Callable[[], Any]

_PASSWORD = ("sasl_plain_", "sasl_credentials")
_SCRAM = (*_PASSWORD, "sasl_scram_")
#: trikafka's mechanisms, and the prefixes of their settings. A plugin's mechanism may use all of
#: these settings.
SASL_BUILTIN: Mapping[str, tuple[str, ...]] = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _SCRAM,
    "SCRAM-SHA-512": _SCRAM,
    "OAUTHBEARER": ("sasl_oauth_",),
    "GSSAPI": ("sasl_kerberos_",),
}


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Settings of TLS and SASL."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        "'SSL' is TLS, 'SASL_PLAINTEXT' authenticates without TLS, 'SASL_SSL' does both",
    )
    ssl_context: ssl.SSLContext | None = setting(  # noqa: RUF009
        None, "a context for TLS, used unchanged, instead of the other TLS settings", java=None
    )
    ssl_cafile: str | None = setting(
        None,
        "the trusted authorities: a PEM file, a directory of them ('openssl rehash'), a store in "
        "PKCS12 or JKS, or PEM text; None: the system's",
        empty=False,
        java="ssl.truststore.certificates",
    )
    ssl_ca_password: str | None = setting(
        None,
        "the password of a trust store in ssl_cafile",
        java=None,
        secret=True,
    )
    ssl_certfile: str | None = setting(
        None,
        "this client's certificate and chain (mutual TLS): a PEM file, a PKCS12 store with "
        "its key, or PEM text",
        empty=False,
        java="ssl.keystore.certificate.chain",
    )
    ssl_keyfile: str | None = setting(
        None,
        "the private key: a PEM file, or PEM text; None: ssl_certfile has it",
        empty=False,
        java="ssl.keystore.key",
        secret=True,
    )
    ssl_password: str | None = setting(
        None,
        "the password of ssl_keyfile, or of the PKCS12 store",
        java="ssl.key.password",
        secret=True,
    )
    ssl_check_hostname: bool = setting(
        True, "the broker's certificate must match the host name of its address", java=None
    )
    ssl_crlfile: str | None = setting(
        None,
        "revoked certificates (CRL) of each authority up to the root: a PEM file, a directory of "
        "them, or PEM text",
        empty=False,
        java=None,
    )
    ssl_minimum_version: Literal["TLSv1.2", "TLSv1.3"] = setting(
        "TLSv1.2", "the oldest accepted version of TLS", java=None
    )
    ssl_ciphers: str | None = setting(
        None,
        "the ciphers up to TLS 1.2, in OpenSSL's notation; None: OpenSSL's choice",
        empty=False,
        java=None,
    )
    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | str | None
    ) = setting(
        None,
        "the mechanism, if security_protocol names SASL; plugins may offer others",
        empty=False,
    )
    sasl_plain_username: str | None = setting(
        None, "the user name for PLAIN and SCRAM", empty=False, java=None
    )
    sasl_plain_password: str | None = setting(
        None, "the password for PLAIN and SCRAM", java=None, secret=True
    )
    sasl_credentials: Credentials | None = setting(  # noqa: RUF009
        None,
        "a function, async or not, that returns (name, password) at each authentication",
        java=None,
        secret=True,
    )
    sasl_scram_token_auth: bool = setting(
        False,
        "SCRAM's name and password are the token_id and password of a delegation token",
        java=None,
    )
    sasl_oauth_token_provider: TokenProvider | None = setting(  # noqa: RUF009
        None,
        "an async function that returns a token: text, or a trikafka.OAuthToken",
        java=None,
        secret=True,
    )
    sasl_oauth_token_endpoint_url: str | None = setting(
        None,
        "the endpoint of tokens, by OAuth 2's client credentials (KIP-768)",
        empty=False,
        secret=True,
    )
    sasl_oauth_client_id: str | None = setting(
        None,
        "the client's id at the token endpoint",
        empty=False,
        java="sasl.oauthbearer.client.credentials.client.id",
    )
    sasl_oauth_client_secret: str | None = setting(
        None,
        "the client's secret at the token endpoint",
        java="sasl.oauthbearer.client.credentials.client.secret",
        secret=True,
    )
    sasl_oauth_header_urlencode: bool = setting(
        True,
        "the client's id and secret are sent URL-encoded (RFC 6749); False: as they are, as by "
        "Java's client without this setting",
    )
    sasl_oauth_grant_type: Literal["client_credentials", "jwt-bearer"] = setting(
        "client_credentials",
        "the grant: the client's id and secret, or an assertion that the client signs (KIP-1139)",
        java=None,
    )
    sasl_oauth_assertion_private_key_file: str | None = setting(
        None,
        "the key that signs assertions: a PEM file, or PEM text",
        empty=False,
        secret=True,
    )
    sasl_oauth_assertion_private_key_passphrase: str | None = setting(
        None,
        "the password of that private key",
        secret=True,
    )
    sasl_oauth_assertion_algorithm: Literal["RS256", "ES256"] = setting(
        "RS256",
        "the signature algorithm of assertions",
    )
    sasl_oauth_assertion_claim_iss: str | None = setting(
        None,
        "the issuer in assertions",
        empty=False,
    )
    sasl_oauth_assertion_claim_sub: str | None = setting(
        None,
        "the subject in assertions",
        empty=False,
    )
    sasl_oauth_assertion_claim_aud: str | None = setting(
        None,
        "the audience in assertions",
        empty=False,
    )
    sasl_oauth_assertion_claim_exp_seconds: int = setting(
        300,
        "the lifetime of an assertion",
        least=1,
        most=INT32,
        unit="s",
    )
    sasl_oauth_assertion_claim_nbf_seconds: int = setting(
        60,
        "an assertion is valid from this time before now",
        least=0,
        most=INT32,
        unit="s",
    )
    sasl_oauth_assertion_claim_jti_include: bool = setting(
        False,
        "each assertion has its own id",
    )
    sasl_oauth_assertion_template_file: str | None = setting(
        None,
        'a JSON file with further parts of assertions: {"header": {...}, "payload": {...}}',
        empty=False,
    )
    sasl_oauth_assertion_file: str | None = setting(
        None,
        "an assertion that another program signs and renews, instead of a private key",
        empty=False,
    )
    sasl_oauth_cafile: str | None = setting(
        None,
        "the trusted authorities of the endpoint: a PEM file, a directory of them, or PEM text; "
        "None: the system's",
        empty=False,
        java=None,
    )
    sasl_oauth_scope: str | None = setting(
        None,
        "the scope to request at the token endpoint",
        empty=False,
    )
    sasl_oauth_extensions: Mapping[str, str] | None = setting(
        None, "extensions to send with a token (KIP-342)", java=None, secret=True
    )
    sasl_kerberos_service_name: str = setting(
        "kafka", "the brokers' service name in Kerberos", empty=False
    )
    sasl_kerberos_principal: str | None = setting(
        None,
        "this client's principal; None: that of the ticket, or the first in the key table",
        empty=False,
    )
    sasl_kerberos_keytab: str | None = setting(
        None,
        "a key table to get tickets with; None: an available ticket, or KRB5_CLIENT_KTNAME",
        empty=False,
    )

    def __post_init__(self) -> None:
        """Hide secret values, so that ``repr`` and ``vars`` never show them.

        It is done here, so that it also holds for an instance that the user makes.
        """
        # mypy doubts that a class is hashable
        known = settings_of(type(self))  # type: ignore[arg-type]
        for name, one in known.items():
            value = getattr(self, name)
            if one.secret or holds_secret(value):
                object.__setattr__(self, name, secret(value))

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """True if connections are authenticated by SASL."""
        return self.security_protocol.startswith("SASL_")

    def check_security(self, explicit: frozenset[str]) -> None:
        """Check these settings against each other.

        Raises:
            ConfigurationError: Two settings contradict each other.
        """
        defaults = {one.name: one.default for one in fields(self)}
        given = sorted(name for name in explicit if getattr(self, name) != defaults[name])
        self._check_tls([name for name in given if name.startswith("ssl_")])
        self._check_sasl([name for name in given if name.startswith("sasl_")])

    def _check_tls(self, given: list[str]) -> None:
        if given and not self.uses_tls:
            raise ConfigurationError(
                f"{given[0]} needs security_protocol='SSL' (or 'SASL_SSL'), not "
                f"{self.security_protocol!r}"
            )
        if self.ssl_context is not None and self.ssl_context.protocol is ssl.PROTOCOL_TLS_SERVER:
            raise ConfigurationError(
                "ssl_context is a server's: make a client's by ssl.create_default_context(), or by "
                "ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)"
            )
        others = [name for name in given if name not in ("ssl_context", "ssl_check_hostname")]
        if self.ssl_context is not None and others:
            raise ConfigurationError(
                f"ssl_context is used as it is: {others[0]} cannot be given beside it"
            )
        if (
            self.ssl_context is not None
            and self.ssl_context.check_hostname != self.ssl_check_hostname
            and ("ssl_check_hostname" in given)
        ):
            raise ConfigurationError(
                "ssl_check_hostname is ssl_context's own: set ssl_context.check_hostname"
            )
        if self.ssl_ciphers is not None and self.ssl_minimum_version == "TLSv1.3":
            raise ConfigurationError(
                "ssl_ciphers has no meaning with ssl_minimum_version='TLSv1.3': it selects the "
                "ciphers up to TLS 1.2"
            )
        if self.ssl_certfile is None and (
            self.ssl_keyfile is not None or self.ssl_password is not None
        ):
            raise ConfigurationError(
                "ssl_keyfile and ssl_password need ssl_certfile, the certificate that the key is "
                "for"
            )
        if self.ssl_cafile is None and self.ssl_ca_password is not None:
            raise ConfigurationError("ssl_ca_password needs ssl_cafile, the store that it opens")

    def _check_sasl(self, given: list[str]) -> None:
        if not self.uses_sasl:
            if given:
                raise ConfigurationError(
                    f"{given[0]} needs security_protocol='SASL_SSL' (or 'SASL_PLAINTEXT'), not "
                    f"{self.security_protocol!r}"
                )
            return
        mechanism = self.sasl_mechanism
        if mechanism is None:
            raise ConfigurationError(
                f"security_protocol={self.security_protocol!r} needs sasl_mechanism: "
                f"{', '.join(SASL_BUILTIN)}, or a plugin's"
            )
        self._check_mechanisms_own(mechanism, given)
        if SASL_BUILTIN.get(mechanism) in (_PASSWORD, _SCRAM):
            self._check_password(mechanism)
        elif mechanism == "OAUTHBEARER":
            self._check_oauth(given)

    def _check_mechanisms_own(self, mechanism: str, given: list[str]) -> None:
        """Refuse settings of another mechanism than the chosen one.

        Otherwise they would be ignored, although the user relies on them.
        """
        own = SASL_BUILTIN.get(mechanism)
        foreign = (
            []
            if own is None
            else [name for name in given if name != "sasl_mechanism" and not name.startswith(own)]
        )
        if foreign:
            of = " or ".join(
                repr(name) for name, begins in SASL_BUILTIN.items() if foreign[0].startswith(begins)
            )
            raise ConfigurationError(
                f"{foreign[0]} is for sasl_mechanism={of}, and has no meaning with {mechanism!r}"
            )

    def _check_password(self, mechanism: str) -> None:
        fixed = self.sasl_plain_username is not None or self.sasl_plain_password is not None
        if self.sasl_credentials is not None and fixed:
            raise ConfigurationError(
                "give sasl_plain_username and sasl_plain_password, or sasl_credentials, not both"
            )
        if self.sasl_credentials is None:
            for name in ("sasl_plain_username", "sasl_plain_password"):
                if getattr(self, name) is None:
                    raise ConfigurationError(
                        f"sasl_mechanism={mechanism!r} needs {name} (or sasl_credentials)"
                    )

    def _check_assertion(self, given: list[str]) -> None:
        """Check the settings of assertions, which have a meaning only with ``jwt-bearer``."""
        begins = "sasl_oauth_assertion_"
        own = [name for name in given if name.startswith(begins)]
        if self.sasl_oauth_token_provider is not None:
            for name in (
                "sasl_oauth_cafile",
                "sasl_oauth_grant_type",
                "sasl_oauth_header_urlencode",
                *own,
            ):
                if name in given:
                    raise ConfigurationError(
                        f"{name} is for sasl_oauth_token_endpoint_url: a token provider has its own"
                    )
        if self.sasl_oauth_grant_type != "jwt-bearer":
            if own:
                raise ConfigurationError(f"{own[0]} needs sasl_oauth_grant_type='jwt-bearer'")
            return
        if (self.sasl_oauth_client_id is None) != (self.sasl_oauth_client_secret is None):
            raise ConfigurationError(
                "sasl_oauth_client_id and sasl_oauth_client_secret need each other"
            )
        key = self.sasl_oauth_assertion_private_key_file
        file = self.sasl_oauth_assertion_file
        if key is None and file is None:
            raise ConfigurationError(
                f"sasl_oauth_grant_type='jwt-bearer' needs {begins}private_key_file, or "
                f"{begins}file"
            )
        if file is not None and (others := [name for name in own if name != f"{begins}file"]):
            raise ConfigurationError(
                f"{begins}file is sent as it is: {others[0]} cannot be given beside it"
            )

    def _check_oauth(self, given: list[str]) -> None:
        endpoint = (
            self.sasl_oauth_token_endpoint_url,
            self.sasl_oauth_client_id,
            self.sasl_oauth_client_secret,
        )
        self._check_assertion(given)
        extensions = self.sasl_oauth_extensions
        if extensions is not None and (wrong := wrong_extension(extensions)):
            raise ConfigurationError(f"sasl_oauth_extensions: {wrong}")
        if not self.sasl_oauth_header_urlencode and ":" in (self.sasl_oauth_client_id or ""):
            # RFC 7617, section 2. The endpoint would take the rest of the id for the secret.
            raise ConfigurationError(
                "sasl_oauth_client_id must not contain ':' with sasl_oauth_header_urlencode=False: "
                "the id ends at the first ':' of the header"
            )
        if self.sasl_oauth_token_provider is not None:
            if any(part is not None for part in endpoint):
                raise ConfigurationError(
                    "give sasl_oauth_token_provider, or the endpoint with client id and secret, "
                    "not both"
                )
            if self.sasl_oauth_scope is not None:
                raise ConfigurationError(
                    "sasl_oauth_scope is asked for at sasl_oauth_token_endpoint_url: a token "
                    "provider has its own"
                )
        elif (
            self.sasl_oauth_grant_type == "jwt-bearer"
            and self.sasl_oauth_token_endpoint_url is None
        ):
            raise ConfigurationError(
                "sasl_oauth_grant_type='jwt-bearer' needs sasl_oauth_token_endpoint_url"
            )
        elif self.sasl_oauth_grant_type != "jwt-bearer" and None in endpoint:
            raise ConfigurationError(
                "sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider, or "
                "sasl_oauth_token_endpoint_url with sasl_oauth_client_id and "
                "sasl_oauth_client_secret"
            )
        else:
            self._check_endpoint(self.sasl_oauth_token_endpoint_url or "")

    def _check_endpoint(self, url: str) -> None:
        """Check the URL without showing a wrong one: it may contain a password."""
        scheme, separator, rest = url.partition("://")
        host = re.split("[/?#]", rest, maxsplit=1)[0]
        wrong = ""
        if scheme.lower() not in ("http", "https") or not separator or not host:
            wrong = "must be a URL that begins with https:// (or http://)"
        elif "@" in host:
            wrong = (
                "cannot have a name or password in it: give sasl_oauth_client_id and "
                "sasl_oauth_client_secret"
            )
        if wrong:
            scheme = rest = host = ""  # an error tracker records the locals of a traceback's frames
            raise ConfigurationError(f"sasl_oauth_token_endpoint_url {wrong}")
