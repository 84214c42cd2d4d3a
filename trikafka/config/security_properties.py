"""Properties of TLS and SASL as Java's client and librdkafka name them, to ours.

What has no meaning here, such as a Java key store, is an error that says what to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from ..errors import ConfigurationError
from .secrets import plain, secret

#: Names that mean one setting of ours, whatever their value.
_PLAIN = {
    "ssl.ca.location": "ssl_cafile", "ssl.ca.pem": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile", "ssl.certificate.pem": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile", "ssl.key.pem": "ssl_keyfile",
    "ssl.crl.location": "ssl_crlfile",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password",
    "sasl.oauthbearer.client.id": "sasl_oauth_client_id", "sasl.oauthbearer.client.secret": "sasl_oauth_client_secret",
}  # fmt: skip
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer{}.OAuthBearerLoginCallbackHandler"
#: What Java's client or librdkafka has to be told and trikafka does anyway: so it is what every program's properties have that gets
#: tokens, or that was given its properties by a cloud. With another value it asks for what trikafka does not do.
_ANYWAY: Mapping[str, tuple[str, ...]] = {
    "client.dns.lookup": ("use_all_dns_ips",),
    "sasl.login.callback.handler.class": (_OAUTH_HANDLER.format(""), _OAUTH_HANDLER.format(".secured")),
    "sasl.oauthbearer.method": ("oidc",),
}
#: All names here that are not ours with dots.
OTHER_NAMES = (
    *_PLAIN, *_ANYWAY, "sasl.jaas.config", "ssl.truststore.location", "ssl.keystore.location",
    "ssl.endpoint.identification.algorithm",
)  # fmt: skip
_PEM_ADVICE = "trikafka reads PEM: convert it with keytool and openssl, and give {} the file"
_PAIR = re.compile(r"""\s+([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_OPTIONS = re.compile(rf"(?:{_PAIR.pattern})*\s*;?\s*")
_LOGIN_MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b")


def take_security(properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``properties`` into settings of ours and the rest. Raises :exc:`ConfigurationError`, which shows no secret."""
    rest, settings = dict(properties), dict[str, Any]()
    for dotted, name in _PLAIN.items():
        if dotted in rest:
            _put(settings, name, rest.pop(dotted), dotted)
    for take in (_take_what_is_done_anyway, _take_stores, _take_hostname_check, _take_jaas, _take_ciphers):
        take(rest, settings)
    return settings, rest


def _take_what_is_done_anyway(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    for dotted, values in _ANYWAY.items():
        if dotted in rest and plain(str(rest.pop(dotted))).strip().lower() not in map(str.lower, values):
            known = " or ".join(map(repr, values))
            raise ConfigurationError(f"{dotted} must be {known}, which is what trikafka does, or be left out")


def _put(settings: MutableMapping[str, Any], name: str, value: Any, dotted: str) -> None:
    if name in settings:
        raise ConfigurationError(f"{name} is given twice, the second time as {dotted!r}")
    settings[name] = value


def _take_stores(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    for store, name in (("truststore", "ssl_cafile"), ("keystore", "ssl_certfile")):
        kind = rest.pop(f"ssl.{store}.type", None)
        location = rest.pop(f"ssl.{store}.location", None)
        password = rest.pop(f"ssl.{store}.password", None)
        if location is None and password is None:
            if kind is not None and str(kind).upper() != "PEM":
                raise ConfigurationError(f"ssl.{store}.type is {plain(kind)!r}: {_PEM_ADVICE.format(name)}")
            continue
        if str(kind or "JKS").upper() != "PEM":
            raise ConfigurationError(f"ssl.{store}.location is a store of type {kind or 'JKS'}: {_PEM_ADVICE.format(name)}")
        if password is not None:
            raise ConfigurationError(f"ssl.{store}.password: a PEM file has none (ssl.key.password is its key's)")
        _put(settings, name, location, f"ssl.{store}.location")


def _take_hostname_check(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    dotted = "ssl.endpoint.identification.algorithm"
    if dotted in rest:
        given = str(rest.pop(dotted)).lower()
        if given not in ("https", "", "none"):
            raise ConfigurationError(f"{dotted} must be 'https', or empty or 'none', not {given!r}")
        _put(settings, "ssl_check_hostname", given == "https", dotted)


def _take_ciphers(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    dotted = "ssl.cipher.suites"
    if dotted in rest:
        given = str(rest.pop(dotted))
        if "TLS_" in given and "_WITH_" in given:
            raise ConfigurationError(f"{dotted} has Java's names of ciphers; give ssl_ciphers OpenSSL's, such as 'ECDHE+AESGCM'")
        _put(settings, "ssl_ciphers", given, dotted)


def _take_jaas(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    if "sasl.jaas.config" not in rest:
        return
    text = secret(str(rest.pop("sasl.jaas.config")).strip())
    entry = _LOGIN_MODULE.match(text)
    if entry is None:
        hint = "; it is that one entry, without the '{ }' of a JAAS file around it" if "{" in text else ""
        raise ConfigurationError(
            "sasl.jaas.config must be '<login module> required <option>=<value> ...;', such as"
            f" '...PlainLoginModule required username=\"...\" password=\"...\";'{hint}"
        )
    if _OPTIONS.fullmatch(text, entry.end()) is None:  # nothing of it is told: what looks like a name may be of a password
        raise ConfigurationError(
            f"sasl.jaas.config cannot be read after {entry[0].strip()!r}: options are <name>=<value> with spaces between them, a"
            " value that has a space, a quote or a semicolon in it stands in quotes, and in these a quote or backslash behind a"
            " backslash"
        )
    options = {name: _unquoted(value) for name, value in _PAIR.findall(text[entry.end() :])}
    module = entry[1].rpartition(".")[2]
    reader = _MODULES.get(module)
    if reader is None:
        raise ConfigurationError(
            f"sasl.jaas.config names the login module {module}; known are {', '.join(_MODULES)}; a"
            " plugin's mechanism needs sasl.mechanism alone"
        )
    found = reader(options)
    if options:
        raise ConfigurationError(f"sasl.jaas.config gives {module} what trikafka does not know: {', '.join(sorted(options))}")
    for name, value in found.items():
        _put(settings, name, value, "sasl.jaas.config")


def _unquoted(value: str) -> str:
    return secret(re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value)


def _password(options: MutableMapping[str, str]) -> dict[str, Any]:
    for name in ("username", "password"):
        if name not in options:
            raise ConfigurationError(f"sasl.jaas.config has no {name}")
    return {"sasl_plain_username": options.pop("username"), "sasl_plain_password": options.pop("password")}


def _oauth(options: MutableMapping[str, str]) -> dict[str, Any]:
    names = {"clientId": "sasl_oauth_client_id", "clientSecret": "sasl_oauth_client_secret", "scope": "sasl_oauth_scope"}
    found: dict[str, Any] = {ours: options.pop(theirs) for theirs, ours in names.items() if theirs in options}
    prefix = "extension_"
    if extensions := {name.removeprefix(prefix): options.pop(name) for name in list(options) if name.startswith(prefix)}:
        found["sasl_oauth_extensions"] = extensions
    return found


#: How Java's module goes about it, which has no meaning here.
_KERBEROS_HABITS = (
    "storeKey", "doNotPrompt", "refreshKrb5Config", "renewTGT", "isInitiator", "debug", "useFirstPass", "tryFirstPass", "storePass",
    "clearPass",
)  # fmt: skip


def _kerberos(options: MutableMapping[str, str]) -> dict[str, Any]:
    names = {"serviceName": "sasl_kerberos_service_name", "principal": "sasl_kerberos_principal", "keyTab": "sasl_kerberos_keytab"}
    found: dict[str, Any] = {ours: options.pop(theirs) for theirs, ours in names.items() if theirs in options}
    uses_keytab = options.pop("useKeyTab", "false").lower() == "true"
    if "sasl_kerberos_keytab" in found and not uses_keytab:
        raise ConfigurationError("sasl.jaas.config has keyTab without useKeyTab=true, which Java's client refuses too")
    if uses_keytab and "sasl_kerberos_keytab" not in found:
        raise ConfigurationError("sasl.jaas.config has useKeyTab=true and no keyTab: name the file")
    if "ticketCache" in options:
        raise ConfigurationError("sasl.jaas.config has ticketCache: let the environment's KRB5CCNAME name the file instead")
    options.pop("useTicketCache", None)  # a ticket that is there is used anyway
    for name in _KERBEROS_HABITS:
        options.pop(name, None)
    return found


_MODULES: dict[str, Callable[[MutableMapping[str, str]], dict[str, Any]]] = {
    "PlainLoginModule": _password,
    "ScramLoginModule": _password,
    "OAuthBearerLoginModule": _oauth,
    "Krb5LoginModule": _kerberos,
}
