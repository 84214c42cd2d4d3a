"""Topics that a program needs, created or checked before its tasks begin (KIP-572).

In a classic group the leader creates them. The attempts are bounded in time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import trio

from .. import Consumer, NewTopic, open_admin
from ..config import ClientConfig, check_topic_name
from ..config.text import in_place_of
from ..errors import (
    AdminErrors,
    BootstrapError,
    ConfigurationError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    TopicsNotReadyError,
    TrikafkaError,
    topic_missing,
)
from ..errors.groups import every
from ..toolkit import Retry, check_client, check_timeout
from ..types import PartitionInfo

if TYPE_CHECKING:
    from .. import Admin

_log = logging.getLogger("trikafka.tasks")


async def ensure_topics(
    consumer: Consumer[Any, Any], topics: Mapping[str, NewTopic], *, timeout: float | None = None
) -> dict[str, list[PartitionInfo]]:
    """Create missing topics and check existing ones; also wait for the subscribed topics.

    A missing topic is created: in a group of the classic protocol by the member that leads it,
    while the others wait; otherwise by the first member that comes. An existing topic is compared
    with the number of partitions and the settings that are given. All of this is retried until the
    time is up.

    Args:
        consumer: An open consumer, whose settings and subscription are used.
        topics: A :class:`NewTopic` for each name.
        timeout: Seconds, at most half of ``max_poll_interval_ms``, so that no member leaves its
            group for this. That is also the default; the default time begins once the member is in
            its group (at most ``max_poll_interval_ms`` later).

    Returns:
        The partitions of each topic, the subscribed ones included.

    Raises:
        TopicsNotReadyError: A topic is missing when the time is up, or an existing topic differs
            (at once). The error names the topics.
        AuthorizationError: The topics may not be created. Other refusals, such as
            :exc:`InvalidTopicError`, are raised as their own errors.
        ConfigurationError: A wrong argument.

    When cancelled, topics may have been created.
    """
    check_client("ensure_topics", consumer, Consumer, '{}, {{"jobs": NewTopic(3)}}')
    check_topics(topics)
    half = consumer.config.max_poll_interval_ms / 2000
    making = _Making(consumer, topics)
    return await making.ensure(
        min(half, check_timeout(timeout, half)), joining=2 * half if timeout is None else 0.0
    )


def check_topics(topics: Mapping[str, NewTopic]) -> None:
    """Raise :exc:`ConfigurationError` unless ``topics`` maps names to :class:`NewTopic`."""
    if not isinstance(topics, Mapping):
        raise ConfigurationError(
            f'topics must be a mapping of names to NewTopic, such as {{"jobs": NewTopic(3)}}, not '
            f"{topics!r}"
        )
    for name, topic in topics.items():
        if not isinstance(topic, NewTopic):
            raise ConfigurationError(
                f"topics must have a NewTopic for {name!r}, not {in_place_of(NewTopic, topic)}"
            )
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"topics must be names, not {name!r}")
        try:
            check_topic_name(name)
        except ConfigurationError as error:
            raise ConfigurationError(f"topics: {error}") from None


class _Making:
    """The loop over all calls: each round looks at the topics and creates what is missing."""

    def __init__(self, consumer: Consumer, topics: Mapping[str, NewTopic]) -> None:
        self._consumer = consumer
        self._topics = topics
        self._config = consumer.config
        self._problems = dict.fromkeys(self._wanted, "was not looked at yet")
        self._ready: dict[str, list[PartitionInfo]] = {}
        # Why the last round did not succeed, if a call failed.
        self._error: TrikafkaError | None = None
        self._deadline = 0.0
        self._latest = 0.0

    async def ensure(self, limit: float, joining: float) -> dict[str, list[PartitionInfo]]:
        """Try for ``limit`` seconds; return the topics.

        The time begins up to ``joining`` seconds later if the member has to join its group first.
        """
        self._deadline = trio.current_time() + limit
        self._latest = self._deadline + joining
        retry = Retry(self._config)
        while True:
            try:
                async with open_admin(**_settings_of(self._config)) as admin:
                    while not await self._round(admin):
                        await self._wait(retry, limit)
                return self._ready
            except TrikafkaError as error:
                if not (error.retriable or isinstance(error, BootstrapError | KafkaTimeoutError)):
                    raise
                self._error = error
            await self._wait(retry, limit)

    @property
    def _wanted(self) -> list[str]:
        return list(dict.fromkeys([*self._topics, *self._consumer.subscription()]))

    @property
    def _joining(self) -> bool:
        """True while the consumer is subscribed and has not joined its group yet."""
        membership = self._consumer.membership()
        return membership is not None and not membership.joined

    # All members of a group start at about the same time, and each would create the same topics. As
    # in Kafka Streams (KIP-572), the member that leads the group creates them where there is such a
    # member, and the others wait. The leader is known only after the join, so nothing is created
    # before. A group of the consumer protocol (KIP-848) has no leader (``leader`` is None): there
    # any member creates, and the one that comes second gets TopicAlreadyExistsError, which the next
    # round settles by looking again.
    @property
    def _may_create(self) -> bool:
        """True where this member creates topics: in a group with a leader, only the leader does."""
        membership = self._consumer.membership()
        return membership is None or (membership.joined and membership.leader is not False)

    async def _wait(self, retry: Retry, limit: float) -> None:
        if self._joining:  # the time begins after the join
            self._deadline = min(trio.current_time() + limit, self._latest)
        left = self._deadline - trio.current_time()
        if left <= 0:
            raise TopicsNotReadyError(self._problems, limit) from self._error
        await trio.sleep(min(left, retry.delay()))

    async def _round(self, admin: Admin) -> bool:
        """Look, create what is missing, compare the settings; return whether all is right.

        Each call has at most the time that is left.
        """
        self._error = None
        there = await admin.list_topics(timeout=self._share)
        # The similar names of other topics do not matter for a topic that is created here.
        made = self._topics if self._may_create else {}
        self._problems = {
            name: _missing(name, () if name in made else there)
            for name in self._wanted
            if not there.get(name)
        }
        self._compare_partitions(there)
        missing = {name: topic for name, topic in self._topics.items() if name in self._problems}
        if missing and self._may_create:
            _log.info("creating %s", ", ".join(missing))
            try:
                await admin.create_topics(missing, timeout=self._share)
            except (TopicAlreadyExistsError, AdminErrors) as error:
                if not every(error, TopicAlreadyExistsError):
                    raise
                self._error = error  # another member was quicker: the next round looks again
            return False
        if not self._problems:
            await self._compare_settings(admin)
            self._ready = {name: there[name] for name in self._wanted}
        return not self._problems

    @property
    def _share(self) -> float:
        return min(self._config.request_timeout, max(0.0, self._deadline - trio.current_time()))

    def _compare_partitions(self, there: Mapping[str, list[PartitionInfo]]) -> None:
        wrong = {}
        for name, topic in self._topics.items():
            if (count := len(there.get(name, ()))) and topic.partitions not in (-1, count):
                noun = "partition" if count == 1 else "partitions"
                wrong[name] = f"has {count} {noun}, not {topic.partitions}"
        self._refuse(wrong)

    async def _compare_settings(self, admin: Admin) -> None:
        wrong = {}
        chosen = [name for name, topic in self._topics.items() if topic.config]
        for name, config in (
            await admin.topic_configs(chosen, include_defaults=True, timeout=self._share)
        ).items():
            for key, text in self._topics[name].config_entries.items():
                if config.get(key) != text:
                    wrong[name] = f"has {key}={config.get(key)}, not {text}"
        self._refuse(wrong)

    def _refuse(self, wrong: dict[str, str]) -> None:
        if wrong:
            raise TopicsNotReadyError(wrong)


def _missing(name: str, there: Iterable[str]) -> str:
    """Return the text about a missing topic, without its name."""
    return topic_missing(name, there).removeprefix(f"topic {name!r} ")


def _settings_of(config: ClientConfig) -> dict[str, Any]:
    """Return the settings that were given to this client, of those that every client has."""
    known = {one.name for one in fields(ClientConfig)}
    return {name: getattr(config, name) for name in config.explicit if name in known}
