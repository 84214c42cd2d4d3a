"""The topics that a share consumer subscribes to, and the partitions that the group assigns to it.

Only the membership changes the assignment. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..._wire.share import SharePartition


class ShareAssignment:
    """The subscription and the assignment; ``changed`` is called with each new assignment."""

    def __init__(self, topics: Iterable[str], changed: Callable[[], object]) -> None:
        #: The names of the subscribed topics.
        self.topics = frozenset(topics)
        #: The assigned partitions, by their topics' ids. The metadata may not know them yet.
        self.partitions: frozenset[SharePartition] = frozenset()
        self._changed = changed

    def assign(self, partitions: Iterable[SharePartition]) -> bool:
        """Set the assignment; return whether it differs from the previous one."""
        assigned = frozenset(partitions)
        if assigned == self.partitions:
            return False
        self.partitions = assigned
        self._changed()
        return True
