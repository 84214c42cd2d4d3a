"""The admin client as the user holds it: topics, groups, offsets, transactions and the cluster, looked up and changed.

Each method is one API call under one deadline. What the controller decides goes to the controller (in KRaft any broker passes it
on), what belongs to a group goes to its coordinator, and the groups of the cluster are asked of all brokers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import trio
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.metadata import MetadataRequest

from .._managers.commit import Commits
from .._managers.metadata import read_metadata
from .._managers.telemetry import Telemetry
from .._net.deadlines import Call, check_timeout, run_call
from .._net.gather import all_of
from .._state.member import Identity
from .._wire.extra_messages import ConsumerGroupDescribeRequest
from ..config import AdminConfig
from ..error_codes import ErrorCode
from ..errors import (
    ConfigurationError,
    DamagedResponseError,
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TrikafkaError,
    from_code,
)
from ..interfaces import CoordinatorKind
from ..types import (
    DetachedTransaction,
    GroupDescription,
    Node,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetSpec,
    PartitionInfo,
    TopicPartition,
)
from . import admin_messages as messages
from .admin_ending import TransactionEnd
from .admin_messages import Outcome
from .admin_places import AskCoordinator, at_coordinators
from .admin_transactions import Filters, HangingSearch, TransactionLookups, check_seconds
from .admin_types import (
    ClusterDescription,
    GroupListing,
    HangingTransaction,
    ListedOffset,
    NewTopic,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from .context import Context
from .service import Exit, Service

T = TypeVar("T")
#: What a call has to be allowed, as Kafka's access rules name it.
_OPERATIONS = {"create_topics": "Create", "delete_topics": "Delete", "create_partitions": "Alter", "delete_groups": "Delete"}
_EXISTS, _NO_GROUP = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.GROUP_ID_NOT_FOUND
_NO_ANSWER = (RequestTimedOutError, KafkaConnectionError)


class Admin:
    """Looks after a cluster. Made by :func:`trikafka.open_admin`; any number of tasks may use it.

    ``timeout=`` is in seconds and bounds all attempts of a call together (default: ``default_api_timeout_ms``); past it
    :exc:`~trikafka.errors.KafkaTimeoutError` is raised. A call about several topics or groups does what it can: what fails is
    raised once all is settled, as the error of the first that failed, which names the others. Cancelled while a request is
    under way, a change may or may not have been made.
    """

    def __init__(self, config: AdminConfig, service: Service) -> None:
        self._config = config
        self._closed = False  # first: a traceback with locals shows what is half made
        self._context = Context(config, service)
        self._brokers = self._context.brokers
        for kind in ("metadata", "coordinator", "offsets"):
            self._context.fill(kind)
        self._metadata = self._context.manager("metadata")
        self._coordinators = self._context.manager("coordinator")
        self._offsets = self._context.manager("offsets")
        self._transactions = TransactionLookups(self._brokers, self._metadata, self._coordinators)
        self._telemetry = Telemetry(config, self._metadata)

    def __repr__(self) -> str:
        return f"<trikafka.Admin client_id={self._config.client_id!r}{' closed' if self._closed else ''}>"

    async def _start(self) -> None:
        await self._metadata.bootstrap()
        self._context.start_soon(self._metadata.run)
        self._context.tell_opened()

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """The id by which the cluster's metrics know this client (KIP-714), asked for once.

        Raises :exc:`TelemetryNotSupportedError` where the brokers take no metrics from clients, :exc:`KafkaTimeoutError`.
        """
        check_timeout(timeout, 0.0)
        self._check_open()
        return await self._telemetry.client_instance_id(timeout)

    # --- topics ------------------------------------------------------------------------------------------------------

    async def create_topics(self, topics: Mapping[str, NewTopic], *, timeout: float | None = None) -> None:
        """Create topics. Raises :exc:`TopicAlreadyExistsError`, :exc:`InvalidTopicError` and others, naming the topic.

        Those that could be created stay. A broker may need a moment more to know of them.
        """
        if not isinstance(topics, Mapping):
            raise ConfigurationError(f"create_topics wants a mapping of names to NewTopic, not {topics!r}")
        for name, topic in topics.items():
            if not isinstance(topic, NewTopic):
                raise ConfigurationError(f"create_topics wants a NewTopic for {name!r}, not {topic!r}")
        chosen = messages.names_of("topics", topics)

        def request(names: list[str], timeout_ms: int) -> object:
            return messages.create_topics({name: topics[name] for name in names}, timeout_ms)

        await self._change("create_topics", chosen, request, lambda response: response.topics, timeout)

    async def delete_topics(self, topics: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics and their records. Raises :exc:`UnknownTopicOrPartitionError` and others, naming the topic."""
        chosen = messages.names_of("topics", topics)
        await self._change("delete_topics", chosen, messages.delete_topics, lambda response: response.responses, timeout)

    async def create_partitions(self, totals: Mapping[str, int], *, timeout: float | None = None) -> None:
        """Grow topics to ``totals`` partitions (the number afterwards); brokers hear of it later. Errors name the topic."""
        chosen = messages.names_of("topics", totals)
        for name, total in totals.items():
            if isinstance(total, bool) or not isinstance(total, int) or total < 1:
                raise ConfigurationError(f"the number of partitions of {name!r} must be a whole number from 1, not {total!r}")

        def request(names: list[str], timeout_ms: int) -> object:
            return messages.create_partitions({name: totals[name] for name in names}, timeout_ms)

        await self._change("create_partitions", chosen, request, lambda response: response.results, timeout)

    async def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that the cluster shows, with their partitions; internal ones only if asked for."""

        async def attempt(call: Call) -> dict[str, list[PartitionInfo]]:
            request = lambda: MetadataRequest(topics=None, allow_auto_topic_creation=False)  # noqa: E731
            response = await call.step("list the topics", lambda: self._metadata.ask_any(request))
            topics = sorted((await read_metadata(response)).topics.values(), key=lambda topic: topic.name)
            return {
                topic.name: [topic.partitions[number] for number in sorted(topic.partitions)]
                for topic in topics
                if include_internal or not topic.internal
            }

        return await self._call("list_topics", attempt, timeout)

    async def topic_configs(
        self, topics: Iterable[str], *, include_defaults: bool = False, timeout: float | None = None
    ) -> dict[str, dict[str, str | None]]:
        """What was configured for each topic itself, or all that holds for it; of what the broker keeps secret ``None``."""
        chosen = messages.names_of("topics", topics)

        async def attempt(call: Call) -> dict[str, dict[str, str | None]]:
            if not chosen:
                await trio.lowlevel.checkpoint()
                return {}
            request = partial(messages.describe_topic_configs, chosen)
            response = await call.step("read the topics' settings", lambda: self._metadata.ask_any(request))
            return messages.read_topic_configs(response, include_defaults=include_defaults)

        return await self._call("topic_configs", attempt, timeout)

    # --- the cluster and its partitions ------------------------------------------------------------------------------

    async def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        """The cluster's id and the brokers that are alive now."""

        async def attempt(call: Call) -> ClusterDescription:
            seen = await call.step("describe the cluster", self._metadata.refresh)
            nodes = tuple(seen.nodes[number] for number in sorted(seen.nodes))
            return ClusterDescription(seen.cluster_id, seen.controller_node, nodes)

        return await self._call("describe_cluster", attempt, timeout)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec | int], *, timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Where partitions begin or end, or the first record at or after a time (ms since the epoch); ``None`` if there is none."""
        todo = messages.wanted_offsets(wanted)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}

        async def attempt(call: Call) -> dict[TopicPartition, ListedOffset | None]:
            if not todo:
                await trio.lowlevel.checkpoint()
            await self._offsets.look_up(call, todo, found)
            return {tp: messages.listed_offset(found[tp]) for tp in todo}

        return await self._call("list_offsets", attempt, timeout)

    # --- groups ------------------------------------------------------------------------------------------------------

    async def list_groups(self, *, timeout: float | None = None) -> list[GroupListing]:
        """All groups, of every protocol, by name."""
        return await self._call("list_groups", self._list_groups, timeout)

    async def describe_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> dict[str, GroupDescription]:
        """State and members of groups. A group that does not exist is ``Dead``.

        Of groups of other protocols than the classic one and KIP-848's the state is told, and no members.
        """
        chosen = messages.names_of("group_ids", group_ids)
        found: dict[str, GroupDescription] = {}

        async def attempt(call: Call) -> dict[str, GroupDescription]:
            await self._at_coordinators(
                call, [group for group in chosen if group not in found], partial(self._describe, call, found)
            )
            if any(group.state == "Dead" for group in found.values()):
                await self._name_other_protocols(call, found)
            if missing := [group for group in chosen if group not in found]:
                raise DamagedResponseError(f"the response to DescribeGroups leaves out {missing[0]!r}, which was asked for")
            return {group: found[group] for group in chosen}

        return await self._call("describe_groups", attempt, timeout, chosen)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """All that a group has committed, or of ``partitions``; empty if it has committed nothing or does not exist.

        An offset in a transaction that is open yet is waited for; the first one of a partition only if that is named.
        """
        (group,) = messages.names_of("group_id", [group_id])
        chosen = None if partitions is None else messages.partitions_of(partitions)
        self._check_open()
        commits = Commits(self._config, group, self._brokers, self._coordinators, Identity)
        found = await commits.committed(chosen, timeout=timeout, name="list_group_offsets")
        return {tp: found_at for tp, found_at in sorted(found.items()) if found_at is not None}

    async def delete_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete groups and their offsets. Raises errors that name the group: it still has members, or does not exist."""
        left = dict.fromkeys(messages.names_of("group_ids", group_ids))
        failed: dict[str, TrikafkaError] = {}

        async def delete(call: Call, node: Node, groups: list[str]) -> None:
            request = DeleteGroupsRequest(groups_names=groups)
            response = await call.step(f"DeleteGroups to {node}", lambda: self._brokers.request(node, request))
            self._settle("group", [Outcome(r.group_id, r.error_code, None) for r in response.results], left, failed, call)

        async def attempt(call: Call) -> None:
            await self._at_coordinators(call, list(left), partial(delete, call))

        await self._call("delete_groups", attempt, timeout, list(left))
        if failed:
            raise messages.first_of(failed, "group")

    # --- transactions ------------------------------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than: float | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, by name (KIP-664): those in ``states``, of ``producer_ids``, whose transaction has run for more
        than ``longer_than`` seconds, whose whole name fits ``pattern`` (RE2's syntax).

        Raises :exc:`ConfigurationError` for a state that there is not, :exc:`UnsupportedVersionError` where the brokers are too old
        for ``longer_than`` (Kafka 3.8, KIP-994) or ``pattern`` (4.1, KIP-1152).
        """
        filters = Filters(tuple(messages.names_of("states", states)), tuple(producer_ids), longer_than, pattern)
        return await self._call("list_transactions", lambda call: self._transactions.listed(call, filters), timeout)

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """State, producer, limit and partitions of transactional ids (KIP-664). Raises errors that name an id that there is not."""
        chosen = messages.names_of("transactional_ids", transactional_ids)
        found: dict[str, TransactionDescription] = {}
        failed: dict[str, TrikafkaError] = {}

        async def attempt(call: Call) -> None:
            await self._transactions.described(call, chosen, found, failed)

        await self._call("describe_transactions", attempt, timeout, chosen, CoordinatorKind.TRANSACTION)
        if failed:
            raise messages.first_of({name: failed[name] for name in chosen if name in failed}, "transactional id")
        return {name: found[name] for name in chosen}

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        """What the partitions' leaders remember of their idempotent and transactional producers (KIP-664)."""
        chosen = messages.partitions_of(partitions)
        found: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}

        async def attempt(call: Call) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
            await self._transactions.producers(call, chosen, found)
            return {tp: found[tp] for tp in chosen}

        return await self._call("describe_producers", attempt, timeout)

    async def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, longer_than: float = 900, timeout: float | None = None
    ) -> list[HangingTransaction]:
        """Transactions that are open in a partition and that no coordinator knows of, so that nothing will end them (KIP-664).

        All topics are searched, internal ones too, or ``topics``. What was written to less than ``longer_than`` seconds ago (by
        the time in its last record) is left alone: let it be the longest that a transaction may take.
        """
        chosen = None if topics is None else messages.names_of("topics", topics)
        check_seconds(longer_than)
        before_ms = int((time.time() - longer_than) * 1000)

        async def attempt(call: Call) -> list[HangingTransaction]:
            seen = await call.step("list the topics", lambda: self._metadata.ask_any(partial(messages.topics_request, chosen)))
            search = HangingSearch(self._transactions, messages.partitions_in(seen), before_ms)
            return await search.attempt(call)

        return await self._call("find_hanging_transactions", attempt, timeout)

    async def abort_transaction(self, partition: TopicPartition, start_offset: int, *, timeout: float | None = None) -> None:
        """Write the marker that aborts the transaction that is open in ``partition`` since ``start_offset`` (KIP-664).

        It is meant for one that hangs: a transaction that its coordinator knows of is torn by this. Other partitions are left as
        they are. Raises :exc:`TransactionNotOpenError` if no open transaction begins there.
        """
        (tp,) = messages.partitions_of([partition])
        messages.check_offset(start_offset)
        await self._call("abort_transaction", lambda call: self._transactions.abort(call, tp, start_offset), timeout)

    async def end_transaction(self, transaction: DetachedTransaction, *, commit: bool, timeout: float | None = None) -> None:
        """Commit or abort what :meth:`Transaction.detach` has left open. It may be called again, with the same outcome.

        Raises :exc:`TransactionNotOpenError` if it is not open any more: it took longer than its ``transaction_timeout_ms``,
        another producer has its id, or it has been ended the other way;
        :exc:`TransactionUndecidedError` past ``timeout`` or ``retries``: call it again. Cancelled, it may have been ended or not.
        """
        if not isinstance(transaction, DetachedTransaction):
            raise ConfigurationError(f"end_transaction wants what Transaction.detach() returned, not {transaction!r}")
        end = TransactionEnd(self._brokers, self._coordinators, transaction, commit=commit)
        try:
            names = [transaction.transactional_id]
            await self._call("end_transaction", end.attempt, timeout, names, CoordinatorKind.TRANSACTION)
        except (KafkaTimeoutError, RequestTimedOutError, KafkaConnectionError) as error:  # the last two: no retries are left
            raise end.undecided(error) from (error.__cause__ if isinstance(error, KafkaTimeoutError) else error)

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the sockets. Closing twice is fine."""
        await self._finish(Exit.CLEAN)

    async def _finish(self, how: Exit) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()
        if not self._closed:
            self._closed = True
            self._brokers.close()
            self._context.tell_closed()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this admin client is closed")

    async def _call(
        self,
        name: str,
        attempt: Callable[[Call], Awaitable[T]],
        timeout: float | None,
        coordinated: Iterable[str] = (),
        kind: CoordinatorKind = CoordinatorKind.GROUP,
    ) -> T:
        def recover(error: TrikafkaError) -> None:
            if error.refresh_metadata:
                self._metadata.request_update()
            if error.refresh_coordinator:
                for key in coordinated:
                    self._coordinators.mark_unknown(key, kind)

        check_timeout(timeout, 0.0)
        self._check_open()
        return await run_call(name, attempt, config=self._config, timeout=timeout, recover=recover)

    async def _change(
        self,
        name: str,
        topics: list[str],
        request: Callable[[list[str], int], object],
        results: Callable[[Any], Iterable[Any]],
        timeout: float | None,
    ) -> None:
        """Have the controller change ``topics``; those that fail for a reason that may pass are tried again."""
        left = dict.fromkeys(topics)
        failed: dict[str, TrikafkaError] = {}

        async def attempt(call: Call) -> None:
            if not left:
                await trio.lowlevel.checkpoint()
                return
            node = await self._controller(call)
            message: Any = request(list(left), int(call.step_limit * 1000))
            response = await call.step(f"{name} at {node}", lambda: self._brokers.request(node, message))
            self._settle("topic", [Outcome(r.name, r.error_code, r.error_message) for r in results(response)], left, failed, call)

        await self._call(name, attempt, timeout)
        if failed:
            raise messages.first_of(failed, "topic")

    def _settle(
        self, kind: str, outcomes: Iterable[Outcome], left: dict[str, None], failed: dict[str, TrikafkaError], call: Call
    ) -> None:
        """Take what is done or has failed for good out of ``left``. Raises an error that may pass, once all are looked at."""
        passing: TrikafkaError | None = None
        for name, code, message in outcomes:
            needs = _OPERATIONS.get(call.name, "")
            error = messages.failure(kind, name, code, message, needs) if code else None
            if code == _EXISTS and isinstance(call.last_error, _NO_ANSWER):
                again = "an attempt before this one got no response and may have created it"
                error = from_code(code, messages.named(kind, name, again))
            if error is not None and error.retriable and error.patience == float("inf"):
                passing = error
                continue
            left.pop(name, None)
            if error is not None:
                failed[name] = error
        if passing is not None:
            raise passing

    async def _controller(self, call: Call) -> Node:
        seen = self._metadata.snapshot
        if call.attempts > 1 or seen.controller_node is None:
            seen = await call.step("find the controller", self._metadata.refresh)
        node = seen.controller_node
        if node is None:
            raise from_code(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
        return node

    async def _list_groups(self, call: Call) -> list[GroupListing]:
        seen = await call.step("look up the brokers", self._metadata.refresh)
        found: dict[str, GroupListing] = {}

        async def ask(node: Node) -> None:
            request = ListGroupsRequest(states_filter=[], types_filter=[])
            response = await call.step(f"ListGroups to {node}", lambda: self._brokers.request(node, request))
            found.update((group.group_id, group) for group in messages.read_listed(response))

        await all_of([partial(ask, node) for node in seen.nodes.values()])
        return sorted(found.values(), key=lambda group: group.group_id)

    async def _at_coordinators(self, call: Call, groups: list[str], ask: AskCoordinator) -> None:
        await at_coordinators(call, self._coordinators, CoordinatorKind.GROUP, groups, ask)

    async def _describe(self, call: Call, found: dict[str, GroupDescription], node: Node, groups: list[str]) -> None:
        request = DescribeGroupsRequest(groups=groups, include_authorized_operations=False)
        response = await call.step(f"DescribeGroups to {node}", lambda: self._brokers.request(node, request))
        failure: TrikafkaError | None = None
        for group in response.groups:
            if group.error_code == _NO_GROUP:
                found[group.group_id] = GroupDescription(group.group_id, "Dead", "", ())
            elif group.error_code:
                failure = from_code(group.error_code, f"group {group.group_id!r}", operation="Describe")
            else:
                found[group.group_id] = messages.read_group(group)
        if failure is not None:
            raise failure

    async def _name_other_protocols(self, call: Call, found: dict[str, GroupDescription]) -> None:
        """A group of another protocol looks dead to DescribeGroups; the list of groups knows better."""
        modern: list[str] = []
        for listed in await self._list_groups(call):
            known = found.get(listed.group_id)
            if known is not None and known.state == "Dead" and listed.state:
                found[listed.group_id] = GroupDescription(listed.group_id, listed.state, listed.type or "", ())
                if (listed.type or "").lower() == "consumer":
                    modern.append(listed.group_id)
        if modern:
            await self._at_coordinators(call, modern, partial(self._describe_modern, call, found))

    async def _describe_modern(self, call: Call, found: dict[str, GroupDescription], node: Node, groups: list[str]) -> None:
        """Groups of the consumer protocol (KIP-848)."""
        request = ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False)
        response = await call.step(f"ConsumerGroupDescribe to {node}", lambda: self._brokers.request(node, request))
        for group in response.groups:
            if not group.error_code:
                found[group.group_id] = messages.read_consumer_group(group)
            elif group.error_code != _NO_GROUP:  # it is gone by now, or of the other kind again
                raise from_code(group.error_code, f"group {group.group_id!r}", operation="Describe")
