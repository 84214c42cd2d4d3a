"""Where an object store's destination is, and what it takes to get in: the URL, and settings that never show themselves. Pure.

Settings are ``store.NAME`` of ``sink_options`` before the usual environment variables of this process. Both are read once, where
the export is opened, and go to Spark's workers with their tasks: not with the plan, and not by the workers' own environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from trikafka import ConfigurationError
from trikafka.config.secrets import secret

PREFIX = "store."
#: Schemes of the stores that have conditional writes, with the prefix of their environment variables.
SCHEMES = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "abfs": "AZURE_", "abfss": "AZURE_"}
#: Of the environment: who we are, and where the store is, by the store's own name of the option; a later one goes first.
_ENVIRONMENT = {
    "AWS_": {
        "ACCESS_KEY_ID": "access_key_id",
        "SECRET_ACCESS_KEY": "secret_access_key",
        "SESSION_TOKEN": "session_token",
        "DEFAULT_REGION": "region",
        "REGION": "region",
        "ENDPOINT_URL": "endpoint",
        "ENDPOINT_URL_S3": "endpoint",
        "VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
    },
    "GOOGLE_": {
        "SERVICE_ACCOUNT": "service_account",
        "SERVICE_ACCOUNT_KEY": "service_account_key",
        "APPLICATION_CREDENTIALS": "application_credentials",
    },
    "AZURE_": {
        "STORAGE_ACCOUNT_NAME": "account_name",
        "STORAGE_ACCOUNT_KEY": "account_key",
        "STORAGE_SAS_TOKEN": "sas_key",
        "CLIENT_ID": "client_id",
        "CLIENT_SECRET": "client_secret",
        "TENANT_ID": "tenant_id",
    },
}
#: Options of the connection, not of the store.
CLIENT = ("allow_http", "timeout", "connect_timeout", "proxy_url", "root_certificate")
_BLANK = re.compile(r"\s")
_SECONDS = re.compile(r"\d+(?:\.\d+)?")
_PACKAGE = "obstore"
_ENDPOINTS = {"endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "azure_endpoint", "azure_storage_endpoint"}


class ObjectStoreError(OSError):
    """What an object store has said, in one line; whether the request was carried out may be unknown."""


@dataclass(frozen=True)
class ObjectAddress:
    """``url`` is ``scheme://bucket/prefix``. Pickled with a task; neither ``repr`` nor a comparison shows the settings."""

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: How long (seconds) a lock stands that its owner does not renew.
    lease: float = 30.0
    #: Where keys are handed out for a while: who is asked for them, as obstore asks.
    keys: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, destination: str, options: Mapping[str, Any]) -> ObjectAddress:
        """Check a destination and its ``store.NAME`` options. Raises :exc:`ConfigurationError`."""
        scheme, url = _checked_url(destination)
        if importlib.util.find_spec(_PACKAGE) is None:
            raise ConfigurationError(
                f"{scheme}:// destinations need the package {_PACKAGE}: pip install 'trikafka-spark[stores]'"
                " (from a clone: pip install './plugins/trikafka-spark[stores]')"
            )
        given = {name.removeprefix(PREFIX).lower(): secret(str(value)) for name, value in options.items()}
        lease = _lease(given.pop("lease", "30"))
        client: dict[str, Any] = {"timeout": "120s", "connect_timeout": "5s"}
        client |= {name: given.pop(name) for name in CLIENT if name in given}
        config = {**_of_environment(SCHEMES[scheme]), **given}
        for name in _ENDPOINTS & config.keys():
            _check_endpoint(url, config[name])
        if any(value.startswith("http://") for name, value in config.items() if "endpoint" in name):
            client.setdefault("allow_http", "true")
        return cls(url, {name: secret(value) for name, value in config.items()}, _hidden_client(client), lease)


def _checked_url(destination: str) -> tuple[str, str]:
    """The scheme and the URL. What is wrong with one is said without repeating it: a password may stand in it."""
    address = urlsplit(destination)
    scheme = address.scheme.lower()
    if (address.username or address.password) and not scheme.startswith("abfs"):
        raise ConfigurationError(f"a {scheme}:// destination has no user and password; they are other settings (store....)")
    if address.query or address.fragment:
        raise ConfigurationError(f"a {scheme}:// destination is scheme://bucket/prefix, without '?' and '#'")
    prefix = unquote(address.path).strip("/")
    if not address.netloc or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        raise ConfigurationError(f"{destination!r} does not name a place in an object store; write {scheme}://bucket/prefix")
    shown = "s3" if scheme == "s3a" else scheme
    return scheme, f"{shown}://{address.netloc}" + (f"/{prefix}" if prefix else "")


def _check_endpoint(url: str, endpoint: str) -> None:
    """obstore does not refuse an address that is none, but panics at its first request. Not repeated: it may hold a password."""
    try:
        address = urlsplit(endpoint)
        right = address.scheme in ("http", "https") and bool(address.hostname) and (address.port is None or address.port > 0)
    except ValueError:
        right = False
    if not right or _BLANK.search(endpoint):
        raise ConfigurationError(f"{url} cannot be used: store.endpoint must be a URL such as http://localhost:9000")


def _of_environment(prefix: str) -> dict[str, str]:
    known = ((name, os.environ.get(prefix + variable)) for variable, name in _ENVIRONMENT[prefix].items())
    return {name: secret(value) for name, value in known if value}


def _lease(text: str) -> float:
    if not _SECONDS.fullmatch(text) or not 1 <= float(text) <= 3600:
        raise ConfigurationError("store.lease must be a number of seconds from 1 to 3600")
    return float(text)


def _hidden_client(client: dict[str, Any]) -> dict[str, Any]:
    """A proxy's address may hold a password."""
    if "allow_http" in client:
        client["allow_http"] = client["allow_http"].lower() in ("true", "1", "yes")
    return {name: secret(value) for name, value in client.items()}
