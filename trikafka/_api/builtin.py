"""What trikafka itself brings: a plugin of the same kind as any other, registered first and so asked last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._managers.classic_membership import ClassicMembership
from .._managers.commit import Commits
from .._managers.consumer_membership import ConsumerMembership
from .._managers.coordinator import Coordinators
from .._managers.fetch import Fetcher
from .._managers.heartbeat import Heartbeats
from .._managers.membership_base import GroupParts, GroupRequests, GroupTopics
from .._managers.membership_choice import MembershipChoice
from .._managers.metadata import Metadata
from .._managers.offset_topics import OffsetTopics
from .._managers.offsets import Offsets
from .._managers.positions import PositionsManager
from .._managers.produce import ProduceManager
from .._managers.topic_ids import TopicIds
from .._managers.transaction_coordinator import TransactionCoordinator
from .._managers.transactions import Transactions
from .._state.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RebalanceProtocol,
    RoundRobinAssignor,
    StickyAssignor,
    rebalance_protocol,
)
from ..hooks import hookimpl
from .ack import Ack

if TYPE_CHECKING:
    from .. import interfaces
    from .consumer_parts import ConsumerParts
    from .context import Context
    from .producer import ProducerParts

    AnyClient = Context[Any]  # whatever its settings


class Builtin:
    """The request managers and assignors that come with trikafka.

    What the factories take of a client is what its context offers to any plugin (``tests/hooks/test_contracts.py`` holds that),
    and what they return is what the contract of the seat asks for: that is for type checkers to see.
    """

    @hookimpl(trylast=True)
    def trikafka_request_manager(self, kind: str, context: object) -> object | None:
        build = getattr(self, f"_{kind}", None)
        return None if build is None else build(context)

    @hookimpl(trylast=True)
    def trikafka_assignor(self, name: str) -> Assignor | None:
        offered: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]
        return next((assignor for assignor in offered if assignor.name == name), None)

    @staticmethod
    def _metadata(client: AnyClient) -> interfaces.MetadataManager:
        return Metadata(client.config, client.brokers, client.start_soon)

    @staticmethod
    def _coordinator(client: AnyClient) -> interfaces.CoordinatorManager:
        outages, events = client.brokers.outages, getattr(client, "membership_events", None)
        watch = None if events is None else events.coordinator
        return Coordinators(client.manager("metadata"), client.start_soon, outages, watch)

    @staticmethod
    def _offsets(client: AnyClient) -> interfaces.OffsetsManager:
        isolation = 1 if getattr(client.config, "isolation_level", "") == "read_committed" else 0
        return Offsets(client.brokers, client.manager("metadata"), isolation)

    @staticmethod
    def _commit(client: ConsumerParts) -> interfaces.CommitManager:
        core, coordinators = client.core, client.manager("coordinator")
        topics = OffsetTopics(client.manager("metadata"), core.assignment)
        member = core.member
        identity, joining = lambda: member.identity, lambda: member.joining
        return Commits(client.config, _group(client), client.brokers, coordinators, identity, topics, joining)

    @staticmethod
    def _positions(client: ConsumerParts) -> interfaces.PositionsManager:
        core = client.core
        commits = client.manager("commit") if client.config.group_id is not None else None
        return PositionsManager(
            client.config,
            core.subscription,
            core.assignment,
            client.manager("metadata"),
            client.manager("offsets"),
            commits,
            core.signals.locate,
        )

    @staticmethod
    def _fetch(client: ConsumerParts) -> interfaces.FetchManager:
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
    def _heartbeat(client: ConsumerParts) -> interfaces.HeartbeatManager:
        core, coordinators = client.core, client.manager("coordinator")
        follow_up = rebalance_protocol(client.assignors) is RebalanceProtocol.COOPERATIVE
        return Heartbeats(client.config, _group(client), client.brokers, coordinators, core.member, core.poll_timer, follow_up)

    @staticmethod
    def _membership(client: ConsumerParts) -> interfaces.MembershipManager:
        parts = _group_parts(client)
        classic = ClassicMembership(parts, client.manager("heartbeat"), client.assignors)
        if client.config.group_protocol == "classic":
            return classic
        named = client.config.group_protocol == "consumer"
        consumer = ConsumerMembership(parts, TopicIds(client.manager("metadata")), gives_way=not named)
        if named:
            return consumer
        if type(client.manager("heartbeat")) is not Heartbeats:
            return classic  # whoever replaces the heartbeats means those of the classic protocol
        return MembershipChoice(parts, consumer, classic)

    @staticmethod
    def _produce(client: ProducerParts) -> interfaces.ProduceManager:
        return ProduceManager(
            client.config,
            client.brokers,
            client.manager("metadata"),
            client.start_soon,
            Ack,
            client.partitioner,
            client.transaction,
            client.watch,
        )

    @staticmethod
    def _transactions(client: ProducerParts) -> interfaces.TransactionManager:
        coordinator = TransactionCoordinator(client.config, client.brokers, client.manager("coordinator"))
        produce, transaction = client.manager("produce"), client.transaction
        assert transaction is not None
        return Transactions(client.config, coordinator, produce, transaction, client.transaction_signals, client.start_soon)


def _group(client: ConsumerParts) -> str:
    assert client.config.group_id is not None
    return client.config.group_id


def _group_parts(client: ConsumerParts) -> GroupParts:
    """What the memberships of both protocols work with."""
    core = client.core
    topics = GroupTopics(core.subscription, client.manager("metadata"), exclude_internal=client.config.exclude_internal_topics)
    requests = GroupRequests(_group(client), client.brokers, client.manager("coordinator"))
    events = client.membership_events
    assert events is not None
    return GroupParts(
        client.config, core.subscription, core.member, client.reconciler, core.poll_timer, topics, requests, events, core.news
    )


if TYPE_CHECKING:

    def _meet(
        client: AnyClient, consumer: ConsumerParts, producer: ProducerParts
    ) -> tuple[interfaces.ClientContext, interfaces.ConsumerContext, interfaces.ProducerContext]:
        """Whether clients are the contexts that plugins are promised."""
        return client, consumer, producer
