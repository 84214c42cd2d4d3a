"""The settings of a secured connection: TLS and SASL. They are every client's.

Names are kafka-python's. Files may be given as paths or as PEM text. What is secret is never shown, not in a ``repr`` and not in an
error: see :mod:`.secrets`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ..errors import ConfigurationError
from .setting import setting

#: What gives the user name and password anew for each authentication.
Credentials = Callable[[], tuple[str, str] | Awaitable[tuple[str, str]]]
#: What gives a token of OAuth: the token, or an :class:`OAuthToken`.
TokenProvider = Callable[[], Any]

_PASSWORD = ("sasl_plain_", "sasl_credentials")
#: The mechanisms that trikafka has, and how the names of their settings begin. A plugin's may go by any of them.
SASL_BUILTIN: Mapping[str, tuple[str, ...]] = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _PASSWORD,
    "SCRAM-SHA-512": _PASSWORD,
    "OAUTHBEARER": ("sasl_oauth_",),
    "GSSAPI": ("sasl_kerberos_",),
}


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Settings of TLS and SASL."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "how to speak to brokers: 'SSL' is TLS, 'SASL_PLAINTEXT' credentials without TLS, 'SASL_SSL' both"
    )
    ssl_context: ssl.SSLContext | None = setting(  # noqa: RUF009
        None, "a context to use for TLS as it is, instead of the other ssl_ settings", java=None
    )
    ssl_cafile: str | None = setting(
        None,
        "the authorities to trust: a PEM file, or PEM text; None: the system's",
        empty=False,
        java="ssl.truststore.certificates",
    )
    ssl_certfile: str | None = setting(
        None,
        "this client's certificate and its chain, for brokers that ask for one (mutual TLS): a PEM file, or PEM text",
        empty=False,
        java="ssl.keystore.certificate.chain",
    )
    ssl_keyfile: str | None = setting(
        None,
        "the private key of ssl_certfile: a PEM file, or PEM text; None: it stands in ssl_certfile",
        empty=False,
        java="ssl.keystore.key",
        secret=True,
    )
    ssl_password: str | None = setting(None, "the password of ssl_keyfile", java="ssl.key.password", secret=True)
    ssl_check_hostname: bool = setting(True, "whether the broker's certificate must be for the name that was dialled", java=None)
    ssl_crlfile: str | None = setting(None, "certificates that were revoked: a PEM file, or PEM text", empty=False, java=None)
    ssl_ciphers: str | None = setting(
        None, "the ciphers to offer up to TLS 1.2, in OpenSSL's words; None: OpenSSL's choice", empty=False, java=None
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | str | None = setting(
        None, "how to authenticate, with a SASL_ security_protocol; a plugin may offer others", empty=False
    )
    sasl_plain_username: str | None = setting(None, "the user's name for PLAIN and SCRAM", empty=False, java=None)
    sasl_plain_password: str | None = setting(None, "the user's password for PLAIN and SCRAM", java=None, secret=True)
    sasl_credentials: Credentials | None = setting(  # noqa: RUF009
        None,
        "a function, async or not, that returns (name, password) for PLAIN and SCRAM; asked at each authentication, so that"
        " they may change while the client runs",
        java=None,
        secret=True,
    )
    sasl_oauth_token_provider: TokenProvider | None = setting(  # noqa: RUF009
        None, "an async function that returns a token for OAUTHBEARER: text, or a trikafka.OAuthToken", java=None, secret=True
    )
    sasl_oauth_token_endpoint_url: str | None = setting(
        None,
        "where tokens for OAUTHBEARER come from, by OAuth 2's client credentials (KIP-768)",
        empty=False,
        java="sasl.oauthbearer.token.endpoint.url",
        secret=True,
    )
    sasl_oauth_client_id: str | None = setting(
        None, "the client's id there", empty=False, java="sasl.oauthbearer.client.credentials.client.id"
    )
    sasl_oauth_client_secret: str | None = setting(
        None, "the client's secret there", java="sasl.oauthbearer.client.credentials.client.secret", secret=True
    )
    sasl_oauth_scope: str | None = setting(None, "the scope to ask for there", empty=False, java="sasl.oauthbearer.scope")
    sasl_oauth_extensions: Mapping[str, str] | None = setting(
        None, "extensions to send with a token (KIP-342)", java=None, secret=True
    )
    sasl_kerberos_service_name: str = setting("kafka", "the brokers' name with Kerberos, for GSSAPI", empty=False)
    sasl_kerberos_principal: str | None = setting(
        None, "who this client is with Kerberos; None: whose ticket is there, or the first in the key table", empty=False
    )
    sasl_kerberos_keytab: str | None = setting(
        None, "a key table to get tickets with; None: the ticket that is there, or as KRB5_CLIENT_KTNAME says", empty=False
    )

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections are authenticated by SASL."""
        return self.security_protocol.startswith("SASL_")

    def check_security(self, explicit: frozenset[str]) -> None:
        """Check these settings against each other. Raises :exc:`ConfigurationError`."""
        defaults = {one.name: one.default for one in fields(self)}
        given = sorted(name for name in explicit if getattr(self, name) != defaults[name])
        self._check_tls([name for name in given if name.startswith("ssl_")])
        self._check_sasl([name for name in given if name.startswith("sasl_")])

    def _check_tls(self, given: list[str]) -> None:
        if given and not self.uses_tls:
            raise ConfigurationError(
                f"{given[0]} needs security_protocol='SSL' (or 'SASL_SSL'), not {self.security_protocol!r}"
            )
        others = [name for name in given if name not in ("ssl_context", "ssl_check_hostname")]
        if self.ssl_context is not None and others:
            raise ConfigurationError(f"ssl_context is used as it is: {others[0]} cannot be given beside it")
        if (
            self.ssl_context is not None
            and self.ssl_context.check_hostname != self.ssl_check_hostname
            and ("ssl_check_hostname" in given)
        ):
            raise ConfigurationError("ssl_check_hostname is ssl_context's own: set ssl_context.check_hostname")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_password is not None):
            raise ConfigurationError("ssl_keyfile and ssl_password need ssl_certfile, the certificate that the key is for")

    def _check_sasl(self, given: list[str]) -> None:
        if not self.uses_sasl:
            if given:
                raise ConfigurationError(
                    f"{given[0]} needs security_protocol='SASL_SSL' (or 'SASL_PLAINTEXT'), not {self.security_protocol!r}"
                )
            return
        mechanism = self.sasl_mechanism
        if mechanism is None:
            raise ConfigurationError(
                f"security_protocol={self.security_protocol!r} needs sasl_mechanism: {', '.join(SASL_BUILTIN)}, or a plugin's"
            )
        self._check_mechanisms_own(mechanism, given)
        if SASL_BUILTIN.get(mechanism) == _PASSWORD:
            self._check_password(mechanism)
        elif mechanism == "OAUTHBEARER":
            self._check_oauth()

    def _check_mechanisms_own(self, mechanism: str, given: list[str]) -> None:
        """What another mechanism goes by would be ignored in silence, and with it what the user believes is in force."""
        own = SASL_BUILTIN.get(mechanism)
        foreign = [] if own is None else [name for name in given if name != "sasl_mechanism" and not name.startswith(own)]
        if foreign:
            of = " or ".join(repr(name) for name, begins in SASL_BUILTIN.items() if foreign[0].startswith(begins))
            raise ConfigurationError(f"{foreign[0]} is for sasl_mechanism={of}, and has no meaning with {mechanism!r}")

    def _check_password(self, mechanism: str) -> None:
        fixed = self.sasl_plain_username is not None or self.sasl_plain_password is not None
        if self.sasl_credentials is not None and fixed:
            raise ConfigurationError("give sasl_plain_username and sasl_plain_password, or sasl_credentials, not both")
        if self.sasl_credentials is None:
            for name in ("sasl_plain_username", "sasl_plain_password"):
                if getattr(self, name) is None:
                    raise ConfigurationError(f"sasl_mechanism={mechanism!r} needs {name} (or sasl_credentials)")

    def _check_oauth(self) -> None:
        endpoint = (self.sasl_oauth_token_endpoint_url, self.sasl_oauth_client_id, self.sasl_oauth_client_secret)
        if self.sasl_oauth_token_provider is not None:
            if any(part is not None for part in endpoint):
                raise ConfigurationError("give sasl_oauth_token_provider, or the endpoint with client id and secret, not both")
            if self.sasl_oauth_scope is not None:
                raise ConfigurationError(
                    "sasl_oauth_scope is asked for at sasl_oauth_token_endpoint_url: a token provider has its own"
                )
        elif None in endpoint:
            raise ConfigurationError(
                "sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider, or sasl_oauth_token_endpoint_url with"
                " sasl_oauth_client_id and sasl_oauth_client_secret"
            )
        else:
            self._check_endpoint(self.sasl_oauth_token_endpoint_url or "")

    def _check_endpoint(self, url: str) -> None:
        """Nothing of a URL that is wrong is shown: there may be a password in it."""
        scheme, separator, rest = url.partition("://")
        host = re.split("[/?#]", rest, maxsplit=1)[0]
        wrong = ""
        if scheme.lower() not in ("http", "https") or not separator or not host:
            wrong = "must be a URL that begins with https:// (or http://)"
        elif "@" in host:
            wrong = "cannot have a name or password in it: give sasl_oauth_client_id and sasl_oauth_client_secret"
        if wrong:
            scheme = rest = host = ""  # an error tracker shows the locals of a traceback's frames
            raise ConfigurationError(f"sasl_oauth_token_endpoint_url {wrong}")
