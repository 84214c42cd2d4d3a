"""One connection of the scripted cluster, on the broker's side.

A reader receives frames and logs the requests. As in Kafka, the requests of a connection are
executed one after the other, so a slow request delays those behind it. The connection owns the
stream. The :class:`Script` has the test's rules, and :data:`HANDLERS` the handlers.
"""

from __future__ import annotations

import inspect
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

import trio
from kafka.protocol.api_key import ApiKey

from . import (
    fetch,
    groups,
    modern_groups,
    moving,
    offsets,
    quorum,
    records,
    security,
    share_calls,
    share_offsets,
    telemetry,
    topics,
    transaction_calls,
)
from ._signal import WakeSignal
from .call import ApiHandler, HangUp, ScriptedCall
from .faults import leave_out
from .group import Groups
from .messages import (
    UNREGISTER_CONTROLLER,
    Head,
    MalformedRequest,
    Message,
    api_name,
    decode_request,
    encode_response,
    read_head,
)
from .script import Damage, Drop, Fail, Garbage, Handle, LeaveOut, Plan, Script, Seen, Silence
from .state import NodeState, ScriptedNode, State

#: The handler of each API, by its number.
HANDLERS: Mapping[int, ApiHandler] = {
    ApiKey.ApiVersions: topics.api_versions,
    ApiKey.Metadata: topics.metadata,
    ApiKey.DescribeTopicPartitions: topics.describe_topic_partitions,
    ApiKey.FindCoordinator: topics.find_coordinator,
    ApiKey.CreateTopics: topics.create_topics,
    ApiKey.DeleteTopics: topics.delete_topics,
    ApiKey.CreatePartitions: topics.create_partitions,
    ApiKey.DescribeConfigs: topics.describe_configs,
    ApiKey.IncrementalAlterConfigs: topics.alter_configs,
    ApiKey.DeleteRecords: topics.delete_records,
    ApiKey.ShareGroupDescribe: share_offsets.share_group_describe,
    ApiKey.StreamsGroupDescribe: share_offsets.streams_group_describe,
    ApiKey.DescribeShareGroupOffsets: share_offsets.describe_share_group_offsets,
    ApiKey.AlterShareGroupOffsets: share_offsets.alter_share_group_offsets,
    ApiKey.DeleteShareGroupOffsets: share_offsets.delete_share_group_offsets,
    ApiKey.DescribeCluster: moving.describe_cluster,
    ApiKey.AlterPartitionReassignments: moving.alter_partition_reassignments,
    ApiKey.ListPartitionReassignments: moving.list_partition_reassignments,
    ApiKey.ElectLeaders: moving.elect_leaders,
    ApiKey.DescribeLogDirs: moving.describe_log_dirs,
    ApiKey.AlterReplicaLogDirs: moving.alter_replica_log_dirs,
    ApiKey.Produce: records.produce,
    ApiKey.InitProducerId: transaction_calls.init_producer_id,
    ApiKey.AddPartitionsToTxn: transaction_calls.add_partitions_to_txn,
    ApiKey.AddOffsetsToTxn: transaction_calls.add_offsets_to_txn,
    ApiKey.EndTxn: transaction_calls.end_txn,
    ApiKey.TxnOffsetCommit: transaction_calls.txn_offset_commit,
    ApiKey.WriteTxnMarkers: transaction_calls.write_txn_markers,
    ApiKey.DescribeProducers: transaction_calls.describe_producers,
    ApiKey.DescribeTransactions: transaction_calls.describe_transactions,
    ApiKey.ListTransactions: transaction_calls.list_transactions,
    ApiKey.Fetch: fetch.fetch,
    ApiKey.ListOffsets: offsets.list_offsets,
    ApiKey.OffsetForLeaderEpoch: offsets.offset_for_leader_epoch,
    ApiKey.JoinGroup: groups.join_group,
    ApiKey.SyncGroup: groups.sync_group,
    ApiKey.Heartbeat: groups.heartbeat,
    ApiKey.LeaveGroup: groups.leave_group,
    ApiKey.OffsetCommit: groups.offset_commit,
    ApiKey.OffsetFetch: groups.offset_fetch,
    ApiKey.OffsetDelete: groups.offset_delete,
    ApiKey.ListGroups: groups.list_groups,
    ApiKey.DescribeGroups: groups.describe_groups,
    ApiKey.DeleteGroups: groups.delete_groups,
    ApiKey.ConsumerGroupHeartbeat: modern_groups.consumer_group_heartbeat,
    ApiKey.ConsumerGroupDescribe: modern_groups.consumer_group_describe,
    ApiKey.ShareGroupHeartbeat: share_calls.share_group_heartbeat,
    ApiKey.ShareFetch: share_calls.share_fetch,
    ApiKey.ShareAcknowledge: share_calls.share_acknowledge,
    ApiKey.GetTelemetrySubscriptions: telemetry.get_telemetry_subscriptions,
    ApiKey.PushTelemetry: telemetry.push_telemetry,
    ApiKey.DescribeAcls: security.describe_acls,
    ApiKey.CreateAcls: security.create_acls,
    ApiKey.DeleteAcls: security.delete_acls,
    ApiKey.CreateDelegationToken: security.create_delegation_token,
    ApiKey.RenewDelegationToken: security.renew_delegation_token,
    ApiKey.ExpireDelegationToken: security.expire_delegation_token,
    ApiKey.DescribeDelegationToken: security.describe_delegation_token,
    ApiKey.DescribeClientQuotas: security.describe_client_quotas,
    ApiKey.AlterClientQuotas: security.alter_client_quotas,
    ApiKey.DescribeUserScramCredentials: security.describe_user_scram_credentials,
    ApiKey.AlterUserScramCredentials: security.alter_user_scram_credentials,
    ApiKey.UpdateFeatures: quorum.update_features,
    ApiKey.DescribeQuorum: quorum.describe_quorum,
    ApiKey.AddRaftVoter: quorum.add_raft_voter,
    ApiKey.RemoveRaftVoter: quorum.remove_raft_voter,
    ApiKey.UnregisterBroker: quorum.unregister_broker,
    UNREGISTER_CONTROLLER: quorum.unregister_controller,
    ApiKey.ListConfigResources: topics.list_config_resources,
}

