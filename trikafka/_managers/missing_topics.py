"""Topics that do not exist: the log's word of those that are waited for, and the names of others, of which one may have been meant.

For a fresh client knows of no other topic. So a broker is asked for a page of its topics, in their order, from there on. That is
bounded however many there are, which metadata of all topics is not. It is done beside the call that misses the topic, which goes
on asking for some seconds, and makes no difference to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import trio

from .._kafka_python import defer
from .._net.brokers import Brokers
from .._net.singleflight import StartSoon
from .._state.cluster import ClusterSnapshot
from ..errors import TrikafkaError, topic_missing
from ..types import Node

#: How much of a name is taken to be right, how many partitions the page may have, and how long (seconds) it is waited for.
_BEGINNING, _PAGE, _PATIENCE = 2, 1_000, 5.0
#: So many names that are missing are looked into, by one client.
_MOST = 100
#: How many are named in the log at a time.
_MOST_TOLD = 5
_log = logging.getLogger("trikafka.metadata")


class MissingTopics:
    """Tells of each once, and looks once for names that are alike, which are told to ``found``."""

    def __init__(self, brokers: Brokers, start_soon: StartSoon, found: Callable[[tuple[str, ...]], None]) -> None:
        self._brokers, self._start_soon, self._found = brokers, start_soon, found
        self._looked: set[str] = set()
        self._told: set[str] = set()

    def tell(self, missing: set[str], known: ClusterSnapshot) -> None:
        """These are waited for, and are all that do not exist."""
        news = sorted(missing - self._told)
        for name in news[:_MOST_TOLD]:
            _log.warning("%s; what was asked of it waits until it does", topic_missing(name, known.existing()))
        if len(news) > _MOST_TOLD:
            _log.warning("nor do %d other topics exist that were asked for", len(news) - _MOST_TOLD)
        self._told = missing

    def look_for_alike(self, missing: str, node: Node | None) -> None:
        """Begin to, unless that was done."""
        if node is not None and missing not in self._looked and len(self._looked) < _MOST:
            self._looked.add(missing)
            self._start_soon(self._look, missing[:_BEGINNING], node)

    async def _look(self, beginning: str, node: Node) -> None:
        # Here, and past the package's body, which brings all of the admin client's messages: few clients ever miss a topic.
        defer("kafka.protocol.admin")
        from kafka.protocol.admin.topics import DescribeTopicPartitionsRequest

        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=beginning, partition_index=0)
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=_PAGE, cursor=cursor)
        with suppress(TrikafkaError, trio.ClosedResourceError), trio.move_on_after(_PATIENCE):  # older brokers cannot do it
            response = await self._brokers.request(node, request)
            self._found(tuple(topic.name for topic in response.topics if topic.name and not topic.error_code))
