"""Memory shared by several consumers of one program (after KIP-81).

Consumers change a budget when they open and close.
"""

from __future__ import annotations

from threading import Lock

from ..errors import ConfigurationError
from .whole import is_whole


# fetch_buffer_bytes bounds one consumer. A program that opens a consumer per topic or per tenant
# would have to divide its memory by the largest number of consumers that it will ever have.
#
# A budget divides the bytes by the number of consumers that are open now. The shares are equal, and
# no consumer borrows from another. So a consumer whose user is slow fills its own share and cannot
# stop the others. The price is that an idle consumer's share stays unused.
#
# The counter is the only common state, under a lock, since consumers of other event loops open and
# close in other threads. Consumers read `share` whenever they decide what to fetch, so a smaller
# share takes effect with the next fetch. Bytes above the new share are delivered, not discarded.
class MemoryBudget:
    """A number of bytes shared by all consumers that are given this budget.

    The budget bounds the records that these consumers fetch, buffer and have just delivered. Each
    open consumer gets an equal share, but never more than its own ``fetch_buffer_bytes``::

        budget = trikafka.MemoryBudget(256 * 2**20)
        async with trikafka.open_consumer("a", memory_budget=budget, ...) as consumer: ...

    The consumers must belong to one program. They may run in several event loops, each in its own
    thread.

    Args:
        total: The number of bytes, at least 1.

    Raises:
        ConfigurationError: ``total`` is not a whole number of at least 1.
    """

    def __init__(self, total: int) -> None:
        if not is_whole(total, 1):
            raise ConfigurationError(
                f"a memory budget is a whole number of bytes, at least 1, not {total!r}"
            )
        self._total = total
        self._consumers = 0
        self._lock = Lock()  # consumers in other event loops open and close in other threads

    def __repr__(self) -> str:
        return f"<trikafka.MemoryBudget {self._total} bytes, {self._consumers} consumers>"

    @property
    def total(self) -> int:
        """The bytes of all consumers together."""
        return self._total

    @property
    def share(self) -> int:
        """The bytes that each open consumer may use now."""
        return max(1, self._total // max(1, self._consumers))

    def _join(self) -> None:
        """Count a consumer that opens."""
        with self._lock:
            self._consumers += 1

    def _leave(self) -> None:
        """Stop counting a consumer, which has closed."""
        with self._lock:
            self._consumers -= 1
