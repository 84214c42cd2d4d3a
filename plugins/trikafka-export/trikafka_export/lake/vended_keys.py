"""Temporary keys of an object store that a catalog issues with a table.

They are renewed before they expire: a repeated export (``--every``) outlives them many times. So
the store holds no keys, but a function that returns current ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trikafka.config.secrets import secret

KEY = "s3.access-key-id"
SECRET = "s3.secret-access-key"
TOKEN = "s3.session-token"
EXPIRES = "s3.session-token-expires-at-ms"
#: Seconds for which keys without an expiry are used. A quarter of an hour is the shortest lifetime
#: in use.
_WITHOUT_EXPIRY = 600.0
#: The remaining share of their lifetime at which keys are renewed.
_LEFT = 1 / 3


class VendedKeys:
    """A function that returns current keys; a store's client calls it from any thread.

    Pickled for a worker, it becomes the current keys: workers have no catalog.
    """

    def __init__(self, properties: Mapping[str, Any], ask: Callable[[], Mapping[str, Any]]) -> None:
        """Keep the keys in a table's ``properties``; ``ask`` requests new ones."""
        self._ask = ask
        self._asking = threading.Lock()
        self._known = _Keys.of(properties)

    def __call__(self) -> dict[str, Any]:
        return self._current()()

    def __reduce__(self) -> tuple[Any, ...]:
        keys = self._current()  # once: another thread may renew the keys meanwhile
        return _Keys, (keys.key, keys.secret, keys.token, keys.until, keys.since)

    # Keys are renewed long before they expire, and the catalog may be slow. So one thread asks it,
    # and the others go on with the keys that they have.
    def _current(self) -> _Keys:
        keys = self._known
        if not keys.are_old():
            return keys
        if not self._asking.acquire(blocking=keys.until <= time.time()):
            return keys
        try:
            keys = self._known
            if keys.are_old():
                keys = self._known = _Keys.of(self._ask())
            return keys
        finally:
            self._asking.release()


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys with their time of issue and expiry (seconds since 1970)."""

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False)
    until: float
    since: float = field(compare=False)

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> _Keys:
        now = time.time()
        token = properties.get(TOKEN)
        ends = str(properties.get(EXPIRES, ""))
        until = int(ends) / 1000 if ends.isdecimal() else now + _WITHOUT_EXPIRY
        hidden = None if token is None else secret(str(token))
        return cls(
            secret(str(properties.get(KEY, ""))),
            secret(str(properties.get(SECRET, ""))),
            hidden,
            until,
            now,
        )

    def are_old(self) -> bool:
        return self.until - time.time() < (self.until - self.since) * _LEFT

    def __call__(self) -> dict[str, Any]:
        """Return the keys in obstore's form."""
        ends = datetime.fromtimestamp(self.until, UTC)
        return {
            "access_key_id": self.key,
            "secret_access_key": self.secret,
            "token": self.token,
            "expires_at": ends,
        }


def are_vended(properties: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether a table's properties have keys other than the catalog's configured ones."""
    return (
        all(name in properties for name in (KEY, SECRET))
        and (TOKEN in properties or EXPIRES in properties)
        and properties[KEY] != own.get(KEY)
    )