_MAX_FRAME = 104_857_600  # Kafka's socket.request.max.bytes


class ScriptedConnection:
    """A client's connection to one node.

    :meth:`serve` runs until either side closes, or :meth:`close` is called.
    """

    def __init__(
        self,
        number: int,
        node: ScriptedNode,
        stream: trio.StapledStream[Any, Any],
        state: State,
        groups: Groups,
        script: Script,
        gulp: int | None = None,
    ) -> None:
        self.number = number
        self.node = node
        self.malformed: list[str] = []
        self._stream = stream
        self._state = state
        self._groups = groups
        self._script = script
        self._gulp = gulp  # bytes to read at a time; a frozen node reads none
        self._scope = trio.CancelScope()
        # The requests that have no response yet. The client's own limit bounds their number.
        self._waiting: deque[tuple[Seen, Head]] = deque()
        self._arrived = WakeSignal()
        self._buffer = bytearray()

    def close(self) -> None:
        """Close the connection at once."""
        self._scope.cancel()

    async def serve(self) -> None:
        """Respond to requests until the connection ends; then close the stream."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_all)
                    await self._read_all()
                    nursery.cancel_scope.cancel()
        finally:
            # No await here: a cancellation must not replace the exception of a test's handler.
            share_calls.disconnected(self._state, self.node.node_id, self.number)
            for half in (self._stream.send_stream, self._stream.receive_stream):
                half.close()

    # -- reading

    async def _read_all(self) -> None:
        try:
            while (frame := await self._read_frame()) is not None:
                self._handle_frame(frame)
        except MalformedRequest as error:
            self.malformed.append(str(error))
        except trio.BrokenResourceError:
            pass

    async def _read_frame(self) -> bytes | None:
        size = await self._read_exactly(4)
        if size is None:
            return None
        length = int(struct.unpack(">i", size)[0])
        if not 0 <= length <= _MAX_FRAME:
            raise MalformedRequest(f"a frame of {length} bytes")
        return await self._read_exactly(length)

    async def _read_exactly(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            data = await self._stream.receive_stream.receive_some(self._gulp)
            if not data:
                return None
            self._buffer += data
            if self._gulp is not None:
                await self._thawed()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _handle_frame(self, frame: bytes) -> None:
        head = read_head(frame)
        offered = self.node.versions.get(head.api_key)
        known = offered is not None and offered[0] <= head.version <= offered[1]
        if not known and head.api_key != ApiKey.ApiVersions:
            raise MalformedRequest(
                f"{api_name(head.api_key)} v{head.version} is not offered by node "
                f"{self.node.node_id}"
            )
        request = decode_request(head, frame) if known else None
        seen = Seen(
            trio.current_time(),
            self.node.node_id,
            self.number,
            head.api_key,
            api_name(head.api_key),
            head.version,
            head.correlation_id,
            head.client_id,
            request,
            len(frame) + 4,
        )
        self._waiting.append((seen, head))
        self._script.record(seen)
        self._arrived.notify()

    # -- answering

    async def _answer_all(self) -> None:
        try:
            while True:
                while not self._waiting:
                    await self._arrived.wait()
                await self._thawed()
                await self._answer(*self._waiting.popleft())
        except (HangUp, trio.BrokenResourceError):
            self.close()

    async def _thawed(self) -> None:
        while self.node.state is not NodeState.UP:
            await self._state.changed.wait()

    async def _answer(self, seen: Seen, head: Head) -> None:
        plan = self._script.plan(seen)
        if plan.before:
            await trio.sleep(plan.before)
        if isinstance(plan.verdict, Garbage):
            await self._stream.send_stream.send_all(plan.verdict.data)
            return
        response = await self._respond(seen, head, plan)
        if plan.after:
            await trio.sleep(plan.after)
        await self._thawed()
        if response is not None:
            frame = encode_response(response, head.version, head.correlation_id)
            if isinstance(plan.verdict, Damage):
                frame = plan.verdict.change(frame)
            await self._stream.send_stream.send_all(frame)
            seen.response = response
            seen.response_bytes = len(frame)
        seen.answered_at = trio.current_time()

    async def _respond(self, seen: Seen, head: Head, plan: Plan) -> Message | None:
        call = ScriptedCall(
            self._state, self._groups, self.node, seen.request, head.version, seen.client_id or ""
        )
        call.connection = self.number

        async def default() -> Message | None:
            return await HANDLERS[head.api_key](call)

        match plan.verdict:
            case Handle(handler):
                return await _handled(seen.api_name, handler(seen.request, default))
            case Drop(after):
                if after:
                    await default()
                raise HangUp
            case Silence(after):
                if after:
                    await default()
                await trio.sleep_forever()
            case LeaveOut(topic, partition):
                response = await default()
                known = self._state.topics.get(topic)
                if response is not None and plan.rule is not None:
                    there = leave_out(response, topic, known.topic_id if known else None, partition)
                    plan.rule.note(there or self._exists(topic, partition))
                return response
            case Fail(after=after) as fail:
                if after:
                    await default()
                call.fail = fail
                response = await default()
                if plan.rule is not None:
                    other = head.api_key in _OTHER_ITEMS
                    exists = other or self._exists(fail.topic, fail.partition)
                    plan.rule.note(call.failed or exists)
                return response
        return await default()

    # A rule may be applied to a request that is about other items: a rule for one of two partitions
    # meets a fetch from the other, and an incremental fetch response lacks partitions without news.
    # So a rule without effect is a mistake only if the cluster has nothing of that name.
    def _exists(self, name: str | None, partition: int | None) -> bool:
        """Return whether there is such a topic with that partition, or a group or other id.

        A topic that was deleted counts.
        """
        if name is not None and name not in self._state.topics:
            state = self._state
            ids = (self._groups.by_id, state.shares.by_id, state.transactions.by_id)
            return any(name in known for known in (state.created, *ids))
        topics = self._state.topics.values() if name is None else [self._state.topics[name]]
        return partition is None or any(each.partition(partition) is not None for each in topics)


#: The APIs whose items may be other things than topics, groups and transactional ids: users,
#: brokers, the entities of quotas. The cluster does not know which of these names exist.
_OTHER_ITEMS = frozenset(
    {
        ApiKey.DescribeConfigs,
        ApiKey.IncrementalAlterConfigs,
        ApiKey.CreateAcls,
        ApiKey.DeleteAcls,
        ApiKey.AlterClientQuotas,
        ApiKey.DescribeUserScramCredentials,
        ApiKey.AlterUserScramCredentials,
    }
)


async def _handled(api: str, made: object) -> Message | None:
    """Return the response of a test's handler. Raises ``TypeError`` for what is none."""
    if not inspect.isawaitable(made):
        raise TypeError(f"the handler of {api!r} is a plain function, and has to be async")
    response: Any = await made
    if response is not None and not hasattr(response, "API_VERSION"):
        raise TypeError(
            f"the handler of {api!r} returned {type(response).__name__}; it may return what "
            "`await default()` or respond(...) returns, or None, which sends nothing"
        )
    return response
