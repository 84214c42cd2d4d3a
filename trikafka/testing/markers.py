"""The effects of a transaction's end: markers in partitions, and offsets that take effect."""

from __future__ import annotations

from .batches import control_batch
from .group import Groups
from .state import NodeState, State
from .transactions import Identity, Target


def write_marker(
    state: State, groups: Groups, target: Target, producer: Identity, commit: bool
) -> bool:
    """End a transaction in one partition or group.

    Return False while the partition's leader is not available.
    """
    if isinstance(target, str):
        group = groups.by_id.get(target)
        if group is not None:
            group.end_transaction(producer.producer_id, commit)
        return True
    topic = state.topics.get(target[0])
    partition = topic.partition(target[1]) if topic else None
    if partition is None:
        return True  # the topic was deleted meanwhile
    leader = state.leader_of(partition)
    if leader is None or leader.state is not NodeState.UP:
        return False
    partition.end_transaction(control_batch(*producer, commit=commit, timestamp=state.clock()))
    state.changed.notify()
    return True
