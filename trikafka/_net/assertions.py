"""JSON web tokens that a client signs itself, to get a token with (RFC 7523; KIP-1139)."""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import Any

from ..config import ClientConfig
from ..config.secrets import holds_secret, plain, secret
from ..errors import ConfigurationError
from .regular_files import read_regular
from .tls_context import pem_lines

_PEM = "-----BEGIN "
_KEY = "sasl_oauth_assertion_private_key_file"
_FILE = "sasl_oauth_assertion_file"
_TEMPLATE = "sasl_oauth_assertion_template_file"
#: The bytes of each of the two numbers of an ES256 signature.
_P256 = 32


def assertion(config: ClientConfig) -> str:
    """Return an assertion: the content of a file, or one that is made and signed now.

    Reads files. The claims are those of the template, then those of the settings, then the times,
    as in Java's client.

    Raises:
        ConfigurationError: A file or the key cannot be used. The error names the setting, and shows
            no secret.
    """
    if config.sasl_oauth_assertion_file is not None:
        text = secret(_read(_FILE, config.sasl_oauth_assertion_file).strip())
        if (
            text.count(".") != 2
            or not text.isascii()
            or any(character <= " " for character in text)
        ):
            raise ConfigurationError(f"{_FILE}: the file holds no JSON web token")
        return text
    template = _template(config.sasl_oauth_assertion_template_file)
    now = time.time()
    fixed = {
        "aud": config.sasl_oauth_assertion_claim_aud,
        "iss": config.sasl_oauth_assertion_claim_iss,
        "sub": config.sasl_oauth_assertion_claim_sub,
    }
    claims = {
        **template["payload"],
        **{name: value for name, value in fixed.items() if value is not None},
        "iat": int(now),
        "exp": int(now + config.sasl_oauth_assertion_claim_exp_seconds),
        "nbf": int(now - config.sasl_oauth_assertion_claim_nbf_seconds),
    }
    if config.sasl_oauth_assertion_claim_jti_include:
        claims["jti"] = str(uuid.uuid4())
    header = {"typ": "JWT", **template["header"], "alg": config.sasl_oauth_assertion_algorithm}
    signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
    return secret(f"{signed}.{_encoded(_signature(config, signed.encode()))}")


def _signature(config: ClientConfig, content: bytes) -> bytes:
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            "sasl_oauth_grant_type='jwt-bearer' needs the package cryptography to sign: pip "
            "install 'trikafka[crypto]' (from a clone: pip install '.[crypto]')"
        ) from error
    key = _key(config)
    if config.sasl_oauth_assertion_algorithm == "RS256":
        if not isinstance(key, rsa.RSAPrivateKey):
            raise ConfigurationError(
                f"{_KEY}: RS256 needs a key of RSA (sasl_oauth_assertion_algorithm)"
            )
        return bytes(key.sign(content, padding.PKCS1v15(), hashes.SHA256()))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise ConfigurationError(
            f"{_KEY}: ES256 needs a key of the curve P-256 (sasl_oauth_assertion_algorithm)"
        )
    r, s = decode_dss_signature(key.sign(content, ec.ECDSA(hashes.SHA256())))
    return bytes(r.to_bytes(_P256, "big") + s.to_bytes(_P256, "big"))


def _key(config: ClientConfig) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    given = config.sasl_oauth_assertion_private_key_file or ""
    password = config.sasl_oauth_assertion_private_key_passphrase
    text = pem_lines(given) if _PEM in given else _read(_KEY, given)
    wrong = f"{_KEY}: this is not a private key in PEM, or it is damaged"
    if "ENCRYPTED" in text:
        passphrase = "sasl_oauth_assertion_private_key_passphrase"
        wrong = f"{_KEY}: the key cannot be decrypted: {passphrase} is wrong, or missing"
    elif password is not None and "PRIVATE KEY-----" in text:
        wrong += (
            "; or it is not encrypted, and needs no sasl_oauth_assertion_private_key_passphrase"
        )
    try:
        return load_pem_private_key(text.encode(), None if password is None else password.encode())
    except (ValueError, TypeError):
        # Raised below: the frames of this error have the key.
        pass
    raise ConfigurationError(wrong)


def _template(path: str | None) -> dict[str, dict[str, Any]]:
    """Return the header and the claims of a file: ``{"header": {...}, "payload": {...}}``."""
    if path is None:
        return {"header": {}, "payload": {}}
    found: Any = None
    try:
        found = json.loads(_read(_TEMPLATE, path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
    parts: dict[str, Any] = {
        name: found.get(name, {}) if isinstance(found, dict) else None
        for name in ("header", "payload")
    }
    if not all(isinstance(part, dict) for part in parts.values()):
        raise ConfigurationError(
            f'{_TEMPLATE} must be JSON such as {{"header": {{}}, "payload": {{"iss": "me"}}}}'
        )
    return parts


def _read(name: str, path: str) -> str:
    wrong = "this is not the path of a text file"
    try:
        return secret(read_regular(path).decode())
    except OSError as error:
        # A key or a token may have been given in place of its path, so that value is not shown.
        shown = "" if name == _KEY or holds_secret(path) else f" {plain(path)!r}"
        wrong = f"cannot read the file{shown}: {error.strerror}"
    except ValueError:
        pass
    # Raised here: the errors above keep the path, and would be the context of this one.
    raise ConfigurationError(f"{name}: {wrong}")


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
