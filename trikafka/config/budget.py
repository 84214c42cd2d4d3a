"""Memory that several consumers of one program share (the idea of KIP-81). Written by the consumers that open and close."""

from __future__ import annotations

from threading import Lock

from ..errors import ConfigurationError


class MemoryBudget:
    """So many bytes for what all consumers that are given this budget fetch, buffer and have just delivered.

    Each of those that are open has an equal part of it, though never more than its own ``fetch_buffer_bytes``::

        budget = trikafka.MemoryBudget(256 * 2**20)
        async with trikafka.open_consumer("a", memory_budget=budget, ...) as consumer: ...

    For the consumers of one program, in one event loop or several (in threads of their own). Raises :exc:`ConfigurationError` for
    less than a byte.
    """

    def __init__(self, total: int) -> None:
        if isinstance(total, bool) or not isinstance(total, int) or total < 1:
            raise ConfigurationError(f"a memory budget is a whole number of bytes, at least 1, not {total!r}")
        self._total, self._consumers = total, 0
        self._lock = Lock()  # consumers of other event loops open and close in other threads

    def __repr__(self) -> str:
        return f"<trikafka.MemoryBudget {self._total} bytes, {self._consumers} consumers>"

    @property
    def total(self) -> int:
        """The bytes of all together."""
        return self._total

    @property
    def share(self) -> int:
        """The bytes that each open consumer has now."""
        return max(1, self._total // max(1, self._consumers))

    def _join(self) -> None:
        """One more consumer is open."""
        with self._lock:
            self._consumers += 1

    def _leave(self) -> None:
        """One was closed."""
        with self._lock:
            self._consumers -= 1
