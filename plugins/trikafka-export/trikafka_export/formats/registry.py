"""The client of a schema registry of Confluent's kind. Blocks."""

from __future__ import annotations

import base64
import http.client
import json
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from trikafka import ConfigurationError
from trikafka.config.secrets import Secret
from trikafka.errors.peer_text import peer_text
from trikafka.http_request import Exchange

from .errors import SchemaRegistryError, SchemaRegistryTimeoutError, UnreadableError
from .options import RegistrySettings

T = TypeVar("T")
#: Seconds between two attempts, at first and at most; and the most seconds for one attempt.
_BACKOFF, _BACKOFF_MAX, _ONE_ATTEMPT = 0.1, 2.0, 5.0
#: Seconds after which a thread that waits for another's request checks for cancellation.
_TURN = 0.1
#: The most bytes of a schema, and the most schemas that it refers to.
_MOST_BYTES, _MOST_REFERENCES = 16 << 20, 200
#: Concurrent requests. Threads that want the same schema wait for each other.
_SIDE_BY_SIDE = 4
#: The most unknown ids that are remembered, and for how many seconds. Bytes that no serializer
#: wrote may name any id.
_MOST_UNKNOWN, _UNKNOWN_FOR = 10_000, 60.0
#: The registry's ``error_code`` for an unknown id. A 404 alone may mean anything.
_UNKNOWN_SCHEMA = 40403
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of the registry.

    ``references`` are the names and texts of the schemas that it refers to. Each follows those that
    it refers to itself.
    """

    id: int
    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


# Three failures must be distinguished, because each has another consequence:
#
# * The registry does not know an id (UnreadableError). The record is at fault and becomes a dead
#   letter. Only error code 40403 in the body proves this: a 404 alone may come from a proxy or a
#   wrong URL, and must not turn all records into dead letters.
# * The registry does not respond, or is overloaded (SchemaRegistryTimeoutError). No record is at
#   fault. The range is retried.
# * The registry refuses the client, or the server is not a registry (SchemaRegistryError). That is
#   final.
#
# The schema of an id never changes, so it is requested once per process. That an id is unknown may
# change, so this is believed for a minute only. Bytes that no serializer wrote may name any id, so
# the number of remembered unknown ids is bounded.
#
# Requests are limited in number, and threads that want the same schema wait for one request. Once a
# registry has been silent for its whole time limit, later look-ups make a single attempt until it
# responds: every range of an export has the same limit and would wait for all of it again.
#
# Secrets: redirects are not followed, since they would send the credentials to another server. The
# frames of Python's HTTP client hold the request with its headers, so tracebacks are removed from
# its errors.
class RegistryClient:
    """A client of one registry. Its threads share the schemas."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._schemas: dict[tuple[int, bool], Registered] = {}
        self._unknown: OrderedDict[int, float] = OrderedDict()
        self._turns = [threading.Lock() for _ in range(_SIDE_BY_SIDE)]
        #: True after the registry was silent for its whole time limit. Until it responds, a look-up
        #: makes one attempt only.
        self._silent = False
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without TLS it is not used
        if settings.url.startswith("https:"):
            try:
                self._context = ssl.create_default_context(cafile=settings.cafile)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(
                    f"schema_registry_cafile: {settings.cafile!r} holds no certificates: {error}"
                ) from error

    @property
    def url(self) -> str:
        """The registry's URL without secrets."""
        return self._settings.url

    def schema(
        self, id: int, *, serialized: bool = False, wait: Callable[[float], None] = time.sleep
    ) -> Registered:
        """Return the schema of an id.

        Args:
            id: The id.
            serialized: Return Protobuf schemas as descriptors (Base64) instead of text.
            wait: Called with the seconds between attempts. It may raise to end them.

        Raises:
            UnreadableError: The registry does not know the id.
            SchemaRegistryTimeoutError: The registry did not respond in time.
            SchemaRegistryError: The registry refused, or the server is not a registry.
        """
        known = self._known(id, serialized)
        if known is not None:
            return known
        with self._turn(id, wait):
            known = self._known(id, serialized)  # another thread may have asked meanwhile
            if known is None:
                known = self._asked(id, serialized, wait)
                with self._lock:
                    self._schemas[(id, serialized)] = known
            return known

    def subjects(self, id: int, *, wait: Callable[[float], None] = time.sleep) -> dict[str, int]:
        """Return the subjects of a schema with its version in each.

        The result is empty if the registry does not report them.

        Raises:
            SchemaRegistryTimeoutError: The registry did not respond in time.
        """
        try:
            with self._turn(id, wait):
                return _Asking(
                    self._context, self._settings, id, False, wait, patient=not self._silent
                ).subjects()
        except (UnreadableError, SchemaRegistryError):
            return {}

    def _asked(self, id: int, serialized: bool, wait: Callable[[float], None]) -> Registered:
        try:
            found = _Asking(
                self._context, self._settings, id, serialized, wait, patient=not self._silent
            ).schema()
        except SchemaRegistryTimeoutError:
            self._silent = True
            raise
        except UnreadableError:
            self._silent = False
            with self._lock:
                self._unknown[id] = time.monotonic() + _UNKNOWN_FOR
                self._unknown.move_to_end(id)
                if len(self._unknown) > _MOST_UNKNOWN:
                    self._unknown.popitem(last=False)
            raise
        self._silent = False
        return found

    def _known(self, id: int, serialized: bool) -> Registered | None:
        with self._lock:
            if self._unknown.get(id, 0.0) > time.monotonic():
                raise _unknown(self._settings.url, id)
            return self._schemas.get((id, serialized))

    @contextmanager
    def _turn(self, id: int, wait: Callable[[float], None]) -> Iterator[None]:
        """Hold the id's turn. ``wait`` may also end the waiting for another thread's request."""
        lock = self._turns[id % _SIDE_BY_SIDE]
        while not lock.acquire(timeout=_TURN):
            wait(0.0)
        try:
            yield
        finally:
            lock.release()


