"""The client of a schema registry of Confluent's kind: a schema by its id, with what it refers to. Blocks.

An id that the registry does not know is one thing (:exc:`UnreadableError`: the record is to blame), a registry that does not answer
is another (:exc:`SchemaRegistryTimeoutError`: tried again), one that refuses us the third (:exc:`SchemaRegistryError`). A schema of
an id never changes, so it is asked for once a process. That an id is not known may change, so this is believed for a while.
"""

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

from .errors import SchemaRegistryError, SchemaRegistryTimeoutError, UnreadableError
from .options import RegistrySettings

T = TypeVar("T")
#: Seconds between two attempts: at first, and at most. One attempt takes so long at most.
_BACKOFF, _BACKOFF_MAX, _ONE_ATTEMPT = 0.1, 2.0, 5.0
#: How often a thread that waits for another's request looks whether it is to end (seconds).
_TURN = 0.1
#: Of a schema, and of the schemas that it refers to, all together.
_MOST_BYTES, _MOST_REFERENCES = 16 << 20, 200
#: Requests at one time. Threads that want the same schema wait for each other.
_SIDE_BY_SIDE = 4
#: Ids that the registry does not know: so many are remembered, for so long (seconds). Bytes that are no values of a registry's name
#: any ids, in each range anew.
_MOST_UNKNOWN, _UNKNOWN_FOR = 10_000, 60.0
#: What a registry says of an id that it does not know (``error_code`` in the body; a 404 alone may be anything).
_UNKNOWN_SCHEMA = 40403
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema. ``references``: name and schema of what it refers to, each after what itself refers to."""

    id: int
    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class RegistryClient:
    """Asks one registry. Its threads share the schemas that it has."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._schemas: dict[tuple[int, bool], Registered] = {}
        self._unknown: OrderedDict[int, float] = OrderedDict()
        self._turns = [threading.Lock() for _ in range(_SIDE_BY_SIDE)]
        #: It has not answered in all the time that it had: until it does, one attempt has to be enough, for each range has its own.
        self._silent = False
        context = None
        if settings.url.startswith("https:"):
            try:
                context = ssl.create_default_context(cafile=settings.cafile)
            except (OSError, ssl.SSLError) as error:
                raise ConfigurationError(f"schema_registry_cafile: {settings.cafile!r} holds no certificates: {error}") from error
        handlers = [urllib.request.HTTPSHandler(context=context)] if context is not None else []
        self._opener = urllib.request.build_opener(_NoRedirects(), *handlers)

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        return self._settings.url

    def schema(self, id: int, *, serialized: bool = False, wait: Callable[[float], None] = time.sleep) -> Registered:
        """The schema of an id; ``serialized``: those of Protobuf as descriptors (Base64), not as text.

        ``wait(seconds)`` is called between attempts, and may raise what ends them. Raises :exc:`UnreadableError` for an id that is
        not known, :exc:`SchemaRegistryTimeoutError` and :exc:`SchemaRegistryError`.
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
        """The subjects that a schema is registered under, and its version there; none where the registry does not tell.

        Raises :exc:`SchemaRegistryTimeoutError`.
        """
        try:
            with self._turn(id, wait):
                return _Asking(self._opener, self._settings, id, False, wait, patient=not self._silent).subjects()
        except (UnreadableError, SchemaRegistryError):
            return {}

    def _asked(self, id: int, serialized: bool, wait: Callable[[float], None]) -> Registered:
        try:
            found = _Asking(self._opener, self._settings, id, serialized, wait, patient=not self._silent).schema()
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
        """``wait`` may end the waiting for another thread's request, too."""
        lock = self._turns[id % _SIDE_BY_SIDE]
        while not lock.acquire(timeout=_TURN):
            wait(0.0)
        try:
            yield
        finally:
            lock.release()


@lru_cache(maxsize=16)
def client_of(settings: RegistrySettings) -> RegistryClient:
    """The client of this process. Raises :exc:`ConfigurationError`."""
    return RegistryClient(settings)


