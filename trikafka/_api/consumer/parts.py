"""The composition of a consumer: its managers, their signals, its background tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio
from kafka.protocol.metadata import MetadataRequest

from ..._managers.cluster.metadata_responses import read_metadata
from ..._managers.group.listener_invoker import RebalanceListenerInvoker, check_listener
from ..._managers.group.membership_events import MembershipEvents
from ..._managers.group.rebalance_times import RebalanceTimes
from ..._managers.group.reconciler import Reconciler
from ..._net.deadlines import RunningCall
from ..._state.assignors import Assignor
from ..._state.consumer.assignment import AssignedPartition, Assignment
from ...config import ConsumerConfig
from ...errors import ConfigurationError, ErrorCode, PluginError, TrikafkaError, from_code
from ...hooks import answers
from ...interfaces import ConsumerContext, RebalanceListener
from ...types import PartitionInfo, TopicPartition
from ..client.codecs import codecs_of
from ..client.context import Context
from ..client.plugin_proxy import GuardedListener
from ..client.service import Service
from .builtin import ConsumerBuiltin, ConsumerClient
from .core import ConsumerCore
from .group import ConsumerGroup
from .reader import Readers
from .streams import Streams
from .watchdog import Watchdog


class ConsumerParts(Context[ConsumerConfig]):
    """The parts of one consumer, which calls them directly.

    Nothing here outlives the consumer's ``async with``.
    """

    def __init__(self, config: ConsumerConfig, service: Service) -> None:
        super().__init__(config, service, ConsumerBuiltin())
        self.core = ConsumerCore(config)
        self._measure()
        limit = lambda: self.core.poll_timer.limit  # noqa: E731
        self.invoker = RebalanceListenerInvoker(
            self.before_revoke, self.core.news, limit, self.start_soon
        )
        self.reconciler = Reconciler(config.group_id, self.core.assignment, self.invoker)
        self.readers = Readers(config, self.core.buffer, codecs_of(self.plugins))
        self.core.poll_timer.watch_deserializers(self.readers.deserializing)
        self.streams = Streams(config, self.core, self.readers, self.invoker, self.home.check)
        self.group = ConsumerGroup(config, self, self.core)
        for kind in ("metadata", "coordinator", "offsets", "telemetry"):
            self.fill(kind)
        self.metadata = self.manager("metadata")
        self.coordinators = self.manager("coordinator")
        self.offsets = self.manager("offsets")
        self.telemetry = self.manager("telemetry")
        self.group.fill_commits()
        self.fill("positions")
        self.positions = self.manager("positions")
        self.fill("fetch")
        self.group.fill_membership()
        self.watchdog = Watchdog(
            config,
            self.core,
            self.brokers.outages,
            self.metadata,
            self.positions,
            self.manager("fetch"),
            self.invoker,
            membership=self.group.membership,
            auto_commit=self.group.auto_commit,
            fetched_by=self.plugins_in.get("fetch"),
            held=self._holds,
        )
        self.core.on_assigned(self._assigned)
        offered = answers(
            self.plugins, "trikafka_rebalance_listener", RebalanceListener, context=self
        )
        for plugin, listener in offered:
            try:
                check_listener(listener)
            # A misspelt method would leave that of the base class in use, which does nothing.
            except ConfigurationError as error:
                who = f"plugin {plugin}: trikafka_rebalance_listener"
                raise PluginError(f"{who}: {error}") from None
        self._plugin_listeners = [
            GuardedListener(listener, self.slot(plugin, "listener")) for plugin, listener in offered
        ]
        self.use_listener(None)

    def _measure(self) -> None:
        """Let the managers' events reach the client's metrics."""
        core, metrics = self.core, self.metrics
        RebalanceTimes(core.member, metrics.rebalanced)
        metrics.time_share("consumer.poll.idle.ratio.avg", core.poll_timer.waited)
        metrics.present(
            "consumer.coordinator.assigned.partitions", lambda: len(core.assignment.partitions)
        )
        metrics.identify(core.member.attributes)

    def _holds(self, partition: AssignedPartition) -> str | None:
        """Return why the user's code delays a partition's records, if it does."""
        return self.readers.holds(partition) or self.streams.holds(partition)

    @property
    def assignors(self) -> list[Assignor]:
        """The assignors; see :class:`~trikafka.interfaces.ConsumerContext`."""
        return self.group.assignors

    @property
    def membership_events(self) -> MembershipEvents | None:
        """The events; see :class:`~trikafka.interfaces.ConsumerContext`."""
        return self.group.events

    async def start(self) -> None:
        """Make the first contact and start the tasks."""
        await self.check_files()
        await self.metadata.bootstrap()
        start_soon = self.start_soon
        start_soon(self.metadata.run)
        start_soon(self.positions.run)
        start_soon(self.manager("fetch").run)
        start_soon(self.watchdog.run)
        if self.config.enable_metrics_push:
            start_soon(self.telemetry.run)
        self.group.start()
        if self.config.memory_budget is not None:
            self.config.memory_budget._join()
        self.notify_opened()

    def _assigned(self, assignment: Assignment) -> None:
        """Forget commits and readers of partitions that are no longer assigned."""
        self.group.forget_others(assignment)
        self.readers.forget_others(assignment)

    # --- the group ---

    def start_over(self) -> None:
        """Reset after an unsubscribe, however that ended: no subscription, no membership.

        The consumer is ready for the next subscription.
        """
        self.group.reset()
        self.invoker.forget()
        self.core.subscription.clear()
        self.group.go_on()

    def use_listener(self, listener: RebalanceListener | None) -> None:
        """Call the plugins' listeners and then the user's in rebalances."""
        self.invoker.use([*self._plugin_listeners, *([listener] if listener is not None else [])])

    async def before_revoke(
        self, partitions: Sequence[TopicPartition], since: float, deadline: float
    ) -> bool:
        """Wait until the streams' handlers have finished their records, then commit.

        Returns False if this receive was too short for that; a longer one may finish.
        """
        deadline = min(deadline, since + self.core.poll_timer.limit)
        # The other half of the time is for the commit and the listeners.
        await self.streams.drained(partitions, since + (deadline - since) / 2)
        patience = since + min(self.config.default_api_timeout, self.core.poll_timer.limit)
        return (
            await self.group.auto_commit_now(partitions, deadline)
            or trio.current_time() >= patience
        )

    # --- requests to the cluster ---

    async def partitions_of(self, call: RunningCall, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic; empty if it is unknown."""
        info = await call.step(f"look up topic {topic!r}", lambda: self.metadata.topic(topic))
        return (
            [] if info is None else [info.partitions[number] for number in sorted(info.partitions)]
        )

    async def ids_of(self, call: RunningCall, topics: list[str]) -> dict[str, UUID | None]:
        """Look up the current ids of the topics that exist."""
        snapshot = await call.step(
            f"look up the ids of {', '.join(topics)}", lambda: self.metadata.refresh(topics)
        )
        found = {name: info for name in topics if (info := snapshot.topics.get(name)) is not None}
        ids: dict[str, UUID | None] = {}
        for name, info in found.items():
            if info.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if info.error_code:
                    raise from_code(info.error_code, f"topic {name!r}", operation="Describe")
                topic_id = None if info.topic_id is None else UUID(info.topic_id)
                ids[name] = topic_id if topic_id is not None and topic_id.int else None
        return ids

    async def all_topics(self, call: RunningCall) -> dict[str, list[PartitionInfo]]:
        """Return all topics that are not internal."""
        request = lambda: MetadataRequest(topics=None, allow_auto_topic_creation=False)  # noqa: E731
        response: Any = await call.step("list the topics", lambda: self.metadata.ask_any(request))
        topics = (await read_metadata(response)).topics.values()
        return {
            t.name: list(t.partitions.values())
            for t in sorted(topics, key=lambda t: t.name)
            if not t.internal
        }

    def recover(self, error: TrikafkaError) -> None:
        """Request what a failed attempt shows to be out of date: the metadata, the coordinator."""
        if error.refresh_metadata:
            self.metadata.request_update()
        if error.refresh_coordinator and self.config.group_id is not None:
            self.coordinators.mark_unknown(self.config.group_id)

    def shut_down(self) -> None:
        """Close the sockets; the tasks end with the service."""
        self.core.subscription.clear()
        if self.config.memory_budget is not None:
            self.config.memory_budget._leave()
        self.brokers.close()
        self.notify_closed()


if TYPE_CHECKING:

    def _fits(consumer: ConsumerParts) -> tuple[ConsumerContext, ConsumerClient]:
        """Return a consumer as the contexts of plugins and of our factories, for type checkers."""
        return consumer, consumer