@lru_cache(maxsize=16)
def client_of(settings: RegistrySettings) -> RegistryClient:
    """Return this process's client of a registry.

    Raises:
        ConfigurationError: The CA file is unusable.
    """
    return RegistryClient(settings)


class _Asking:
    """All requests about one id, within one time limit."""

    def __init__(
        self,
        context: ssl.SSLContext,
        settings: RegistrySettings,
        id: int,
        serialized: bool,
        wait: Callable[[float], None],
        *,
        patient: bool,
    ) -> None:
        self._context = context
        self._settings = settings
        self._id = id
        self._wait = wait
        self._patient = patient
        self._query = "?format=serialized" if serialized else ""
        self._began = time.monotonic()

    def schema(self) -> Registered:
        body = self._get(f"/schemas/ids/{self._id}{self._query}", self._body_of)
        found: dict[str, str] = {}
        self._add(body, found, ())
        return Registered(
            self._id, str(body.get("schemaType") or "AVRO"), _text(body), tuple(found.items())
        )

    def subjects(self) -> dict[str, int]:
        return self._get(f"/schemas/ids/{self._id}/versions", self._versions_of)

    def _add(self, body: Mapping[str, Any], found: dict[str, str], above: tuple[str, ...]) -> None:
        """Add the schemas that a schema refers to, each once, dependencies first."""
        for reference in body.get("references") or ():
            try:
                name = reference["name"]
                subject = reference["subject"]
                version = int(reference["version"])
            except (TypeError, KeyError, ValueError):
                raise self._useless(f"an invalid reference: {str(reference)[:200]}") from None
            if name in above:
                raise self._useless(f"references in a circle, by {name!r}")
            if name in found:
                continue
            if len(found) + len(above) >= _MOST_REFERENCES:
                raise self._useless(f"more than {_MOST_REFERENCES} references")
            path = f"/subjects/{quote(str(subject), safe='')}/versions/{version}{self._query}"
            inner = self._get(path, self._body_of)
            self._add(inner, found, (*above, name))
            found[name] = _text(inner)

    def _get(self, path: str, judge: Callable[[Any], T]) -> T:
        """Return the result of ``judge`` for a response's body; retry without a response."""
        limit, attempts, last = self._settings.timeout, 0, None
        while True:
            attempts += 1
            left = self._began + limit - time.monotonic()
            try:
                return judge(self._checked(*self._once(path, max(0.001, min(left, _ONE_ATTEMPT)))))
            except (OSError, http.client.HTTPException, _BusyError) as error:
                _without_frames(error)
                if isinstance(error, ssl.SSLCertVerificationError) or isinstance(
                    getattr(error, "reason", None), ssl.SSLCertVerificationError
                ):
                    raise SchemaRegistryError(
                        f"the schema registry {self._settings.url} has a certificate that is not "
                        f"trusted: {peer_text(error)}; schema_registry_cafile names the "
                        "authority's",
                        self._settings.url,
                        self._id,
                    ) from error
                last = error
                if isinstance(error, http.client.HTTPException):
                    # The error contains the malformed status line, which may be very long.
                    last = _BusyError(f"{type(error).__name__}: {peer_text(error)}")
            delay = min(_BACKOFF * 2 ** (attempts - 1), _BACKOFF_MAX) * random.uniform(0.8, 1.2)
            if not self._patient or time.monotonic() + delay >= self._began + limit:
                call = f"asking the schema registry {self._settings.url} for the schema {self._id}"
                raise SchemaRegistryTimeoutError(
                    call, limit, attempts, last, self._settings.url, self._id
                ) from last
            self._wait(delay)

    def _once(self, path: str, timeout: float) -> tuple[int, bytes]:
        request = urllib.request.Request(self._settings.url + path, headers={"Accept": _ACCEPT})
        if self._settings.auth is not None:
            basic = Secret(base64.b64encode(self._settings.auth.encode()).decode())
            request.add_unredirected_header("Authorization", Secret("Basic " + basic))
        if self._settings.token is not None:
            request.add_unredirected_header(
                "Authorization", Secret("Bearer " + self._settings.token)
            )
        exchange = Exchange(timeout)
        try:
            with exchange.open(request, self._context) as response:
                return response.status, _body(response, time.monotonic() + timeout)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(10_000)
        finally:
            exchange.end()

    def _body_of(self, body: Any) -> dict[str, Any]:
        if isinstance(body, dict) and isinstance(body.get("schema"), str):
            return body
        raise self._useless("neither a schema nor an error")

    def _versions_of(self, body: Any) -> dict[str, int]:
        try:
            return {str(each["subject"]): int(each["version"]) for each in body}
        except (TypeError, KeyError, ValueError):
            raise self._useless("no subjects and versions") from None

    def _checked(self, status: int, data: bytes) -> Any:
        try:
            body = json.loads(data) if len(data) <= _MOST_BYTES else None
        except (ValueError, RecursionError):
            body = None
        if status == 200:
            return body
        if status == 404 and isinstance(body, dict) and body.get("error_code") == _UNKNOWN_SCHEMA:
            raise _unknown(self._settings.url, self._id)
        if status >= 500 or status in (408, 425, 429):
            raise _BusyError(f"HTTP status {status}")
        if status in (401, 403):
            raise SchemaRegistryError(
                (
                    f"the schema registry {self._settings.url} refuses access to the schema "
                    f"{self._id} (HTTP status {status}): check schema_registry_auth and "
                    "schema_registry_token"
                ),
                self._settings.url,
                self._id,
            )
        raise self._useless(f"HTTP status {status}")

    def _useless(self, what: str) -> SchemaRegistryError:
        url, id = self._settings.url, self._id
        return SchemaRegistryError(
            f"{url} is not a working schema registry: for schema {id} it returned {what}", url, id
        )


def _unknown(url: str, id: int) -> UnreadableError:
    return UnreadableError(f"the schema registry {url} has no schema {id}")


class _BusyError(Exception):
    """The registry responded that it cannot serve now."""


def _without_frames(error: BaseException) -> None:
    """Remove tracebacks: the frames of Python's HTTP client hold the request with its secrets.

    Contexts that no traceback shows hold their frames, too.
    """
    seen: set[int] = set()
    left: list[object] = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [each.__cause__, each.__context__, getattr(each, "reason", None)]


def _body(response: Any, due: float) -> bytes:
    """Return the body, or the beginning of one that is too large.

    A socket's timeout restarts with each byte; the limit here does not.
    """
    length = response.length
    found = bytearray()
    while len(found) <= _MOST_BYTES and (part := response.read1(1 << 16)):
        found += part
        if time.monotonic() >= due:
            raise TimeoutError("the response does not end")
    if length is not None and len(found) < min(length, _MOST_BYTES):
        raise http.client.IncompleteRead(b"", length - len(found))
    return bytes(found)


def _text(body: Mapping[str, Any]) -> str:
    return str(body["schema"])
