"""Topics that do not exist: the log line about each, and a search for similar names.

A fresh client knows of no other topic. So one broker is asked for a page of its topics, in their
order, from the beginning of the missing name on (DescribeTopicPartitions). The page is bounded
however many topics there are; metadata of all topics would not be. The search runs beside the call
that misses the topic, which goes on for some seconds, and makes no difference to that call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import trio
from kafka.protocol.admin import DescribeTopicPartitionsRequest

from ..._net.brokers import Brokers
from ..._net.singleflight import StartSoon
from ...errors import TrikafkaError, topic_missing
from ...interfaces import ClusterSnapshot
from ...types import Node

#: How many leading characters of a name are taken to be right, how many partitions the page may
#: have, and how long (seconds) the search may take.
_BEGINNING, _PAGE, _PATIENCE = 2, 1_000, 5.0
#: The most missing names that one client searches for.
_MOST = 100
#: How many topics the log names at a time.
_MOST_NAMED = 5
_log = logging.getLogger("trikafka.metadata")


class MissingTopics:
    """The log of missing topics, and the search for similar names.

    Each name is logged once and searched for once. ``found`` is called with the similar names.
    """

    def __init__(
        self, brokers: Brokers, start_soon: StartSoon, found: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._brokers = brokers
        self._start_soon = start_soon
        self._found = found
        self._looked: set[str] = set()
        self._reported: set[str] = set()

    def log_new(self, missing: set[str], known: ClusterSnapshot) -> None:
        """Log the topics that are waited for; ``missing`` is all of them."""
        news = sorted(missing - self._reported)
        for name in news[:_MOST_NAMED]:
            _log.warning(
                "%s; a subscribed consumer waits until it does",
                topic_missing(name, known.existing()),
            )
        if len(news) > _MOST_NAMED:
            _log.warning(
                "%d other topics that were asked for do not exist either", len(news) - _MOST_NAMED
            )
        self._reported = missing

    def look_for_alike(self, missing: str, node: Node | None) -> None:
        """Start the search for names similar to this one, unless it was done."""
        if node is not None and missing not in self._looked and len(self._looked) < _MOST:
            self._looked.add(missing)
            self._start_soon(self._look, missing[:_BEGINNING], node)

    async def _look(self, beginning: str, node: Node) -> None:
        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=beginning, partition_index=0)
        request = DescribeTopicPartitionsRequest(
            topics=[], response_partition_limit=_PAGE, cursor=cursor
        )
        # Older brokers do not have this request.
        with suppress(TrikafkaError, trio.ClosedResourceError), trio.move_on_after(_PATIENCE):
            response = await self._brokers.request(node, request)
            self._found(
                tuple(
                    topic.name for topic in response.topics if topic.name and not topic.error_code
                )
            )
