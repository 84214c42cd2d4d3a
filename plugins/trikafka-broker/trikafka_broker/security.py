"""A secured listener beside the plain one: TLS with a temporary authority, SASL, and ACLs.

This module owns the files under `security/` in a cluster's directory, the matching broker
properties, and the settings by which trikafka, librdkafka and Java connect. The certificates come
from `trustme` (extra `tls`).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BrokerError

SECURED = "SECURED"  #: the name of the listener
USER, PASSWORD = "alice", "alice-secret"
ADMIN, ADMIN_PASSWORD = "admin", "admin-secret"
#: The values of the option `sasl`, and Kafka's names for them.
MECHANISMS: dict[str, tuple[str, ...]] = {
    "plain": ("PLAIN",),
    "scram": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "oauth": ("OAUTHBEARER",),
}
_NAMES = ("localhost", "127.0.0.1", "::1")
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class SecurityOptions:
    """The security options of a cluster, as in its settings.

    Attributes:
        tls: The secured listener has TLS.
        mtls: Clients need a certificate, too.
        sasl: The kinds of mechanisms, as in `MECHANISMS`; empty without SASL.
        acl: Only users with a rule have access; the plain listener and `ADMIN` need none.
    """

    tls: bool
    mtls: bool
    sasl: tuple[str, ...]
    acl: bool

    @classmethod
    def of(cls, tls: bool, mtls: bool, sasl: Sequence[str], acl: bool) -> SecurityOptions:
        """Return the checked options.

        `acl` without `sasl` and `mtls` is allowed: all users are anonymous then, and none is
        denied anything. Programs and tests can manage rules, and listeners of their own may have
        users with names. The command refuses it, because it offers no such listeners.

        Raises:
            ValueError: A mechanism is unknown.
        """
        if isinstance(sasl, str):
            raise ValueError(f"sasl must be a sequence such as ['scram'], not {sasl!r}")
        for name in sasl:
            if name not in MECHANISMS:
                raise ValueError(f"sasl must name only {', '.join(MECHANISMS)}, not {name!r}")
        return cls(tls or mtls, mtls, tuple(sasl), acl)

    @property
    def listener(self) -> dict[str, str]:
        """The secured listener, in the form of the option `listeners`; empty without one."""
        if not self.tls and not self.sasl:
            return {}
        return {SECURED: f"{'SASL_' if self.sasl else ''}{'SSL' if self.tls else 'PLAINTEXT'}"}

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Kafka's names of the mechanisms."""
        return tuple(name for kind in self.sasl for name in MECHANISMS[kind])

    def properties(self, directory: Path) -> dict[str, object]:
        """Return the broker properties.

        `directory` holds the files of :func:`write_certificates`.
        """
        properties: dict[str, object] = {}
        prefix = f"listener.name.{SECURED.lower()}."
        if self.tls:
            properties |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": directory / "broker.pem",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": directory / "ca.pem",
                f"{prefix}ssl.client.auth": "required" if self.mtls else "none",
            }
        if self.sasl:
            properties[f"{prefix}sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
            for name in self.mechanisms:
                properties[f"{prefix}{name.lower()}.sasl.jaas.config"] = _broker_login(name)
        if self.acl:
            properties |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:ANONYMOUS;User:{ADMIN}",
            }
        return properties

    def storage_arguments(self) -> list[str]:
        """Return the arguments of the storage tool: the users of SCRAM."""
        arguments = []
        for name in self.mechanisms:
            if name.startswith("SCRAM"):
                for user, password in ((USER, PASSWORD), (ADMIN, ADMIN_PASSWORD)):
                    arguments += ["--add-scram", f"{name}=[name={user},password={password}]"]
        return arguments

    def trikafka_settings(self, directory: Path, mechanism: str | None = None) -> dict[str, object]:
        """Return settings for `trikafka.open_*` without the bootstrap servers.

        `mechanism` is by default the first one of the option `sasl`.
        """
        settings: dict[str, object] = {}
        if self.listener:
            settings["security_protocol"] = self.listener[SECURED]
        if self.tls:
            settings["ssl_cafile"] = str(directory / "ca.pem")
        if self.mtls:
            settings["ssl_certfile"] = str(directory / "client.pem")
        if self.sasl:
            mechanism = mechanism or self.mechanisms[0]
            settings["sasl_mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                settings["sasl_oauth_token_provider"] = unsecured_token
            else:
                settings |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        return settings

    def librdkafka_settings(self, directory: Path, mechanism: str | None = None) -> dict[str, str]:
        """Return the same settings for librdkafka."""
        settings = {"security.protocol": self.listener[SECURED].lower()} if self.listener else {}
        if self.tls:
            settings["ssl.ca.location"] = str(directory / "ca.pem")
        if self.mtls:
            settings |= {
                "ssl.certificate.location": str(directory / "client.pem"),
                "ssl.key.location": str(directory / "client.pem"),
            }
        if self.sasl:
            mechanism = mechanism or self.mechanisms[0]
            settings["sasl.mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                settings |= {
                    "enable.sasl.oauthbearer.unsecure.jwt": "true",
                    "sasl.oauthbearer.config": f"principal={USER}",
                }
            else:
                settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
        return settings

    def java_settings(self, directory: Path, mechanism: str | None = None) -> dict[str, str]:
        """Return the same settings for Java's client."""
        settings = {"security.protocol": self.listener[SECURED]} if self.listener else {}
        if self.tls:
            settings |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(directory / "ca.pem"),
            }
        if self.mtls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(directory / "client.pem"),
            }
        if self.sasl:
            mechanism = mechanism or self.mechanisms[0]
            settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": _client_login(mechanism)}
        return settings


