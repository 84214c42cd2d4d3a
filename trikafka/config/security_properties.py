"""Translation of the TLS and SASL properties that more than one entry decides together.

The others are in the table of ``property_names.py``. A property that has no meaning here, such as a
Java key store in JKS, is an error with advice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from ..errors import ConfigurationError
from .secrets import plain, secret

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
#: The grants of OAuth in the terms of Java's client and librdkafka.
_GRANTS: Mapping[str, Mapping[str, str]] = {
    "sasl.oauthbearer.jwt.retriever.class": {
        f"{_OAUTH}.DefaultJwtRetriever": "",
        f"{_OAUTH}.ClientCredentialsJwtRetriever": "client_credentials",
        f"{_OAUTH}.JwtBearerJwtRetriever": "jwt-bearer",
    },
    "sasl.oauthbearer.grant.type": {
        "client_credentials": "client_credentials",
        "urn:ietf:params:oauth:grant-type:jwt-bearer": "jwt-bearer",
    },
}
#: The names that this module translates.
NAMES = (
    "sasl.jaas.config",
    "sasl.oauthbearer.extensions",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    *_GRANTS,
)
_PEM_ADVICE = (
    "trikafka reads PEM and PKCS12, and trust stores of type JKS: convert it with keytool, and "
    "give {} the file"
)
_PAIR = re.compile(r"""\s+([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_OPTIONS = re.compile(rf"(?:{_PAIR.pattern})*\s*;?\s*")
_LOGIN_MODULE = re.compile(r"\s*([\w.$]+)\s+(?i:required|requisite|sufficient|optional)\b")


def take_security(properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``properties`` into trikafka's security settings and the rest.

    Raises:
        ConfigurationError: A property is wrong. The error shows no secret.
    """
    # None is the default of an argument, or the value of a variable that is not set. It asks for
    # nothing: as text it would be "None", which switches the check of host names off.
    rest = {
        name: value for name, value in properties.items() if value is not None or name not in NAMES
    }
    settings = dict[str, Any]()
    for take in (
        _take_versions,
        _take_grant,
        _take_stores,
        _take_hostname_check,
        _choose_kerberos,
        _take_jaas,
        _take_ciphers,
        _take_extensions,
    ):
        take(rest, settings)
    return settings, rest


def _take_versions(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    if (given := rest.pop("ssl.enabled.protocols", None)) is not None and (
        oldest := minimum_version(given)
    ) is not None:
        _put(settings, "ssl_minimum_version", oldest, "ssl.enabled.protocols")


def _take_grant(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    for dotted, values in _GRANTS.items():
        if dotted not in rest:
            continue
        grant = values.get(plain(str(rest.pop(dotted))).strip())
        if grant is None:
            raise ConfigurationError(
                f"{dotted} must be one of {', '.join(values)}; a token from elsewhere comes from "
                "a function (sasl_oauth_token_provider)"
            )
        if grant:
            _put(settings, "sasl_oauth_grant_type", grant, dotted)


def minimum_version(given: Any) -> str | None:
    """Return the ``ssl_minimum_version`` for Java's ``ssl.enabled.protocols``.

    ``None`` means the default.

    Raises:
        ConfigurationError: The newest version is excluded, which trikafka would use nevertheless.
    """
    names = [name.strip() for name in plain(str(given)).split(",") if name.strip()]
    if "TLSv1.3" not in names:
        raise ConfigurationError(
            f"ssl.enabled.protocols is {plain(str(given))!r}, and trikafka offers TLSv1.2 and "
            "TLSv1.3: leave it out, add TLSv1.3, or give ssl_context with a maximum_version"
        )
    return "TLSv1.3" if names == ["TLSv1.3"] else None


def _put(settings: MutableMapping[str, Any], name: str, value: Any, dotted: str) -> None:
    if name in settings:
        raise ConfigurationError(f"{name} is given twice, the second time as {dotted!r}")
    settings[name] = value


def _take_stores(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    """Read the settings of trust stores and key stores.

    A store without a type is recognized by its content when the client opens. It may be PKCS12 or
    PEM, and for trust stores JKS.
    """
    for store, name, opens in (
        ("truststore", "ssl_cafile", "ssl_ca_password"),
        ("keystore", "ssl_certfile", "ssl_password"),
    ):
        kind = plain(str(rest.pop(f"ssl.{store}.type", None) or "JKS")).upper()
        location = rest.pop(f"ssl.{store}.location", None)
        password = rest.pop(f"ssl.{store}.password", None)
        if kind not in ("JKS", "PEM", "PKCS12"):
            raise ConfigurationError(f"ssl.{store}.type is {kind!r}: {_PEM_ADVICE.format(name)}")
        if location is None:
            if password is not None:
                raise ConfigurationError(
                    f"ssl.{store}.password needs ssl.{store}.location, the store that it opens"
                )
            continue
        # Since Java 9, Java's tools write PKCS12 under any file name, and read it as "JKS" too.
        if store == "keystore" and kind == "JKS" and str(location).lower().endswith(".jks"):
            raise ConfigurationError(
                f"ssl.{store}.location is a store of type JKS: {_PEM_ADVICE.format(name)}. If it "
                f"is really PKCS12, as keytool writes since Java 9, give ssl.{store}.type=PKCS12"
            )
        if kind == "PEM" and password is not None:
            raise ConfigurationError(
                f"ssl.{store}.password: a PEM file has none (ssl.key.password is its key's)"
            )
        _put(settings, name, location, f"ssl.{store}.location")
        if password is not None:
            _put(settings, opens, password, f"ssl.{store}.password")
            if store == "keystore" and rest.pop("ssl.key.password", password) != password:
                raise ConfigurationError(
                    "ssl.key.password is not ssl.keystore.password: a PKCS12 store has one password"
                )


def _take_hostname_check(
    rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]
) -> None:
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
            raise ConfigurationError(
                f"{dotted} has Java's names of ciphers; give ssl_ciphers OpenSSL's, such as "
                "'ECDHE+AESGCM'"
            )
        _put(settings, "ssl_ciphers", given, dotted)


def _take_extensions(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    dotted = "sasl.oauthbearer.extensions"
    if dotted not in rest:
        return
    given = secret(str(rest.pop(dotted)))
    parts = [part.partition("=") for part in given.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in parts):
        raise ConfigurationError(f"{dotted} must be NAME=VALUE,NAME=VALUE...")
    found = {name.strip(): value for name, _, value in parts}
    _put(settings, "sasl_oauth_extensions", found, dotted)


def _choose_kerberos(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    """Choose GSSAPI where Java and librdkafka do: it is their default mechanism.

    Files for Kerberos therefore often name no mechanism. A file that names none and has nothing of
    Kerberos was meant for another mechanism, and stays an error.
    """
    names = {name.replace("_", ".") for name in rest}
    if names & {"sasl.mechanism", "sasl.mechanisms"}:
        return
    protocol = rest.get("security.protocol", rest.get("security_protocol", ""))
    jaas = _LOGIN_MODULE.match(str(rest.get("sasl.jaas.config", "")))
    if str(protocol).upper().startswith("SASL_") and (
        (jaas is not None and jaas[1].endswith("Krb5LoginModule"))
        or any(name.startswith("sasl.kerberos.") for name in names)
    ):
        settings["sasl_mechanism"] = "GSSAPI"


def _take_jaas(rest: MutableMapping[str, Any], settings: MutableMapping[str, Any]) -> None:
    if "sasl.jaas.config" not in rest:
        return
    text = secret(str(rest.pop("sasl.jaas.config")).strip())
    entry = _LOGIN_MODULE.match(text)
    if entry is None:
        hint = (
            "; it is that one entry, without the '{ }' of a JAAS file around it"
            if "{" in text
            else ""
        )
        raise ConfigurationError(
            "sasl.jaas.config must be '<login module> required <option>=<value> ...;', such as"
            f' \'...PlainLoginModule required username="..." password="...";\'{hint}'
        )
    # The error shows nothing of the text, which may be part of a password.
    if _OPTIONS.fullmatch(text, entry.end()) is None:
        raise ConfigurationError(
            f"sasl.jaas.config cannot be read after {entry[0].strip()!r}: write options as "
            "<name>=<value> with spaces between them; put a value with a space, a quote or a "
            "semicolon in quotes, and a backslash before each quote or backslash in it"
        )
    options = {name: _unquoted(value) for name, value in _PAIR.findall(text[entry.end() :])}
    module = entry[1].rpartition(".")[2]
    mechanism = plain(str(rest.get("sasl.mechanism", rest.get("sasl.mechanisms", ""))))
    reader = _MODULES.get(module)
    if module == "IAMLoginModule" and mechanism == "AWS_MSK_IAM":
        reader = _iam
    if reader is None:
        raise ConfigurationError(
            f"sasl.jaas.config names the login module {module}; known are {', '.join(_MODULES)}; "
            "a plugin's mechanism needs sasl.mechanism alone"
        )
    found = reader(options)
    if options:
        raise ConfigurationError(
            f"sasl.jaas.config gives {module} what trikafka does not know: "
            f"{', '.join(sorted(options))}"
        )
    for name, value in found.items():
        _put(settings, name, value, "sasl.jaas.config")


def _iam(options: MutableMapping[str, str]) -> dict[str, Any]:
    """Accept Java's login module for Amazon's AWS_MSK_IAM, without options.

    A plugin offers that mechanism; the module's name is all that it needs.
    """
    options.pop("awsDebugCreds", None)
    if options:
        raise ConfigurationError(
            f"sasl.jaas.config gives IAMLoginModule {', '.join(sorted(options))}: leave it out, "
            "and give the plugin for AWS_MSK_IAM the credentials (by default those of the "
            "environment)"
        )
    return {}


def _unquoted(value: str) -> str:
    return secret(re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value)


def _password(options: MutableMapping[str, str]) -> dict[str, Any]:
    for name in ("username", "password"):
        if name not in options:
            raise ConfigurationError(f"sasl.jaas.config has no {name}")
    found: dict[str, Any] = {
        "sasl_plain_username": options.pop("username"),
        "sasl_plain_password": options.pop("password"),
    }
    if options.pop("tokenauth", "false").lower() == "true":
        found["sasl_scram_token_auth"] = True
    return found


def _oauth(options: MutableMapping[str, str]) -> dict[str, Any]:
    names = {
        "clientId": "sasl_oauth_client_id",
        "clientSecret": "sasl_oauth_client_secret",
        "scope": "sasl_oauth_scope",
    }
    found: dict[str, Any] = {
        ours: options.pop(theirs) for theirs, ours in names.items() if theirs in options
    }
    prefix = "extension_"
    if extensions := {
        name.removeprefix(prefix): options.pop(name)
        for name in list(options)
        if name.startswith(prefix)
    }:
        found["sasl_oauth_extensions"] = extensions
    return found


#: Options of Java's module that have no meaning here.
_KERBEROS_HABITS = (
    "storeKey",
    "doNotPrompt",
    "refreshKrb5Config",
    "renewTGT",
    "isInitiator",
    "debug",
    "useFirstPass",
    "tryFirstPass",
    "storePass",
    "clearPass",
)


def _kerberos(options: MutableMapping[str, str]) -> dict[str, Any]:
    names = {
        "serviceName": "sasl_kerberos_service_name",
        "principal": "sasl_kerberos_principal",
        "keyTab": "sasl_kerberos_keytab",
    }
    found: dict[str, Any] = {
        ours: options.pop(theirs) for theirs, ours in names.items() if theirs in options
    }
    uses_keytab = options.pop("useKeyTab", "false").lower() == "true"
    if "sasl_kerberos_keytab" in found and not uses_keytab:
        raise ConfigurationError(
            "sasl.jaas.config has keyTab without useKeyTab=true, which Java's client refuses too"
        )
    if uses_keytab and "sasl_kerberos_keytab" not in found:
        raise ConfigurationError("sasl.jaas.config has useKeyTab=true and no keyTab: name the file")
    if "ticketCache" in options:
        raise ConfigurationError(
            "sasl.jaas.config has ticketCache: let the environment's KRB5CCNAME name the file "
            "instead"
        )
    options.pop("useTicketCache", None)  # an existing ticket is used anyway
    for name in _KERBEROS_HABITS:
        options.pop(name, None)
    return found


_MODULES: dict[str, Callable[[MutableMapping[str, str]], dict[str, Any]]] = {
    "PlainLoginModule": _password,
    "ScramLoginModule": _password,
    "OAuthBearerLoginModule": _oauth,
    "Krb5LoginModule": _kerberos,
}
