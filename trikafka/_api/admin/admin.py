"""The public admin client: topics, groups, offsets, transactions and the cluster.

Each method is one API call under one deadline. Changes of topics go to the controller (in KRaft any
broker forwards them). Requests about a group go to its coordinator. All brokers are asked for the
cluster's groups.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import trio
from kafka.protocol.metadata import MetadataRequest

from ..._managers.cluster.builtin import Builtin
from ..._managers.cluster.metadata_responses import read_metadata
from ..._net.deadlines import GRACE, RunningCall, check_timeout, run_call
from ..._net.gather import all_of
from ..._wire.extra_messages import (
    ExpireDelegationTokenRequest,
    RemoveRaftVoterRequest,
    RenewDelegationTokenRequest,
    UnregisterBrokerRequest,
    UnregisterControllerRequest,
)
from ...config import AdminConfig
from ...config.text import in_place_of
from ...config.whole import is_whole, whole
from ...error_codes import ErrorCode
from ...errors import (
    AuthenticationError,
    ConfigurationError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TransactionNotOpenError,
    TrikafkaError,
    UnsupportedVersionError,
)
from ...interfaces import CoordinatorKind
from ...types import (
    DetachedTransaction,
    GroupDescription,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetSpec,
    PartitionInfo,
    TopicPartition,
)
from ..client.context import Context
from ..client.metering import MeteredClient
from ..client.option_parsing import names_of
from ..client.service import Exit, Service
from . import (
    acls,
    describing,
    features,
    group_offsets,
    log_dirs,
    messages,
    quorum,
    quotas,
    reassigning,
    share_groups,
    streams_groups,
    tokens,
    transactions,
    users,
)
from .acls import AclBinding, AclFilter
from .cluster import describe as describe_cluster
from .configs import (
    ConfigEntry,
    ConfigResource,
    ConfigValue,
    ResourceType,
    checked_changes,
    checked_resources,
    checked_types,
    describe_request,
    entries_of,
    list_request,
    read_listed,
)
from .configs import alter as alter_configs
from .configs import describe as describe_configs
from .configs import error_of as config_error
from .controllers import BY_CONTROLLERS
from .deleting import checked_limits, delete_groups, delete_records
from .elections import Election, check_election, elect
from .ending import TransactionEnd
from .features import ClusterFeatures, Downgrade
from .log_dirs import LogDirDescription, ReplicaLogDir, TopicPartitionReplica
from .members import Removal
from .quorum import MetadataQuorum, VoterEndpoint
from .quotas import QuotaEntity, QuotaFilter
from .reassigning import PartitionReassignment
from .routing import Parts, Place, Routing
from .share_groups import SharePartitionOffset
from .streams_groups import StreamsGroupDescription
from .tokens import DelegationToken
from .topics import (
    TopicDescription,
    TopicKey,
    checked_topics,
    describe_by_id,
    read_changed,
    read_deleted,
)
from .topics import describe as describe_topics
from .transactions import (
    FencedProducer,
    Filters,
    HangingSearch,
    TransactionAbort,
    check_seconds,
    checked_producers,
)
from .types import (
    ClusterDescription,
    CreatedTopic,
    GroupListing,
    HangingTransaction,
    ListedOffset,
    NewTopic,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
    checked_assignments,
)
from .users import ScramChange, ScramCredential

K = TypeVar("K")
T = TypeVar("T")


class Admin(MeteredClient):
    """A Kafka admin client; made by :func:`trikafka.open_admin`. Any number of tasks may use it.

    ``timeout=`` is in seconds and bounds all attempts of one call together (default:
    ``default_api_timeout_ms``). Past the timeout the call raises
    :exc:`~trikafka.errors.KafkaTimeoutError`. Calls raise :exc:`trio.ClosedResourceError` once the
    client is closed.

    A call about several things does as much as it can. When all are settled and some have failed,
    it raises one :exc:`~trikafka.errors.AdminErrors`, with the error of each thing that failed and
    the results of the others. A call about one thing raises the error of that thing. An error that
    says nothing of the things, such as a timeout before any of them is settled, is raised itself.
    ``except* KafkaTimeoutError`` handles a timeout in both cases.

    When cancelled while a request is in flight, a change may or may not have happened.
    """

    def __init__(self, config: AdminConfig, service: Service) -> None:
        self._config = config
        self._closed = False  # first: a traceback with locals shows half-made objects
        self._context = Context(config, service, Builtin())
        self._metrics = self._context.metrics
        self._brokers = self._context.brokers
        for kind in ("metadata", "coordinator", "offsets", "telemetry"):
            self._context.fill(kind)
        self._metadata = self._context.manager("metadata")
        self._coordinators = self._context.manager("coordinator")
        self._offsets = self._context.manager("offsets")
        self._routing = Routing(self._brokers, self._metadata, self._coordinators)
        self._telemetry = self._context.manager("telemetry")

    def __repr__(self) -> str:
        return (
            "<trikafka.Admin "
            f"client_id={self._config.client_id!r}{' closed' if self._closed else ''}>"
        )

    @property
    def config(self) -> AdminConfig:
        """The settings of this client, with their defaults.

        The object is frozen. Passwords and keys in it hide themselves from ``repr``.
        """
        return self._config

    @property
    def is_closed(self) -> bool:
        """True once closing has begun: each call raises :exc:`trio.ClosedResourceError`."""
        return self._closed

    async def _start(self) -> None:
        await self._context.check_files()
        await self._metadata.bootstrap()
        self._context.start_soon(self._metadata.run)
        if self._config.enable_metrics_push:
            self._context.start_soon(self._telemetry.run)
        self._context.notify_opened()

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """Return the id by which the cluster's metrics know this client (KIP-714).

        The broker is asked once.

        Raises:
            TelemetryNotSupportedError: The brokers take no metrics from clients.
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._check_open()
        self._check_controllers("client_instance_id")
        return await self._telemetry.client_instance_id(timeout)

    # --- topics -----------------------------------------------------------------------------------

    async def create_topics(
        self,
        topics: Mapping[str, NewTopic],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, CreatedTopic]:
        """Create topics.

        Topics that could be created remain if others fail. A broker may need a moment until it
        knows of a new topic.

        Args:
            topics: A :class:`NewTopic` for each name.
            validate_only: Let the brokers check the topics without creating them.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            What the brokers made of each topic: partitions, replicas and effective settings.

        Raises:
            TopicAlreadyExistsError: The topic exists.
            InvalidTopicError: The name is invalid.
            AdminErrors: Some of several topics failed; its ``results`` are those of the others.
            ConfigurationError: ``topics`` is not such a mapping.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        if not isinstance(topics, Mapping):
            raise ConfigurationError(
                'create_topics wants a mapping of names to NewTopic, such as {"jobs": NewTopic(3)}, '
                f"not {topics!r}"
            )
        for name, topic in topics.items():
            if not isinstance(topic, NewTopic):
                raise ConfigurationError(
                    f"create_topics wants a NewTopic for {name!r}, not "
                    f"{in_place_of(NewTopic, topic)}"
                )
        parts: Parts[str, CreatedTopic] = Parts(names_of("topics", topics))

        def request(names: list[str], call: RunningCall) -> object:
            chosen = {name: topics[name] for name in names}
            timeout_ms = int(call.step_limit * 1000)
            return messages.create_topics(chosen, timeout_ms, validate_only=validate_only)

        def read(response: Any, asked: list[str]) -> None:
            read_changed(
                response.topics,
                parts,
                "Create",
                None if validate_only else ErrorCode.TOPIC_ALREADY_EXISTS,
                lambda each: messages.created_topic(each, exists=not validate_only),
            )

        return await self._ask_parts("create_topics", "controller", parts, request, read, timeout)

    async def delete_topics(
        self, topics: Iterable[TopicKey], *, timeout: float | None = None
    ) -> None:
        """Delete topics and their records.

        Args:
            topics: The names, or the ids (:attr:`TopicDescription.topic_id`): a topic that was
                made again under the same name is then left alone.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            AdminErrors: Some of several topics failed; the others are deleted.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        chosen, by_id = checked_topics(topics)
        parts: Parts[TopicKey, None] = Parts(chosen)
        await self._ask_parts(
            "delete_topics",
            "controller",
            parts,
            lambda asked, call: messages.delete_topics(
                asked, int(call.step_limit * 1000), by_id=by_id
            ),
            lambda response, asked: read_deleted(response, parts, by_id=by_id),
            timeout,
        )

    async def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Increase the number of partitions of topics; brokers learn of it a moment later.

        Args:
            totals: For each topic, the number of partitions afterwards.
            assignments: For some of the topics, the brokers for each new partition; the first
                broker is the preferred leader. The cluster chooses the brokers for other topics.
            validate_only: Let the brokers check the changes without making them.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: A total is not a whole number from 1, or assignments are not lists
                of brokers.
            BrokerResponseError: The broker refuses the change.
            AdminErrors: Some of several topics failed; the others are changed.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        chosen = names_of("topics", totals)
        if not isinstance(totals, Mapping):
            raise ConfigurationError(
                f"totals must be a mapping of topics to numbers of partitions, not {totals!r}"
            )
        totals = {name: whole(total) for name, total in totals.items()}
        for name, total in totals.items():
            if not is_whole(total, 1):
                raise ConfigurationError(
                    f"the number of partitions of {name!r} must be a whole number from 1, not "
                    f"{total!r}"
                )
        places = checked_assignments({} if assignments is None else assignments, chosen)

        parts: Parts[str, None] = Parts(chosen)
        made_before = None if validate_only else ErrorCode.INVALID_PARTITIONS

        def request(names: list[str], call: RunningCall) -> object:
            left = {name: totals[name] for name in names}
            timeout_ms = int(call.step_limit * 1000)
            return messages.create_partitions(left, places, timeout_ms, validate_only=validate_only)

        await self._ask_parts(
            "create_partitions",
            "controller",
            parts,
            request,
            lambda response, asked: read_changed(
                response.results, parts, "Alter", made_before, lambda each: None
            ),
            timeout,
        )

    async def describe_topics(
        self, topics: Iterable[TopicKey], *, timeout: float | None = None
    ) -> dict[TopicKey, TopicDescription]:
        """Return id, partitions and replicas of topics, and what this client may do with them.

        Brokers from Kafka 3.7 on are asked page by page, and name the replicas that may lead
        without being in sync (KIP-966).

        Args:
            topics: The names, or the ids.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The topics by what was asked for: name or id.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            AdminErrors: Some of several topics cannot be described; it has the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen, by_id = checked_topics(topics)
        parts: Parts[Any, TopicDescription] = Parts(chosen)
        describe = describe_by_id if by_id else describe_topics
        return await self._call_parts("describe_topics", describe, parts, timeout)

    async def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> dict[str, list[PartitionInfo]]:
        """Return all topics that the cluster shows, with their partitions.

        Args:
            include_internal: Include internal topics.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """

        async def attempt(call: RunningCall) -> dict[str, list[PartitionInfo]]:
            request = lambda: MetadataRequest(topics=None, allow_auto_topic_creation=False)  # noqa: E731
            response = await call.step("list the topics", lambda: self._metadata.ask_any(request))
            topics = sorted(
                (await read_metadata(response)).topics.values(), key=lambda topic: topic.name
            )
            return {
                topic.name: [topic.partitions[number] for number in sorted(topic.partitions)]
                for topic in topics
                if include_internal or not topic.internal
            }

        return await self._call("list_topics", attempt, timeout)

    async def topic_configs(
        self, topics: Iterable[str], *, include_defaults: bool = False, timeout: float | None = None
    ) -> dict[str, dict[str, str | None]]:
        """Return the settings of topics.

        Args:
            topics: The names.
            include_defaults: Return all effective settings, not only those that the topic itself
                has.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The settings by topic. The value of a secret setting is ``None``.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist.
            AdminErrors: Some of several topics failed; it has the settings of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        parts: Parts[str, dict[str, str | None]] = Parts(names_of("topics", topics), patient=True)

        def read(response: Any, asked: list[str]) -> None:
            for result in response.results:
                error = config_error(result, "DescribeConfigs")
                if error is not None:
                    parts.failed(result.resource_name, error)
                else:
                    parts.done(
                        result.resource_name,
                        {
                            entry.name: entry.value
                            for entry in entries_of(result).values()
                            if include_defaults or entry.source == "topic"
                        },
                    )

        def request(asked: list[str], call: RunningCall) -> object:
            left = [ConfigResource("topic", name) for name in asked]
            return describe_request(left, documentation=False)

        return await self._ask_parts("topic_configs", "any", parts, request, read, timeout)

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Return the settings of topics, brokers, groups and other resources.

        Args:
            resources: The resources, such as ``ConfigResource("broker", "1")``.
            documentation: Ask the brokers for their text about each setting, too.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            For each resource its settings by name.

        Raises:
            ConfigurationError: A resource is not a ConfigResource.
            TrikafkaError: The cluster has no live broker of such a number.
            UnknownTopicOrPartitionError: The topic does not exist.
            AuthorizationError: The right to ``DescribeConfigs`` is missing.
            AdminErrors: Some of several resources failed; it has the settings of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        parts: Parts[ConfigResource, dict[str, ConfigEntry]] = Parts(
            checked_resources(resources), patient=True
        )

        attempt = partial(describe_configs, documentation=documentation)
        return await self._call_parts("describe_configs", attempt, parts, timeout)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigValue]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change settings of topics, brokers, groups and other resources; leave all others.

        Args:
            changes: For each resource the settings to change, by name. A value is set; ``None``
                removes the setting, so that the next one in line applies; a :class:`ConfigChange`
                appends to a list or subtracts from it.
            validate_only: Let the brokers check the changes without making them.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``changes`` is not such a mapping.
            TrikafkaError: The cluster has no live broker of such a number.
            BrokerResponseError: A setting or its value does not exist.
            AuthorizationError: The right to ``AlterConfigs`` is missing.
            AdminErrors: Some of several resources failed; the others are changed.
            KafkaTimeoutError: No answer in time.

        When cancelled while a request is in flight, the changes may or may not have been made.
        """
        wanted = checked_changes(changes)
        parts: Parts[ConfigResource, None] = Parts(wanted)

        attempt = partial(alter_configs, changes=wanted, validate_only=validate_only)
        await self._call_parts("alter_configs", attempt, parts, timeout)

    async def list_config_resources(
        self, types: Iterable[ResourceType] | None = None, *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """Return the things that have settings, sorted (KIP-1142, Kafka 4.1).

        Args:
            types: Their types, such as ``"group"``; ``None`` means all. Metrics subscriptions alone
                (``["client_metrics"]``) are listed by Kafka 3.7, too.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: There is no such type.
            AuthorizationError: The right to ``DescribeConfigs`` is missing.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        request = partial(list_request, checked_types(types))
        return await self._ask("list_config_resources", "any", request, read_listed, timeout)

    # --- the cluster and its partitions -----------------------------------------------------------

    async def describe_cluster(
        self,
        *,
        fenced_brokers: bool = False,
        authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> ClusterDescription:
        """Return the cluster's id, its controller, and the live brokers.

        Args:
            fenced_brokers: Return the brokers that are registered and not live, too (Kafka 4.0,
                KIP-1073).
            authorized_operations: Ask what this client may do with the cluster, too.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            UnsupportedVersionError: The brokers are too old for what was asked for.
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """

        async def attempt(call: RunningCall) -> ClusterDescription:
            return await describe_cluster(
                self._routing,
                self._metadata,
                call,
                fenced=fenced_brokers,
                operations=authorized_operations,
                controllers=self._config.asks_controllers,
            )

        return await self._call("describe_cluster", attempt, timeout)

    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Let partitions move to other brokers, or cancel that (KIP-455).

        The call returns once the moves have begun; :meth:`list_partition_reassignments` shows
        those that are not complete.

        Args:
            targets: For each partition its new brokers, the preferred leader first; ``None``
                cancels its reassignment.
            allow_replication_factor_change: False refuses a target with more or fewer replicas than
                the partition has (Kafka 4.1, KIP-860).
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: A target is not a list of different brokers.
            BrokerResponseError: The partition or a broker does not exist, or there is nothing to
                cancel.
            AdminErrors: Some of several partitions failed; the others are done.
            UnsupportedVersionError: The brokers cannot forbid another number of replicas.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        wanted = reassigning.checked_targets(targets)
        parts: Parts[TopicPartition, None] = Parts(wanted)

        attempt = partial(
            reassigning.alter, targets=wanted, other_factor=allow_replication_factor_change
        )
        await self._call_parts("alter_partition_reassignments", attempt, parts, timeout)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the reassignments that are under way (KIP-455).

        Args:
            partitions: The partitions; ``None`` means all.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The replicas by partition. A partition that does not move is left out.

        Raises:
            AuthorizationError: The right to ``Describe`` the cluster is missing.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = None if partitions is None else messages.partitions_of(partitions)

        async def attempt(call: RunningCall) -> dict[TopicPartition, PartitionReassignment]:
            return await reassigning.under_way(self._routing, call, chosen)

        return await self._call("list_partition_reassignments", attempt, timeout)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        election: Election = "preferred",
        timeout: float | None = None,
    ) -> dict[TopicPartition, bool]:
        """Elect leaders of partitions (KIP-460).

        Args:
            partitions: The partitions; ``None`` means all.
            election: ``"preferred"``: the first replica, which must be in sync. ``"unclean"``: any
                replica, for a partition without a leader; records may be lost.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            True for a partition with a new leader, False if no election was needed. For all
            partitions, those that needed none are left out.

        Raises:
            ConfigurationError: There is no such kind of election.
            BrokerResponseError: The partition does not exist, or the replica is not available.
            AdminErrors: Some of several partitions failed; it has the others.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        check_election(election)
        chosen = [] if partitions is None else messages.partitions_of(partitions)
        parts: Parts[TopicPartition, bool] = Parts(chosen)

        attempt = partial(elect, kind=election, everywhere=partitions is None)
        return await self._call_parts("elect_leaders", attempt, parts, timeout)

    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Return the log directories of brokers, and the replicas in them with their sizes.

        Args:
            brokers: The brokers by number; ``None`` means all that are live.
            partitions: Only the replicas of these partitions; ``None`` means all.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            For each broker its directories by path.

        Raises:
            ConfigurationError: ``brokers`` are not numbers.
            TrikafkaError: The cluster has no live broker of such a number.
            AuthorizationError: The right to ``Describe`` the cluster is missing.
            AdminErrors: Some of several brokers failed; it has the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        numbers = None if brokers is None else log_dirs.checked_numbers(brokers)
        wanted = None if partitions is None else messages.partitions_of(partitions)
        parts: Parts[int, dict[str, LogDirDescription]] = Parts(numbers or ())

        async def attempt(
            routing: Routing, call: RunningCall, parts: Parts[int, dict[str, LogDirDescription]]
        ) -> None:
            if numbers is None:
                seen = await call.step("look up the brokers", self._metadata.refresh)
                for number in sorted(seen.nodes):
                    parts.add(number)
            await log_dirs.describe(routing, call, parts, wanted)

        return await self._call_parts("describe_log_dirs", attempt, parts, timeout)

    async def describe_replica_log_dirs(
        self, replicas: Iterable[TopicPartitionReplica], *, timeout: float | None = None
    ) -> dict[TopicPartitionReplica, ReplicaLogDir]:
        """Return the directory of each replica, and the one to which it moves.

        Args:
            replicas: The replicas, each of a partition on a broker.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``replicas`` are not such values.
            TrikafkaError: The cluster has no live broker of such a number.
            AuthorizationError: The right to ``Describe`` the cluster is missing.
            AdminErrors: Some of several replicas failed; it has the directories of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        parts: Parts[TopicPartitionReplica, ReplicaLogDir] = Parts(
            log_dirs.checked_replicas(replicas)
        )

        return await self._call_parts(
            "describe_replica_log_dirs", log_dirs.describe_replicas, parts, timeout
        )

    async def alter_replica_log_dirs(
        self, moves: Mapping[TopicPartitionReplica, str], *, timeout: float | None = None
    ) -> None:
        """Let replicas move to another log directory of their broker (KIP-113).

        The call returns once the moves have begun; :meth:`describe_replica_log_dirs` shows how far
        they are.

        Args:
            moves: For each replica the path of the directory on its broker.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``moves`` is not such a mapping.
            TrikafkaError: The cluster has no live broker of such a number.
            BrokerResponseError: The broker has no such directory or replica.
            AdminErrors: Some of several replicas failed; the others are done.
            KafkaTimeoutError: No answer in time.

        When cancelled while a request is in flight, the change may or may not have happened.
        """
        paths = log_dirs.checked_moves(moves)
        parts: Parts[TopicPartitionReplica, None] = Parts(paths)

        attempt = partial(log_dirs.move, moves=paths)
        await self._call_parts("alter_replica_log_dirs", attempt, parts, timeout)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec | int], *, timeout: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Return offsets of partitions: the first, the end, or the first since a time.

        Args:
            wanted: For each partition an :class:`OffsetSpec`, or milliseconds since the epoch.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The offset of each partition; ``None`` where no record is that recent.

        Raises:
            ConfigurationError: A value is neither of the two.
            UnknownTopicOrPartitionError: The partition does not exist.
            AdminErrors: Some of several partitions failed; it has the offsets of the others.
            UnsupportedVersionError: The brokers are too old for an :class:`OffsetSpec`.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        todo = messages.wanted_offsets(wanted)
        parts: Parts[TopicPartition, ListedOffset | None] = Parts(todo, patient=True)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}

        async def attempt(
            routing: Routing, call: RunningCall, parts: Parts[TopicPartition, ListedOffset | None]
        ) -> None:
            if not (asked := parts.left):
                await trio.lowlevel.checkpoint()
            try:
                await self._offsets.look_up(call, {tp: todo[tp] for tp in asked}, found)
            except TrikafkaError as error:
                if not error.failures:
                    raise
                for tp, each in error.failures.items():
                    if isinstance(each, UnsupportedVersionError):  # says nothing of the partition
                        parts.refuse([tp], each)
                    else:
                        parts.failed(tp, each)
            for tp in asked:
                if tp in found:
                    parts.done(tp, messages.listed_offset(found[tp]))
            parts.check(asked, call.name)

        return await self._call_parts("list_offsets", attempt, parts, timeout)

    async def delete_records(
        self, before: Mapping[TopicPartition, OffsetSpec | int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, for good and for every reader.

        Args:
            before: For each partition the offset of the first record to keep, or
                ``OffsetSpec.LATEST`` for none.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The first offset that is left, by partition.

        Raises:
            ConfigurationError: An offset is not a whole number from 0.
            BrokerResponseError: An offset is after the end of the log, or the topic's
                ``cleanup.policy`` does not allow it.
            AdminErrors: Some of several partitions failed; the others are done.
            KafkaTimeoutError: No answer in time.

        When cancelled while a request is in flight, records may or may not have been deleted.
        """
        limits = checked_limits(before)
        parts: Parts[TopicPartition, int] = Parts(limits)

        attempt = partial(delete_records, before=limits)
        return await self._call_parts("delete_records", attempt, parts, timeout)

    # --- groups -----------------------------------------------------------------------------------

    async def list_groups(self, *, timeout: float | None = None) -> list[GroupListing]:
        """Return all groups of every protocol, sorted by name.

        Raises:
            AdminErrors: Some of several brokers failed. Its ``failures`` are by broker number; its
                ``results`` have the list of each other broker.
            KafkaTimeoutError: No broker answered within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        parts: Parts[int, list[GroupListing]] = Parts(())

        found = await self._call_parts("list_groups", describing.listed, parts, timeout)
        groups = {group.group_id: group for listed in found.values() for group in listed}
        return [groups[name] for name in sorted(groups)]

    async def describe_groups(
        self,
        group_ids: Iterable[str],
        *,
        authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, GroupDescription]:
        """Return state and members of groups.

        Members are known for consumer groups of both protocols and for share groups; of streams
        groups see :meth:`describe_streams_groups`.

        Args:
            group_ids: The groups.
            authorized_operations: Ask what this client may do with each group, too.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            GroupIdNotFoundError: There is no such group.
            AuthorizationError: The group may not be described.
            AdminErrors: Some of several groups cannot be described; it has the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = names_of("group_ids", group_ids)
        parts: Parts[str, GroupDescription] = Parts(chosen, patient=True)

        attempt = partial(describing.described, operations=authorized_operations)
        return await self._call_parts("describe_groups", attempt, parts, timeout, chosen)

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a group has committed.

        The call waits for offsets in open transactions. For a partition's very first offset it does
        so only if the partition is named.

        Args:
            group_id: The group.
            partitions: The partitions; ``None`` means all.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The offsets by partition; empty if the group has none, or does not exist.

        Raises:
            AuthorizationError: The group or a topic may not be described.
            AdminErrors: Some of several partitions failed; it has the offsets of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        (group,) = names_of("group_id", [group_id])
        chosen = None if partitions is None else messages.partitions_of(partitions)
        parts: Parts[TopicPartition, OffsetAndMetadata | None] = Parts(chosen or (), patient=True)

        attempt = partial(group_offsets.fetch, group=group, everything=partitions is None)
        found = await self._call_parts("list_group_offsets", attempt, parts, timeout, [group])
        return {tp: at for tp, at in sorted(found.items()) if at is not None}

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        """Set the offsets of a group without members; create the group if there is none.

        Args:
            group_id: The group.
            offsets: For each partition the offset of the next record to read.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: An offset is not a whole number from 0.
            IllegalStateError: The group has members, which would overwrite the offsets.
            UnknownTopicOrPartitionError: The partition does not exist.
            AdminErrors: Some of several partitions failed; the others are done.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        (group,) = names_of("group_id", [group_id])
        positions = messages.positions_of(offsets)
        parts: Parts[TopicPartition, None] = Parts(positions, patient=True)

        attempt = partial(group_offsets.commit, group=group, positions=positions)
        await self._call_parts("alter_group_offsets", attempt, parts, timeout, [group])

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Delete a group's committed offsets of partitions.

        Args:
            group_id: The group. It may have members, if none is subscribed to these topics.
            partitions: The partitions; those without an offset are no error.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            GroupIdNotFoundError: The group does not exist.
            BrokerResponseError: A member is subscribed to the topic.
            AdminErrors: Some of several partitions failed; the others are done.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        (group,) = names_of("group_id", [group_id])
        parts: Parts[TopicPartition, None] = Parts(messages.partitions_of(partitions))

        attempt = partial(group_offsets.delete, group=group)
        await self._call_parts("delete_group_offsets", attempt, parts, timeout, [group])

    async def delete_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Delete groups of any kind and their offsets.

        Args:
            group_ids: The groups.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            GroupIdNotFoundError: The group does not exist.
            BrokerResponseError: The group has members.
            AdminErrors: Some of several groups failed; the others are deleted.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        chosen = names_of("group_ids", group_ids)
        parts: Parts[str, None] = Parts(chosen)

        await self._call_parts("delete_groups", delete_groups, parts, timeout, chosen)

    async def remove_group_members(
        self,
        group_id: str,
        member_ids: Iterable[str] | None = None,
        *,
        instance_ids: Iterable[str] | None = None,
        reason: str | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Remove members from a consumer group: some, or without any ids all (KIP-345).

        The partitions of a removed member go to others at once. A member that still runs joins
        again, unless it is a static one, whose id another process may take.

        Args:
            group_id: The group.
            member_ids: Members by the ids that the group gave them (see :meth:`describe_groups`).
            instance_ids: Static members by their ``group_instance_id``.
            reason: The reason for the coordinator's log (Kafka 3.2, KIP-800).
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The ids of the removed members, for static members their ``group_instance_id``.

        Raises:
            GroupIdNotFoundError: The group does not exist.
            IllegalStateError: The group is of a kind whose members cannot be removed.
            MemberFencedError: The group has no such member.
            AdminErrors: Some of several members failed; the others are removed.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        (group,) = names_of("group_id", [group_id])
        removal = Removal(group, member_ids, instance_ids, reason)

        async def attempt(routing: Routing, call: RunningCall, parts: Parts[Any, None]) -> None:
            if removal.everyone:
                described: Parts[str, GroupDescription] = Parts([group], patient=True)
                await describing.described(routing, call, described)
                removal.add_all(described.finish()[group])
            await removal.attempt(routing, call)

        return list(
            await self._call_parts("remove_group_members", attempt, removal.parts, timeout, [group])
        )

    # --- share groups and streams groups ----------------------------------------------------------

    async def describe_share_groups(
        self,
        group_ids: Iterable[str],
        *,
        authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, GroupDescription]:
        """Return state and members of share groups (Kafka 4.2, KIP-932).

        Args:
            group_ids: The groups.
            authorized_operations: Ask what this client may do with each group, too.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            GroupIdNotFoundError: There is no such share group.
            AdminErrors: Some of several groups cannot be described; it has the others.
            UnsupportedVersionError: The brokers have no share groups.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = names_of("group_ids", group_ids)
        parts: Parts[str, GroupDescription] = Parts(chosen)

        attempt = partial(share_groups.describe_share, operations=authorized_operations)
        return await self._call_parts("describe_share_groups", attempt, parts, timeout, chosen)

    async def list_share_group_offsets(
        self,
        groups: Mapping[str, Iterable[TopicPartition] | None] | Iterable[str],
        *,
        timeout: float | None = None,
    ) -> dict[str, dict[TopicPartition, SharePartitionOffset]]:
        """Return the start offsets of share groups, and how far they are behind (KIP-932).

        Args:
            groups: The groups, or a mapping of groups to the partitions to show; ``None`` means all
                of a group.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            For each group its offsets by partition. A partition without one is left out,
            and a group that does not exist or is of another kind has none.

        Raises:
            AdminErrors: Some of several groups failed; it has the others.
            UnsupportedVersionError: The brokers have no share groups.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        wanted = share_groups.checked_wanted(groups)
        parts: Parts[str, dict[TopicPartition, SharePartitionOffset]] = Parts(wanted)

        attempt = partial(share_groups.offsets, wanted=wanted)
        return await self._call_parts("list_share_group_offsets", attempt, parts, timeout, wanted)

    async def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> None:
        """Set the start offsets of a share group without members; create a group that is missing.

        Args:
            group_id: The group.
            offsets: For each partition the offset of the first record to deliver.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: An offset is not a whole number from 0.
            IllegalStateError: The group has members.
            GroupIdNotFoundError: The id is that of another kind of group.
            AdminErrors: Some of several partitions failed; the others are done.
            UnsupportedVersionError: The brokers have no share groups.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        (group,) = names_of("group_id", [group_id])
        starts = share_groups.checked_starts(offsets)
        parts: Parts[TopicPartition, None] = Parts(starts)

        attempt = partial(share_groups.alter, group=group, starts=starts)
        await self._call_parts("alter_share_group_offsets", attempt, parts, timeout, [group])

    async def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str], *, timeout: float | None = None
    ) -> None:
        """Delete the offsets that a share group without members has of topics (KIP-932).

        :meth:`delete_groups` deletes the whole group.

        Args:
            group_id: The group.
            topics: The topics; a group has the offsets of all partitions or of none.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            IllegalStateError: The group has members.
            GroupIdNotFoundError: There is no such share group.
            AdminErrors: Some of several topics failed; the others are done.
            UnsupportedVersionError: The brokers have no share groups.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        (group,) = names_of("group_id", [group_id])
        parts: Parts[str, None] = Parts(names_of("topics", topics))

        attempt = partial(share_groups.delete, group=group)
        await self._call_parts("delete_share_group_offsets", attempt, parts, timeout, [group])

    async def describe_streams_groups(
        self,
        group_ids: Iterable[str],
        *,
        authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, StreamsGroupDescription]:
        """Return state, topology, members and tasks of streams groups (Kafka 4.2, KIP-1071).

        :meth:`delete_groups` deletes such groups, and the calls about a group's offsets take them,
        too.

        Args:
            group_ids: The groups.
            authorized_operations: Ask what this client may do with each group, too.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            GroupIdNotFoundError: There is no such streams group.
            AdminErrors: Some of several groups cannot be described; it has the others.
            UnsupportedVersionError: The brokers have no streams groups.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = names_of("group_ids", group_ids)
        parts: Parts[str, StreamsGroupDescription] = Parts(chosen)

        attempt = partial(streams_groups.describe_streams, operations=authorized_operations)
        return await self._call_parts("describe_streams_groups", attempt, parts, timeout, chosen)

    # --- transactions -----------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than: float | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Return transactional ids, sorted by name (KIP-664).

        Every filter that is given must match.

        Args:
            states: States of transactions, such as ``"Ongoing"``.
            producer_ids: Ids of producers.
            longer_than: Only transactions that have run for more seconds (Kafka 3.8, KIP-994).
            pattern: A pattern in RE2's syntax for the whole name (Kafka 4.1, KIP-1152).
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: A state does not exist, or a value is of the wrong kind.
            UnsupportedVersionError: The brokers are too old for ``longer_than`` or ``pattern``.
            AdminErrors: Some of several brokers failed. Its ``failures`` are by broker number; its
                ``results`` have the list of each other broker.
            KafkaTimeoutError: No broker answered in time.

        When cancelled, nothing has changed.
        """
        filters = Filters(
            tuple(names_of("states", states)), checked_producers(producer_ids), longer_than, pattern
        )
        parts: Parts[int, list[TransactionListing]] = Parts(())

        attempt = partial(transactions.listed, filters=filters)
        found = await self._call_parts("list_transactions", attempt, parts, timeout)
        ids = {each.transactional_id: each for listed in found.values() for each in listed}
        return [ids[name] for name in sorted(ids)]

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Return state, producer, timeout and partitions of transactional ids (KIP-664).

        Args:
            transactional_ids: The ids.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            BrokerResponseError: The id does not exist.
            AdminErrors: Some of several ids failed; it has the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = names_of("transactional_ids", transactional_ids)
        parts: Parts[str, TransactionDescription] = Parts(chosen, patient=True)

        return await self._call_parts(
            "describe_transactions",
            transactions.described,
            parts,
            timeout,
            chosen,
            CoordinatorKind.TRANSACTION,
        )

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        """Return the producers that partitions' leaders remember (KIP-664).

        These are idempotent and transactional producers.

        Args:
            partitions: The partitions.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            UnknownTopicOrPartitionError: The partition does not exist.
            AdminErrors: Some of several partitions failed; it has the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        parts: Parts[TopicPartition, tuple[ProducerDescription, ...]] = Parts(
            messages.partitions_of(partitions), patient=True
        )

        return await self._call_parts("describe_producers", transactions.producers, parts, timeout)

    async def find_hanging_transactions(
        self,
        topics: Iterable[str] | None = None,
        *,
        longer_than: float = 900,
        timeout: float | None = None,
    ) -> list[HangingTransaction]:
        """Return open transactions that no coordinator knows (KIP-664).

        Nothing will end such a transaction, and ``read_committed`` readers stop before it.

        Args:
            topics: The topics to search; ``None`` means all, internal ones included.
            longer_than: Seconds since the transaction's last record (by its timestamp); younger
                ones are left out. Use at least the longest ``transaction_timeout_ms``.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            AdminErrors: Some partitions could not be searched, such as one without a leader.
                ``results`` has a list for each of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = None if topics is None else names_of("topics", topics)
        check_seconds(longer_than)
        before_ms = int((time.time() - longer_than) * 1000)

        async def attempt(call: RunningCall) -> HangingSearch:
            response = await call.step(
                "list the topics",
                lambda: self._metadata.ask_any(partial(messages.topics_request, chosen)),
            )
            topics = (await read_metadata(response)).topics.values()
            search = HangingSearch(self._routing, before_ms)
            await search.search(call, messages.partitions_in(topics))
            return search

        return (await self._call("find_hanging_transactions", attempt, timeout)).finish()

    async def abort_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout: float | None = None
    ) -> None:
        """Write the abort marker of a hanging transaction into one partition (KIP-664).

        Use it for hanging transactions only: of a transaction that its coordinator knows, this
        aborts one partition and leaves the others as they are.

        Args:
            partition: The partition.
            start_offset: The transaction's first offset in it.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            TransactionNotOpenError: No open transaction begins at that offset.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        (tp,) = messages.partitions_of([partition])
        abort = TransactionAbort(self._routing, tp, messages.check_offset(start_offset))
        await self._call("abort_transaction", abort.attempt, timeout)

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, FencedProducer]:
        """Fence the producers of transactional ids, and abort their open transactions (KIP-588).

        Producers that run with such an id fail at their next request. A new one may be opened.

        Args:
            transactional_ids: The ids.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The identity of each id from now on.

        Raises:
            ConfigurationError: ``transactional_ids`` is not a collection of names.
            AuthorizationError: The right to ``Write`` of an id is missing.
            AdminErrors: Some of several ids failed; its ``results`` are those of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled while a request is in flight, producers may or may not have been fenced.
        """
        return await self._fence("fence_producers", transactional_ids, timeout)

    async def force_terminate_transaction(
        self, transactional_id: str, *, timeout: float | None = None
    ) -> None:
        """Abort the open transaction of a transactional id, even a prepared one (KIP-939).

        Its producers are fenced. For a prepared transaction that its external coordinator will not
        end any more: that coordinator may have committed its other parts.

        Args:
            transactional_id: The id.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``transactional_id`` is not a name.
            AuthorizationError: The right to ``Write`` of the id is missing.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        await self._fence("force_terminate_transaction", [transactional_id], timeout)

    async def end_transaction(
        self, transaction: DetachedTransaction, *, commit: bool, timeout: float | None = None
    ) -> None:
        """Commit or abort a transaction that :meth:`Transaction.detach` left open.

        The call may be repeated, with the same outcome.

        Args:
            transaction: The value that ``detach`` returned.
            commit: True commits, False aborts.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            TransactionNotOpenError: The transaction is not open any more: its
                ``transaction_timeout_ms`` is over, another producer has the id, or it was ended the
                other way.
            TransactionUndecidedError: No answer within ``timeout`` or ``retries``. Call again.
            ConfigurationError: ``transaction`` is not such a value.

        When cancelled, the transaction may or may not have ended.
        """
        if not isinstance(transaction, DetachedTransaction):
            raise ConfigurationError(
                f"end_transaction wants what Transaction.detach() returned, not {transaction!r}"
            )
        end = TransactionEnd(self._brokers, self._coordinators, transaction, commit=commit)
        try:
            names = [transaction.transactional_id]
            await self._call(
                "end_transaction", end.attempt, timeout, names, CoordinatorKind.TRANSACTION
            )
        except (TransactionNotOpenError, AuthenticationError):
            raise
        except TrikafkaError as error:
            if not (
                end.in_doubt
                or isinstance(
                    error, KafkaTimeoutError | RequestTimedOutError | KafkaConnectionError
                )
            ):
                raise
            raise end.undecided(error) from (
                error.__cause__ if isinstance(error, KafkaTimeoutError) else error
            )

    # --- access rules, quotas, users and tokens ---------------------------------------------------

    async def describe_acls(
        self, wanted: AclFilter | None = None, *, timeout: float | None = None
    ) -> list[AclBinding]:
        """Return access rules (ACLs), sorted.

        Args:
            wanted: A filter; ``None`` means all rules.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``wanted`` is not an AclFilter.
            BrokerResponseError: The brokers have no authorizer.
            AuthorizationError: The right to ``Describe`` the cluster is missing.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        request = partial(acls.describe_request, acls.checked_filter(wanted))
        return await self._ask("describe_acls", "any", request, acls.read_described, timeout)

    async def create_acls(
        self, bindings: Iterable[AclBinding], *, timeout: float | None = None
    ) -> None:
        """Add access rules (ACLs). A rule that exists is no error.

        The controller has a rule first, and brokers a moment later. A rule whose host is an
        address in another spelling than that of brokers, such as ``"::1"``, is added, but never
        applies: a warning in the log names the rule and the spelling.

        Args:
            bindings: The rules.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``bindings`` is not a collection of AclBinding.
            BrokerResponseError: The brokers have no authorizer.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            AdminErrors: Some of several rules were refused; the others are there.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        checked = acls.checked_bindings(bindings)
        acls.warn_of_hosts(checked)
        parts: Parts[AclBinding, None] = Parts(checked)
        await self._ask_parts(
            "create_acls",
            "controller",
            parts,
            lambda asked, call: acls.create_request(asked),
            lambda response, asked: acls.read_created(response, asked, parts),
            timeout,
        )

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout: float | None = None
    ) -> dict[AclFilter, tuple[AclBinding, ...]]:
        """Delete all access rules (ACLs) that match one of the filters.

        Args:
            filters: The filters. ``AclFilter()`` matches every rule.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The deleted rules by filter. Those that an attempt without a response deleted are
            missing.

        Raises:
            ConfigurationError: ``filters`` is not a collection of AclFilter.
            BrokerResponseError: The brokers have no authorizer.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            AdminErrors: Some of several filters failed; its ``results`` are those of the others.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        chosen = messages.collection_of(AclFilter, "filters", filters, bytes, Mapping)
        parts: Parts[AclFilter, tuple[AclBinding, ...]] = Parts(chosen)
        return await self._ask_parts(
            "delete_acls",
            "controller",
            parts,
            lambda asked, call: acls.delete_request(asked),
            lambda response, asked: acls.read_deleted(response, asked, parts),
            timeout,
        )

    async def describe_client_quotas(
        self, wanted: QuotaFilter | None = None, *, timeout: float | None = None
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of users, client ids and addresses (KIP-546).

        Args:
            wanted: A filter; ``None`` means all quotas.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The quotas of each entity by their names, such as ``producer_byte_rate``.

        Raises:
            ConfigurationError: ``wanted`` is not a QuotaFilter.
            BrokerResponseError: The filter asks for an address beside a user or a client id.
            AuthorizationError: The right to ``DescribeConfigs`` is missing.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        request = partial(quotas.describe_request, quotas.checked_filter(wanted))
        return await self._ask(
            "describe_client_quotas", "any", request, quotas.read_described, timeout
        )

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Set or remove quotas of users, client ids and addresses (KIP-546); leave all others.

        Args:
            changes: For each entity the quotas to change, by name: ``producer_byte_rate`` and
                ``consumer_byte_rate`` (bytes a second), ``request_percentage``,
                ``controller_mutation_rate``, and ``connection_creation_rate`` of an address.
                ``None`` removes a quota.
            validate_only: Let the brokers check the changes without making them.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``changes`` is not such a mapping.
            BrokerResponseError: There is no quota of that name for the entity.
            AuthorizationError: The right to ``AlterConfigs`` is missing.
            AdminErrors: Some of several entities failed; the others are changed.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        wanted = quotas.checked_changes(changes)
        parts: Parts[QuotaEntity, None] = Parts(wanted)
        await self._ask_parts(
            "alter_client_quotas",
            "controller",
            parts,
            lambda asked, call: quotas.alter_request(
                {entity: wanted[entity] for entity in asked}, validate_only=validate_only
            ),
            lambda response, asked: quotas.read_altered(response, parts),
            timeout,
        )

    async def describe_user_scram_credentials(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, tuple[ScramCredential, ...]]:
        """Return the mechanisms for which users have SCRAM passwords (KIP-554, Kafka 3.5).

        Args:
            names: The users; ``None`` means all.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            Mechanism and iterations by user, never a password.

        Raises:
            ConfigurationError: ``names`` is not a collection of names.
            BrokerResponseError: A user has no password.
            AuthorizationError: The right to ``Describe`` the cluster is missing.
            AdminErrors: Some of several users failed; its ``results`` are those of the others.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        everyone = names is None
        chosen = names_of("users", names) if names is not None else []
        parts: Parts[str, tuple[ScramCredential, ...]] = Parts(chosen)

        async def attempt(
            routing: Routing, call: RunningCall, parts: Parts[str, tuple[ScramCredential, ...]]
        ) -> None:
            if not everyone and not parts.left:
                await trio.lowlevel.checkpoint()
                return
            request = users.describe_request(None if everyone else parts.left)
            response = await routing.request(call, "any", request)
            users.read_described(response, parts, everyone=everyone)
            parts.check(parts.left, call.name)

        found = await self._call_parts("describe_user_scram_credentials", attempt, parts, timeout)
        return dict(sorted(found.items())) if everyone else found

    async def alter_user_scram_credentials(
        self, changes: Mapping[str, ScramChange], *, timeout: float | None = None
    ) -> None:
        """Set or remove SCRAM passwords of users (KIP-554, Kafka 3.5).

        A password does not leave this process: the brokers get a salted hash of it (RFC 5802).

        Args:
            changes: For each user a :class:`ScramPassword` to set, or a :class:`ScramRemoval`. A
                user may have a password for each mechanism; one call changes one of them.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``changes`` is not such a mapping. The error shows no password.
            BrokerResponseError: A user has no password to remove.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            AdminErrors: Some of several users failed; the others are changed.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        wanted = users.checked_changes(changes)
        salting = users.Salting(wanted)
        parts: Parts[str, None] = Parts(wanted)

        async def attempt(routing: Routing, call: RunningCall, parts: Parts[str, None]) -> None:
            await call.step("salt the passwords", salting.run)
            if asked := parts.left:
                request = salting.request(asked)
                response = await routing.change(call, "controller", request, parts, asked)
                users.read_altered(response, parts)
                parts.check(asked, call.name)

        await self._call_parts("alter_user_scram_credentials", attempt, parts, timeout)

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime: float | None = None,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Create a delegation token (KIP-48, Kafka 3.6 with KRaft).

        If the response is lost, the call is repeated: the token of the earlier attempt then exists
        as well, and expires unused.

        Args:
            owner: The principal that the token stands for, such as ``"User:alice"``; ``None``: the
                one that asks.
            renewers: Principals that may renew the token besides its owner.
            max_lifetime: Seconds after which it cannot be renewed any more; ``None``: the brokers'
                ``delegation.token.max.lifetime.ms``.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: A principal is not like ``User:alice``.
            BrokerResponseError: The brokers have no ``delegation.token.secret.key``, or this client
                authenticates by a token itself, or not at all.
            AuthorizationError: The right to ``CreateTokens`` of the owner is missing.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, a token may or may not have been made.
        """
        own = tokens.checked_owner(owner)
        others = tokens.checked_principals("renewers", renewers)
        lifetime_ms = tokens.milliseconds("max_lifetime", max_lifetime)
        return await self._ask(
            "create_delegation_token",
            "controller",
            lambda: tokens.create_request(own, others, lifetime_ms),
            lambda response: tokens.read_created(response, others),
            timeout,
        )

    async def renew_delegation_token(
        self,
        token: DelegationToken | bytes,
        *,
        period: float | None = None,
        timeout: float | None = None,
    ) -> int:
        """Extend the life of a delegation token.

        Args:
            token: The token, or its ``hmac``.
            period: Seconds from now; ``None``: the brokers' ``delegation.token.expiry.time.ms``.
                No token lives longer than its ``latest``.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The time at which it expires now, in ms since the epoch.

        Raises:
            ConfigurationError: ``token`` or ``period`` is of the wrong kind.
            BrokerResponseError: There is no such token, it has expired, or this client is neither
                its owner nor one of its renewers.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        secret = tokens.secret_of(token)
        period_ms = tokens.milliseconds("period", period)
        return await self._ask(
            "renew_delegation_token",
            "controller",
            lambda: RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms),
            lambda response: tokens.read_expiry(response, "renewing"),
            timeout,
        )

    async def expire_delegation_token(
        self,
        token: DelegationToken | bytes,
        *,
        after: float | None = None,
        timeout: float | None = None,
    ) -> int:
        """End the life of a delegation token: at once, or after some time.

        Args:
            token: The token, or its ``hmac``.
            after: Seconds from now; ``None``: at once.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The time at which it expires now, in ms since the epoch.

        Raises:
            ConfigurationError: ``token`` or ``after`` is of the wrong kind.
            BrokerResponseError: There is no such token (perhaps any more: an attempt without a
                response may have ended it), or this client is neither its owner nor one of its
                renewers.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        secret = tokens.secret_of(token)
        after_ms = tokens.milliseconds("after", after)
        return await self._ask(
            "expire_delegation_token",
            "controller",
            # -1 ms is at once.
            lambda: ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=after_ms),
            lambda response: tokens.read_expiry(response, "expiring"),
            timeout,
        )

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """Return the delegation tokens that this client may see, sorted by owner and age.

        Args:
            owners: Their principals, such as ``"User:alice"``; ``None`` means all.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: A principal is not like ``User:alice``.
            BrokerResponseError: The brokers have no ``delegation.token.secret.key``, or this client
                authenticates by a token itself, or not at all.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        chosen = None if owners is None else tokens.checked_principals("owners", owners)
        return await self._ask(
            "describe_delegation_tokens",
            "any",
            lambda: tokens.describe_request(chosen),
            tokens.read_described,
            timeout,
        )

    # --- features and controllers -----------------------------------------------------------------

    async def describe_features(
        self, *, node_id: int | None = None, timeout: float | None = None
    ) -> ClusterFeatures:
        """Return the levels of the cluster's features, and those that a broker supports (KIP-584).

        Args:
            node_id: The broker to ask; ``None``: any. During an upgrade they differ.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``node_id`` is not a whole number from 0.
            TrikafkaError: The cluster has no live broker of this number.
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        if node_id is not None:
            quorum.check_node_id("node_id", node_id)
        place: Place = "any" if node_id is None else node_id
        return await self._ask(
            "describe_features", place, features.describe_request, features.read_described, timeout
        )

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: Downgrade | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change the levels of features, such as ``metadata.version`` (KIP-584, KIP-778).

        Args:
            levels: The new level of each feature; 0 turns it off.
            downgrade: ``None``: levels may only rise. ``"safe"``: they may only fall, and only if
                nothing is lost. ``"unsafe"``: metadata may be lost.
            validate_only: Let the controller check the levels without changing them.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: A level is not a whole number, or 0 without ``downgrade``.
            BrokerResponseError: A broker does not support a level, or the feature does not exist.
                From Kafka 4.0 on nothing is changed then.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            AdminErrors: Some of several features failed; the others are changed.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        wanted = features.checked_levels(levels, downgrade)
        parts: Parts[str, None] = Parts(wanted)

        def request(asked: list[str], call: RunningCall) -> object:
            timeout_ms = int(call.step_limit * 1000)
            return features.update_request(
                wanted, asked, downgrade, timeout_ms, validate_only=validate_only
            )

        await self._ask_parts(
            "update_features",
            "controller",
            parts,
            request,
            lambda response, asked: features.read_updated(response, asked, parts),
            timeout,
        )

    async def describe_metadata_quorum(self, *, timeout: float | None = None) -> MetadataQuorum:
        """Return the controllers that keep the cluster's metadata, and how far each node is.

        Raises:
            AuthorizationError: The right to ``Describe`` the cluster is missing.
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        return await self._ask(
            "describe_metadata_quorum",
            "any",
            quorum.describe_request,
            quorum.read_described,
            timeout,
        )

    async def add_raft_voter(
        self,
        node_id: int,
        directory_id: str,
        endpoints: Iterable[VoterEndpoint],
        *,
        cluster_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Make a controller a voter of the metadata quorum (KIP-853, Kafka 3.9).

        Args:
            node_id: The controller, which must run as an observer.
            directory_id: The id of its metadata log directory, as Kafka writes it.
            endpoints: The addresses at which the other controllers reach it.
            cluster_id: The cluster's id, for the controller to check; ``None``: no check.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: An argument is of the wrong kind.
            BrokerResponseError: The controller is a voter already or cannot be reached, or the
                cluster's ``kraft.version`` is 0: its voters cannot change.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        quorum.check_node_id("node_id", node_id)
        quorum.check_cluster_id(cluster_id)
        directory = quorum.directory_uuid(directory_id)
        known = quorum.checked_endpoints(endpoints)
        await self._change_node(
            "add_raft_voter",
            node_id,
            lambda call: quorum.add_request(
                node_id, directory, known, cluster_id, int(call.step_limit * 1000)
            ),
            ErrorCode.DUPLICATE_VOTER,
            timeout,
        )

    async def remove_raft_voter(
        self,
        node_id: int,
        directory_id: str,
        *,
        cluster_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Remove a controller from the voters of the metadata quorum (KIP-853, Kafka 3.9).

        Args:
            node_id: The controller.
            directory_id: The id of its metadata log directory, as Kafka writes it.
            cluster_id: The cluster's id, for the controller to check; ``None``: no check.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: An argument is of the wrong kind.
            BrokerResponseError: The controller is not a voter, or the cluster's ``kraft.version``
                is 0: its voters cannot change.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        quorum.check_node_id("node_id", node_id)
        quorum.check_cluster_id(cluster_id)
        directory = quorum.directory_uuid(directory_id)
        await self._change_node(
            "remove_raft_voter",
            node_id,
            lambda call: RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory
            ),
            ErrorCode.VOTER_NOT_FOUND,
            timeout,
        )

    async def unregister_broker(self, node_id: int, *, timeout: float | None = None) -> None:
        """Make the cluster forget a broker that will not return.

        A broker that still runs registers itself again.

        Args:
            node_id: The broker.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``node_id`` is not a whole number from 0.
            BrokerResponseError: No broker has this number.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        quorum.check_node_id("node_id", node_id)
        await self._change_node(
            "unregister_broker",
            node_id,
            lambda call: UnregisterBrokerRequest(broker_id=node_id),
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            timeout,
        )

    async def unregister_controller(self, node_id: int, *, timeout: float | None = None) -> None:
        """Make the cluster forget a controller that will not return (Kafka 4.4).

        Args:
            node_id: The controller.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: ``node_id`` is not a whole number from 0.
            BrokerResponseError: No controller has this number.
            AuthorizationError: The right to ``Alter`` the cluster is missing.
            UnsupportedVersionError: The brokers are too old.
            KafkaTimeoutError: No answer in time.

        When cancelled while the request is in flight, the change may or may not have happened.
        """
        quorum.check_node_id("node_id", node_id)
        await self._change_node(
            "unregister_controller",
            node_id,
            lambda call: UnregisterControllerRequest(controller_id=node_id),
            ErrorCode.CONTROLLER_ID_NOT_REGISTERED,
            timeout,
        )

    # --- leaving ----------------------------------------------------------------------------------

    async def aclose(self, timeout: float | None = None) -> None:
        """Close the sockets. A second call is a no-op.

        Args:
            timeout: Seconds for the last push of metrics, a second at most. Only a client with
                ``enable_metrics_push=True`` has one; otherwise closing waits for no broker.

        When cancelled, the sockets are closed all the same.
        """
        limit = check_timeout(timeout, math.inf)
        if not self._closed:
            self._context.home.check()
        with trio.move_on_after(max(GRACE, limit)):
            await self._finish(Exit.CLEAN)

    async def _finish(self, how: Exit) -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()
        if not self._closed:
            self._closed = True
            try:
                await self._telemetry.push_last()
            finally:
                self._brokers.close()
                self._context.notify_closed()

    # --- inside -----------------------------------------------------------------------------------

    def _check_controllers(self, name: str) -> None:
        if self._config.asks_controllers and name not in BY_CONTROLLERS:
            raise IllegalStateError(
                f"controllers do not answer {name}, and this client asks controllers alone "
                "(bootstrap_controllers): open one with bootstrap_servers"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this admin client is closed")
        self._context.home.check()

    async def _call(
        self,
        name: str,
        attempt: Callable[[RunningCall], Awaitable[T]],
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
        self._check_controllers(name)
        return await run_call(name, attempt, config=self._config, timeout=timeout, recover=recover)

    async def _call_parts(
        self,
        name: str,
        attempt: Callable[[Routing, RunningCall, Parts[K, T]], Awaitable[None]],
        parts: Parts[K, T],
        timeout: float | None,
        coordinated: Iterable[str] = (),
        kind: CoordinatorKind = CoordinatorKind.GROUP,
    ) -> dict[K, T]:
        """Run a call about several things; return the results, or raise what failed with them."""
        try:
            await self._call(
                name, lambda call: attempt(self._routing, call, parts), timeout, coordinated, kind
            )
        except TrikafkaError as error:
            parts.fail_rest(error)
        return parts.finish()

    async def _ask(
        self,
        name: str,
        place: Place,
        request: Callable[[], object],
        read: Callable[[Any], T],
        timeout: float | None,
    ) -> T:
        """Run a call that is one request to one broker; return what ``read`` makes of it."""

        async def attempt(call: RunningCall) -> T:
            return read(await self._routing.request(call, place, request()))

        return await self._call(name, attempt, timeout)

    async def _ask_parts(
        self,
        name: str,
        place: Literal["any", "controller"],
        parts: Parts[K, T],
        request: Callable[[list[K], RunningCall], object],
        read: Callable[[Any, list[K]], None],
        timeout: float | None,
    ) -> dict[K, T]:
        """Run a call about several things that is one request to one broker."""

        async def attempt(routing: Routing, call: RunningCall, parts: Parts[K, T]) -> None:
            if not (asked := parts.left):
                await trio.lowlevel.checkpoint()
                return
            message = request(asked, call)
            response = (
                await routing.request(call, place, message)
                if place == "any"
                else await routing.change(call, place, message, parts, asked)
            )
            read(response, asked)
            parts.check(asked, name)

        return await self._call_parts(name, attempt, parts, timeout)

    async def _change_node(
        self,
        name: str,
        node_id: int,
        request: Callable[[RunningCall], object],
        made_before: ErrorCode,
        timeout: float | None,
    ) -> None:
        """Run a call that changes the registration or the vote of one node."""
        parts: Parts[int, None] = Parts([node_id])

        def read(response: Any, asked: list[int]) -> None:
            error = quorum.error_of(response, f"node {node_id}")
            if error is None:
                parts.done(node_id, None)
            else:
                parts.failed(node_id, error, made_before=made_before)

        await self._ask_parts(
            name, "controller", parts, lambda asked, call: request(call), read, timeout
        )

    async def _fence(
        self, name: str, transactional_ids: Iterable[str], timeout: float | None
    ) -> dict[str, FencedProducer]:
        parts: Parts[str, FencedProducer] = Parts(names_of("transactional_ids", transactional_ids))
        kind = CoordinatorKind.TRANSACTION

        async def fence(call: RunningCall, transactional_id: str) -> None:
            await self._routing.coordinators(
                call,
                kind,
                [transactional_id],
                partial(transactions.fence_request, timeout_ms=int(call.step_limit * 1000)),
                lambda response, asked: transactions.read_fenced(response, transactional_id, parts),
                refuse=parts.refuse,
            )

        async def attempt(
            routing: Routing, call: RunningCall, parts: Parts[str, FencedProducer]
        ) -> None:
            asked = parts.left
            if not asked:
                await trio.lowlevel.checkpoint()
            await all_of([partial(fence, call, one) for one in asked])
            parts.check(asked, name)

        return await self._call_parts(name, attempt, parts, timeout, parts.left, kind)