def write_certificates(directory: Path) -> None:
    """Write `ca.pem`, `broker.pem` and `client.pem`, the last two with keys, unless they exist.

    Raises:
        BrokerError: The package trustme is missing.
    """
    if (directory / "client.pem").exists():
        return
    try:
        import trustme
    except ImportError as error:
        raise BrokerError(
            "Certificates need the package trustme: pip install trustme (from a clone: pip "
            "install './plugins/trikafka-broker[tls]')"
        ) from error
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = trustme.CA(organization_name="trikafka-broker, for tests")
    (directory / "ca.pem").write_bytes(authority.cert_pem.bytes())
    made = {
        "broker.pem": authority.issue_cert(*_NAMES),
        "client.pem": authority.issue_cert(f"{USER}@clients.test", common_name=USER),
    }
    for name, certificate in made.items():
        write_private(
            directory / name,
            _pkcs8(certificate.private_key_pem.bytes())
            + b"".join(part.bytes() for part in certificate.cert_chain_pems),
        )


def _pkcs8(key: bytes) -> bytes:
    """Return a private key in PKCS#8, the only form that Java reads."""
    from cryptography.hazmat.primitives import serialization

    loaded = serialization.load_pem_private_key(key, None)
    encoding = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    return bytes(loaded.private_bytes(encoding, form, serialization.NoEncryption()))


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, even if the file existed with another mode."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def unsecured_token(subject: str = USER, lifetime: float = 3600) -> str:
    """Return an unsigned OAuth token, which a test broker accepts (RFC 7515, appendix A.5).

    `lifetime` is in seconds.
    """
    now = time.time()
    parts = {"alg": "none"}, {"sub": subject, "iat": int(now), "exp": int(now + lifetime)}
    encoded = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts
    )
    return ".".join([*encoded, ""])


def _broker_login(mechanism: str) -> str:
    if mechanism == "PLAIN":
        users = f'user_{USER}="{PASSWORD}" user_{ADMIN}="{ADMIN_PASSWORD}"'
        return f"{_LOGIN}.plain.PlainLoginModule required {users};"
    if mechanism == "OAUTHBEARER":
        return (
            f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="{ADMIN}";'
        )
    return f"{_LOGIN}.scram.ScramLoginModule required;"


def _client_login(mechanism: str) -> str:
    credentials = f'username="{USER}" password="{PASSWORD}"'
    if mechanism == "PLAIN":
        return f"{_LOGIN}.plain.PlainLoginModule required {credentials};"
    if mechanism == "OAUTHBEARER":
        return (
            f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="{USER}";'
        )
    return f"{_LOGIN}.scram.ScramLoginModule required {credentials};"
