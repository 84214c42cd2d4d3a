"""The topics that a program needs, made or checked before its tasks begin: by the group's leader, and not for ever (KIP-572)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import trio

from .._net.deadlines import check_timeout
from .._net.retry import Retry
from ..config import ClientConfig
from ..errors import (
    BootstrapError,
    ConfigurationError,
    KafkaTimeoutError,
    TopicAlreadyExistsError,
    TopicsNotReadyError,
    TrikafkaError,
    topic_missing,
)
from ..types import PartitionInfo
from . import admin_messages as messages
from .admin import Admin
from .admin_types import NewTopic
from .consumer import Consumer
from .given import check_client
from .opening import open_admin

_log = logging.getLogger("trikafka.tasks")


async def ensure_topics(
    consumer: Consumer, topics: Mapping[str, NewTopic], *, timeout: float | None = None
) -> dict[str, list[PartitionInfo]]:
    """Have ``topics`` there, with these partitions and settings, and those that the consumer subscribes to; returns them.

    What is missing is created: in a group of the classic protocol by the member that leads it, while the others wait for that;
    else by whoever comes first. What is there is compared: the number of partitions and the settings that were given. All of
    that is tried again for ``timeout`` seconds; the most is half of ``max_poll_interval_ms``, so that no member drops out of its
    group for it. That is the default, too, which does not begin before the member is in its group (for which it has
    ``max_poll_interval_ms`` at most).

    Raises :exc:`TopicsNotReadyError`, which names what is missing, past that time; at once for a topic that is there and is not
    as it should be; and what forbids to create one (:exc:`AuthorizationError`, :exc:`InvalidTopicError` ...). Cancelled: topics
    may have been created.
    """
    check_client("ensure_topics", consumer, Consumer, '{}, {{"jobs": NewTopic(3)}}')
    check_topics(topics)
    half = consumer._config.max_poll_interval_ms / 2000
    making = _Making(consumer, topics)
    return await making.run(min(half, check_timeout(timeout, half)), joining=2 * half if timeout is None else 0.0)


def check_topics(topics: Mapping[str, NewTopic]) -> None:
    """Raise :exc:`ConfigurationError` unless it says which topics, and how they are to be made."""
    if not isinstance(topics, Mapping):
        raise ConfigurationError(f'topics must be a mapping of names to NewTopic, such as {{"jobs": NewTopic(3)}}, not {topics!r}')
    for name, topic in topics.items():
        if not isinstance(topic, NewTopic):
            raise ConfigurationError(f"topics must have a NewTopic for {name!r}, not {topic!r}")
    messages.names_of("topics", topics)


class _Making:
    """One loop over all calls: each round looks at what there is, and does what is to be done about it."""

    def __init__(self, consumer: Consumer, topics: Mapping[str, NewTopic]) -> None:
        self._consumer, self._topics = consumer, topics
        self._config = consumer._config
        self._problems = dict.fromkeys(self._wanted, "was not looked at yet")
        self._ready: dict[str, list[PartitionInfo]] = {}
        self._error: TrikafkaError | None = None  # why the last round did not succeed, if a call failed
        self._deadline = self._latest = 0.0

    async def run(self, limit: float, joining: float) -> dict[str, list[PartitionInfo]]:
        """For ``limit`` seconds, which begin up to ``joining`` seconds later if the member has to join its group first."""
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
        """Whether it is a member of a group, and not in it yet."""
        return self._consumer._subscription.grouped and not self._consumer._parts.core.member.identity.joined

    @property
    def _may_create(self) -> bool:
        """Whether that is this member's to do; in a group that has a leader, it alone creates."""
        return not self._joining and self._consumer._parts.core.member.leads is not False

    async def _wait(self, retry: Retry, limit: float) -> None:
        if self._joining:  # the time for this begins after that
            self._deadline = min(trio.current_time() + limit, self._latest)
        left = self._deadline - trio.current_time()
        if left <= 0:
            raise TopicsNotReadyError(self._problems, limit) from self._error
        await trio.sleep(min(left, retry.delay()))

    async def _round(self, admin: Admin) -> bool:
        """Look, make what is missing, look at the settings; whether all is as it should be. Each call has what is left at most."""
        self._error = None
        there = await admin.list_topics(timeout=self._share)
        made = self._topics if self._may_create else {}  # of these it does not matter which others are called alike
        self._problems = {name: _missing(name, () if name in made else there) for name in self._wanted if not there.get(name)}
        self._compare_partitions(there)
        missing = {name: topic for name, topic in self._topics.items() if name in self._problems}
        if missing and self._may_create:
            _log.info("creating %s", ", ".join(missing))
            try:
                await admin.create_topics(missing, timeout=self._share)
            except TopicAlreadyExistsError as error:
                self._error = error  # somebody else was quicker: the next round looks at it
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
                wrong[name] = f"has {count} partitions, not {topic.partitions}"
        self._refuse(wrong)

    async def _compare_settings(self, admin: Admin) -> None:
        wrong = {}
        chosen = [name for name, topic in self._topics.items() if topic.config]
        for name, config in (await admin.topic_configs(chosen, include_defaults=True, timeout=self._share)).items():
            for key, value in self._topics[name].config.items():
                if config.get(key) != (text := messages.config_text(value)):
                    wrong[name] = f"has {key}={config.get(key)}, not {text}"
        self._refuse(wrong)

    def _refuse(self, wrong: dict[str, str]) -> None:
        if wrong:
            raise TopicsNotReadyError(wrong)


def _missing(name: str, there: Iterable[str]) -> str:
    """What is said of it, behind its name."""
    return topic_missing(name, there).removeprefix(f"topic {name!r} ")


def _settings_of(config: ClientConfig) -> dict[str, Any]:
    """What every client has, as this one was given it."""
    known = {one.name for one in fields(ClientConfig)}
    return {name: getattr(config, name) for name in config.explicit if name in known}