class _Asking:
    """All questions about one id, within one limit."""

    def __init__(
        self,
        opener: urllib.request.OpenerDirector,
        settings: RegistrySettings,
        id: int,
        serialized: bool,
        wait: Callable[[float], None],
        *,
        patient: bool,
    ) -> None:
        self._opener, self._settings, self._id, self._wait, self._patient = opener, settings, id, wait, patient
        self._query = "?format=serialized" if serialized else ""
        self._began = time.monotonic()

    def schema(self) -> Registered:
        body = self._get(f"/schemas/ids/{self._id}{self._query}", self._body_of)
        found: dict[str, str] = {}
        self._add(body, found, ())
        return Registered(self._id, str(body.get("schemaType") or "AVRO"), _text(body), tuple(found.items()))

    def subjects(self) -> dict[str, int]:
        return self._get(f"/schemas/ids/{self._id}/versions", self._versions_of)

    def _add(self, body: Mapping[str, Any], found: dict[str, str], above: tuple[str, ...]) -> None:
        """What a schema refers to, from the ground up, each once."""
        for reference in body.get("references") or ():
            try:
                name, subject, version = reference["name"], reference["subject"], int(reference["version"])
            except (TypeError, KeyError, ValueError):
                raise self._useless(f"a reference that is none: {str(reference)[:200]}") from None
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
        """What ``judge`` makes of the body. Tried again while the registry does not answer."""
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
                        f"the schema registry {self._settings.url} has a certificate that is not trusted: {error};"
                        " schema_registry_cafile names the authority's",
                        self._settings.url,
                        self._id,
                    ) from error
                last = error
            delay = min(_BACKOFF * 2 ** (attempts - 1), _BACKOFF_MAX) * random.uniform(0.8, 1.2)
            if not self._patient or time.monotonic() + delay >= self._began + limit:
                call = f"asking the schema registry {self._settings.url} for the schema {self._id}"
                raise SchemaRegistryTimeoutError(call, limit, attempts, last, self._settings.url, self._id) from last
            self._wait(delay)

    def _once(self, path: str, timeout: float) -> tuple[int, bytes]:
        request = urllib.request.Request(self._settings.url + path, headers={"Accept": _ACCEPT})
        if self._settings.auth is not None:
            basic = Secret(base64.b64encode(self._settings.auth.encode()).decode())
            request.add_unredirected_header("Authorization", Secret("Basic " + basic))
        if self._settings.token is not None:
            request.add_unredirected_header("Authorization", Secret("Bearer " + self._settings.token))
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return response.status, _body(response, time.monotonic() + timeout)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(10_000)

    def _body_of(self, body: Any) -> dict[str, Any]:
        if isinstance(body, dict) and isinstance(body.get("schema"), str):
            return body
        raise self._useless("no schema, nor an error")

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
                f"the schema registry {self._settings.url} refuses us the schema {self._id} (HTTP status {status}):"
                " see schema_registry_auth and schema_registry_token",
                self._settings.url,
                self._id,
            )
        raise self._useless(f"HTTP status {status}")

    def _useless(self, what: str) -> SchemaRegistryError:
        url, id = self._settings.url, self._id
        return SchemaRegistryError(f"{url} is no schema registry, or a broken one: for schema {id} it gave {what}", url, id)


def _unknown(url: str, id: int) -> UnreadableError:
    return UnreadableError(f"the schema registry {url} knows no schema {id}")


class _BusyError(Exception):
    """The registry answers, but cannot serve just now."""


def _without_frames(error: BaseException | None) -> None:
    """Take the tracebacks away: the frames of Python's HTTP client hold what was sent, secrets too, and trackers show frames."""
    while error is not None:
        error.__traceback__ = None
        inner = getattr(error, "reason", None)
        _without_frames(inner if isinstance(inner, BaseException) and inner is not error.__context__ else None)
        error = error.__cause__ or error.__context__


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry what is secret to somebody else."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def _body(response: Any, due: float) -> bytes:
    """What it says, or the beginning of too much. A time-out of a socket starts again with each byte: this one does not."""
    length, found = response.length, bytearray()
    while len(found) <= _MOST_BYTES and (part := response.read1(1 << 16)):
        found += part
        if time.monotonic() >= due:
            raise TimeoutError("the response does not end")
    if length is not None and len(found) < min(length, _MOST_BYTES):
        raise http.client.IncompleteRead(b"", length - len(found))
    return bytes(found)


def _text(body: Mapping[str, Any]) -> str:
    return str(body["schema"])
