"""AWS_MSK_IAM, the SASL mechanism of Amazon's managed Kafka, as a plugin of a third party.

The client signs the request ``kafka-cluster:Connect`` to its broker (Signature Version 4, presigned
for 15 minutes) and sends the signed query as JSON. Credentials come from the environment, under
AWS's own names. For other credentials (a role, a profile) a program creates the plugin itself as
``MskIam(credentials)``. The function ``credentials``, async or not, is called at each
authentication::

    trikafka.open_consumer("t", security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM", ...)
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from trikafka import ClientConfig, Node, hookimpl

_ALGORITHM = "AWS4-HMAC-SHA256"
_NOTHING = hashlib.sha256(b"").hexdigest()


class AwsCredentials(NamedTuple):
    """The credentials of the signer, and the region to sign for.

    ``token`` belongs to temporary credentials.
    """

    access_key: str
    secret_key: str
    region: str
    token: str | None = None

    def __repr__(self) -> str:
        """Return no secret: error trackers show the variables of a traceback."""
        return f"AwsCredentials({self.access_key!r}, region={self.region!r})"


Credentials = Callable[[], AwsCredentials | Awaitable[AwsCredentials]]


def from_environment() -> AwsCredentials:
    """Return the credentials of the environment, under the names of AWS's own tools.

    Raises:
        KeyError: A variable is missing.
    """
    env = os.environ
    region = env.get("AWS_REGION") or env["AWS_DEFAULT_REGION"]
    return AwsCredentials(
        env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], region, env.get("AWS_SESSION_TOKEN")
    )


def presigned(
    signer: AwsCredentials,
    now: datetime,
    service: str,
    host: str,
    query: Mapping[str, str],
    *,
    path: str = "/",
    expires: int = 900,
    payload: str = _NOTHING,
) -> dict[str, str]:
    """Return the query of a GET request for ``host``, with its signature.

    This is Signature Version 4 in query parameters.
    """
    time = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = [time[:8], signer.region, service, "aws4_request"]
    whole = {
        **query,
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": "/".join([signer.access_key, *scope]),
        "X-Amz-Date": time,
        "X-Amz-Expires": str(expires),
        "X-Amz-SignedHeaders": "host",
        **({} if signer.token is None else {"X-Amz-Security-Token": signer.token}),
    }
    canonical = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(whole.items())
    )
    request = "\n".join(["GET", path, canonical, f"host:{host}", "", "host", payload])
    text = "\n".join(
        [_ALGORITHM, time, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()]
    )
    key = f"AWS4{signer.secret_key}".encode()
    for part in [*scope, text]:
        key = hmac.digest(key, part.encode(), "sha256")
    return {**whole, "X-Amz-Signature": key.hex()}


class _Conversation:
    """One authentication with one broker."""

    def __init__(self, credentials: Credentials, host: str) -> None:
        self._credentials = credentials
        self._host = host

    async def first(self) -> bytes:
        given: Any = self._credentials()
        signer: Any = await given if inspect.isawaitable(given) else given
        if (
            not isinstance(signer, AwsCredentials)
            or not all(isinstance(part, str) and part for part in signer[:3])
            or not isinstance(signer.token, str | None)
        ):
            signer = given = None  # may be secret, and a traceback would show it
            raise ValueError("the credentials must be AwsCredentials, of texts that are not empty")
        query = presigned(
            signer,
            datetime.now(UTC),
            "kafka-cluster",
            self._host,
            {"Action": "kafka-cluster:Connect"},
        )
        message = {"version": "2020_10_22", "host": self._host, "user-agent": "trikafka"}
        return json.dumps(message | {name.lower(): value for name, value in query.items()}).encode()

    def respond(self, challenge: bytes) -> None:
        """Accept the broker's response, which has only its version and the request's id."""


class MskIam:
    """The plugin: it offers the mechanism ``AWS_MSK_IAM`` with these credentials."""

    def __init__(self, credentials: Credentials = from_environment) -> None:
        self._credentials = credentials

    @hookimpl
    def trikafka_sasl(
        self, mechanism: str, config: ClientConfig
    ) -> Callable[[Node], object] | None:
        return (
            # The dot at the end of an absolute name in DNS is not part of the host that is signed.
            (lambda node: _Conversation(self._credentials, node.host.removesuffix(".")))
            if mechanism == "AWS_MSK_IAM"
            else None
        )


plugin = MskIam()
