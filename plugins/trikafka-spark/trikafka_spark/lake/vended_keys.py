"""Keys of an object store that a catalog hands out with a table, for a while: asked for anew before they end.

An export with ``--every`` outlives them many times over. So the store has no keys of its own, but somebody to ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trikafka.config.secrets import secret

KEY, SECRET, TOKEN, EXPIRES = (
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "s3.session-token-expires-at-ms",
)
#: How long (seconds) keys are taken for good of which the catalog does not say when they end: a quarter of an hour is the least
#: that anybody gives.
_UNTOLD = 600.0
#: Of their life, so much is left when new ones are asked for.
_LEFT = 1 / 3


class VendedKeys:
    """Called by a store's client, from any thread, as often as it wants keys.

    Pickled, for a worker elsewhere, it is the keys of that moment: workers know no catalog.
    """

    def __init__(self, told: Mapping[str, Any], ask: Callable[[], Mapping[str, Any]]) -> None:
        """``told`` are a table's properties as the catalog gave them just now; ``ask`` has it give them again."""
        self._ask = ask
        self._asking = threading.Lock()
        self._known = _Keys.of(told)

    def __call__(self) -> dict[str, Any]:
        with self._asking:
            if self._known.are_old():
                self._known = _Keys.of(self._ask())
            return self._known()

    def __reduce__(self) -> tuple[Any, ...]:
        self()
        return (_Keys, (self._known.key, self._known.secret, self._known.token, self._known.until, self._known.since))


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys, and when they were given and end (seconds since 1970)."""

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False)
    until: float
    since: float = field(compare=False)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> _Keys:
        now, token = time.time(), told.get(TOKEN)
        ends = str(told.get(EXPIRES, ""))
        until = int(ends) / 1000 if ends.isdecimal() else now + _UNTOLD
        hidden = None if token is None else secret(str(token))
        return cls(secret(str(told.get(KEY, ""))), secret(str(told.get(SECRET, ""))), hidden, until, now)

    def are_old(self) -> bool:
        return self.until - time.time() < (self.until - self.since) * _LEFT

    def __call__(self) -> dict[str, Any]:
        """As obstore wants them."""
        ends = datetime.fromtimestamp(self.until, UTC)
        return {"access_key_id": self.key, "secret_access_key": self.secret, "token": self.token, "expires_at": ends}


def are_vended(told: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a table's properties have keys that are not the catalog's ``own``, which somebody has configured."""
    return all(name in told for name in (KEY, SECRET)) and (TOKEN in told or EXPIRES in told) and told[KEY] != own.get(KEY)
