"""The built-in plugin of a consumer: its request managers, and the assignors."""

from __future__ import annotations

from typing import Protocol

from ... import interfaces
from ..._managers.cluster.builtin import Builtin
from ..._managers.cluster.topic_ids import TopicIds
from ..._managers.commits.commit import Commits
from ..._managers.commits.offset_messages import OffsetTopics
from ..._managers.consumer.fetch import Fetcher
from ..._managers.consumer.positions import Positions
from ..._managers.group.classic_membership import ClassicMembership
from ..._managers.group.consumer_membership import ConsumerMembership
from ..._managers.group.heartbeat import Heartbeats
from ..._managers.group.membership_base import GroupRequests, GroupTopics, MembershipDependencies
from ..._managers.group.membership_choice import MembershipChoice
from ..._managers.group.membership_events import MembershipEvents
from ..._managers.group.reconciler import Reconciler
from ..._net.brokers import Brokers
from ..._state.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    rebalance_protocol,
)
from ...hooks import hookimpl
from .core import ConsumerCore


class ConsumerClient(interfaces.ConsumerContext, Protocol):
    """A consumer's context, with trikafka's own objects in it."""

    @property
    def brokers(self) -> Brokers: ...
    @property
    def core(self) -> ConsumerCore: ...
    @property
    def reconciler(self) -> Reconciler: ...
    @property
    def assignors(self) -> list[Assignor]: ...
    @property
    def membership_events(self) -> MembershipEvents | None: ...


class ConsumerBuiltin(Builtin):
    """The request managers and assignors of a consumer."""

    @hookimpl(trylast=True)
    def trikafka_assignor(self, name: str) -> Assignor | None:
        offered: list[Assignor] = [
            RangeAssignor(),
            RoundRobinAssignor(),
            StickyAssignor(),
            CooperativeStickyAssignor(),
        ]
        return next((assignor for assignor in offered if assignor.name == name), None)

    @staticmethod
    def _commit(client: ConsumerClient) -> interfaces.CommitManager:
        core = client.core
        coordinators = client.manager("coordinator")
        topics = OffsetTopics(client.manager("metadata"), core.assignment)
        return Commits(
            client.config, _group(client), client.brokers, coordinators, core.member, topics
        )

    @staticmethod
    def _positions(client: ConsumerClient) -> interfaces.PositionsManager:
        core = client.core
        commits = client.manager("commit") if client.config.group_id is not None else None
        return Positions(
            client.config,
            core.subscription,
            core.assignment,
            client.manager("metadata"),
            client.manager("offsets"),
            commits,
            core.signals.locate,
            client.start_soon,
        )

    @staticmethod
    def _fetch(client: ConsumerClient) -> interfaces.FetchManager:
        core = client.core
        return Fetcher(
            client.config,
            client.brokers,
            client.manager("metadata"),
            core.subscription,
            core.assignment,
            core.buffer,
            core.signals.fetch,
            client.start_soon,
        )

    @staticmethod
    def _heartbeat(client: ConsumerClient) -> interfaces.HeartbeatManager:
        core = client.core
        coordinators = client.manager("coordinator")
        follow_up = rebalance_protocol(client.assignors) is RebalanceProtocol.COOPERATIVE
        return Heartbeats(
            client.config,
            _group(client),
            client.brokers,
            coordinators,
            core.member,
            core.poll_timer,
            follow_up,
        )

    @staticmethod
    def _membership(client: ConsumerClient) -> interfaces.MembershipManager:
        dependencies = _membership_dependencies(client)
        heartbeats = client.manager("heartbeat")
        classic = ClassicMembership(dependencies, heartbeats, client.assignors)
        if client.config.group_protocol == "classic":
            return classic
        named = client.config.group_protocol == "consumer"
        consumer = ConsumerMembership(
            dependencies, TopicIds(client.manager("metadata")), gives_way=not named
        )
        if named:
            return consumer
        # A plugin that replaces the heartbeats means the classic protocol: only there are they
        # separate.
        return MembershipChoice(
            dependencies, consumer, classic, only_classic=type(heartbeats) is not Heartbeats
        )


def _group(client: ConsumerClient) -> str:
    assert client.config.group_id is not None
    return client.config.group_id


def _membership_dependencies(client: ConsumerClient) -> MembershipDependencies:
    """Return what the memberships of both protocols need."""
    core = client.core
    topics = GroupTopics(
        core.subscription,
        client.manager("metadata"),
        exclude_internal=client.config.exclude_internal_topics,
    )
    requests = GroupRequests(_group(client), client.brokers, client.manager("coordinator"))
    events = client.membership_events
    assert events is not None
    return MembershipDependencies(
        client.config,
        core.subscription,
        core.member,
        client.reconciler,
        core.poll_timer,
        topics,
        requests,
        events,
        core.news,
    )
