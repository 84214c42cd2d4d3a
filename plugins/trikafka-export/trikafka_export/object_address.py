"""The address of a destination in an object store, and its settings. Pure.

Settings are the options ``store.NAME``, and below them the usual environment variables of this
process. Both are read once, where the export is opened. They go to Spark's workers with the tasks:
not in the plan, which is stored, and not from the environment of the workers. Secret values never
appear in a ``repr`` or an error.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from trikafka import ConfigurationError
from trikafka.config.secrets import secret

PREFIX = "store."
#: The schemes of stores with conditional writes, and the prefix of their environment variables.
SCHEMES = {
    "s3": "AWS_",
    "s3a": "AWS_",
    "gs": "GOOGLE_",
    "az": "AZURE_",
    "abfs": "AZURE_",
    "abfss": "AZURE_",
}
#: The scheme of HDFS: a file system, but used through the same interface as the object stores.
HDFS = "hdfs"
#: All schemes.
STORES = {*SCHEMES, HDFS}
#: Settings of the HDFS client itself. Hadoop's own settings begin with one of ``_HADOOP``.
_HDFS_CLIENT = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")
_HADOOP = ("dfs.", "fs.", "hadoop.")
#: Limits for a name node that refuses connections or does not respond: with its own defaults the
#: client tries for minutes. Failovers count as attempts.
_HDFS_PATIENCE = {
    "dfs.client.failover.max.attempts": "6",
    "dfs.client.failover.sleep.max.millis": "5000",
    "dfs.client.socket-timeout": "30000",
}
#: Environment variables with credentials and the place of the store, and the store's own names of
#: these options. Of two variables for one option the later one wins.
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
#: Letters of a prefix with which the libraries would read the address as that of another place.
_QUOTED = re.compile(r"[%?#\x00-\x1f\x7f]| $")
_SECONDS = re.compile(r"\d+(?:\.\d+)?")
_PACKAGE = "obstore"
_HDFS_PACKAGE = "hdfs_native"
_ENDPOINTS = {
    "endpoint",
    "endpoint_url",
    "aws_endpoint",
    "aws_endpoint_url",
    "azure_endpoint",
    "azure_storage_endpoint",
}


class ObjectStoreError(OSError):
    """An error that an object store reported, in one line.

    The request may have been carried out all the same.
    """


@dataclass(frozen=True)
class ObjectAddress:
    """The address ``scheme://bucket/prefix`` of a destination, with its settings.

    Pickled with a task. Neither ``repr`` nor a comparison shows the settings.
    """

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: The seconds after which a lock that is not renewed is free.
    lease: float = 30.0
    #: Returns temporary credentials, in the form of obstore's ``credential_provider``.
    keys: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, destination: str, options: Mapping[str, Any]) -> ObjectAddress:
        """Check a destination and its ``store.NAME`` options.

        Raises:
            ConfigurationError: The destination or an option is not valid, or a package is missing.
        """
        scheme, url = _checked_url(destination)
        if scheme == HDFS:
            return cls._of_hdfs(url, options)
        if importlib.util.find_spec(_PACKAGE) is None:
            raise ConfigurationError(
                f"{scheme}:// destinations need the package {_PACKAGE}: pip install "
                "'trikafka-export[stores]' (from a clone: pip install "
                "'./plugins/trikafka-export[stores]')"
            )
        given = {
            name.removeprefix(PREFIX).lower(): secret(str(value)) for name, value in options.items()
        }
        lease = _lease(given.pop("lease", "30"))
        client: dict[str, Any] = {"timeout": "120s", "connect_timeout": "5s"}
        client |= {name: given.pop(name) for name in CLIENT if name in given}
        config = {**_of_environment(SCHEMES[scheme]), **given}
        for name in _ENDPOINTS & config.keys():
            _check_endpoint(url, config[name], _origin(name, given, SCHEMES[scheme]))
        if any(value.startswith("http://") for name, value in config.items() if "endpoint" in name):
            client.setdefault("allow_http", "true")
        return cls(
            url,
            {name: secret(value) for name, value in config.items()},
            _hidden_client(client),
            lease,
        )

    @classmethod
    def _of_hdfs(cls, url: str, options: Mapping[str, Any]) -> ObjectAddress:
        """Check the options of a destination in HDFS.

        Names of Hadoop's settings keep their case. The user is that of this process, also in
        Spark's workers.
        """
        if importlib.util.find_spec(_HDFS_PACKAGE) is None:
            raise ConfigurationError(
                "hdfs:// destinations need the package hdfs-native: pip install "
                "'trikafka-export[hdfs]' (from a clone: pip install "
                "'./plugins/trikafka-export[hdfs]')"
            )
        given = {name.removeprefix(PREFIX): secret(str(value)) for name, value in options.items()}
        lease = _lease(given.pop("lease", "30"))
        client = {name: given.pop(name) for name in _HDFS_CLIENT if name in given}
        for name in given:
            if not name.startswith(_HADOOP):
                raise ConfigurationError(
                    f"unknown option 'store.{name}' of {url}: settings of Hadoop are "
                    "store.dfs..., store.fs... and store.hadoop...; else there are store.lease "
                    f"and {', '.join(PREFIX + known for known in _HDFS_CLIENT)}"
                )
        if user := os.environ.get("HADOOP_USER_NAME"):
            client["user"] = user
        return cls(url, _HDFS_PATIENCE | given, client, lease)


def _checked_url(destination: str) -> tuple[str, str]:
    """Return the scheme and the checked URL.

    Errors do not repeat a part of the URL that may hold a password.
    """
    address = urlsplit(destination)
    scheme = address.scheme.lower()
    if scheme == HDFS:
        _check_hdfs(address)
    if (address.username or address.password) and not scheme.startswith("abfs"):
        raise ConfigurationError(
            f"a {scheme}:// destination has no user and password; they are other settings "
            "(store....)"
        )
    if address.query or address.fragment:
        raise ConfigurationError(
            f"a {scheme}:// destination is scheme://bucket/prefix, without '?' and '#'"
        )
    prefix = unquote(address.path).strip("/")
    if not address.netloc or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        raise ConfigurationError(
            f"{destination!r} does not name a place in an object store; write "
            f"{scheme}://bucket/prefix"
        )
    shown = "s3" if scheme == "s3a" else scheme
    return scheme, f"{shown}://{address.netloc}" + (f"/{_quoted(prefix)}" if prefix else "")


def _quoted(prefix: str) -> str:
    """Return a prefix as an address has it: signs that mean something there are quoted."""
    return _QUOTED.sub(lambda found: quote(found[0]), prefix)


def _check_hdfs(address: SplitResult) -> None:
    try:
        right = bool(address.hostname) and (address.port is None or address.port > 0)
    except ValueError:
        right = False
    if not right:
        raise ConfigurationError(
            "a hdfs:// destination is hdfs://HOST:PORT/path, of the name node, or "
            "hdfs://NAMESERVICE/path"
        )
    if address.username or address.password:
        raise ConfigurationError(
            "a hdfs:// destination has no user: that is the variable HADOOP_USER_NAME, or "
            "Kerberos' affair"
        )


def _check_endpoint(url: str, endpoint: str, origin: str) -> None:
    """Raise :exc:`ConfigurationError`, which names the origin, unless the endpoint is a URL.

    With an invalid endpoint obstore itself panics at its first request. The error does not repeat
    the endpoint, which may hold a password.
    """
    try:
        address = urlsplit(endpoint)
        right = (
            address.scheme in ("http", "https")
            and bool(address.hostname)
            and (address.port is None or address.port > 0)
        )
    except ValueError:
        right = False
    if not right or _BLANK.search(endpoint):
        raise ConfigurationError(
            f"{url} cannot be used: {origin} must be a URL such as http://localhost:9000"
        )


def _origin(name: str, given: Mapping[str, str], prefix: str) -> str:
    """Return the option that gave the store's option ``name``, or else the variable."""
    if name in given:
        return PREFIX + name
    names = [
        prefix + variable for variable, option in _ENVIRONMENT[prefix].items() if option == name
    ]
    return f"the environment variable {[one for one in names if os.environ.get(one)][-1]}"


def _of_environment(prefix: str) -> dict[str, str]:
    known = (
        (name, os.environ.get(prefix + variable)) for variable, name in _ENVIRONMENT[prefix].items()
    )
    return {name: secret(value) for name, value in known if value}


def _lease(text: str) -> float:
    if not _SECONDS.fullmatch(text) or not 1 <= float(text) <= 3600:
        raise ConfigurationError("store.lease must be a number of seconds from 1 to 3600")
    return float(text)


def _hidden_client(client: dict[str, Any]) -> dict[str, Any]:
    """Return the connection's options as secrets: the address of a proxy may hold a password."""
    if "allow_http" in client:
        client["allow_http"] = client["allow_http"].lower() in ("true", "1", "yes")
    return {name: secret(value) for name, value in client.items()}
