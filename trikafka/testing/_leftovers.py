"""Checks for leftovers: a cancelled call must leave nothing in its client.

For trikafka's own tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from .cluster import ScriptedCluster

#: The tasks of a client (DESIGN, section 3), one of each. Any other task belongs to a call and ends
#: with it.
_ONCE = frozenset(
    {
        "Metadata.run",
        "Positions.run",
        "StallWatch.run",
        "AutoCommit.run",
        "Fetcher.run",
        "Fetcher._follow_metadata",
        "MembershipTask._run",
        "MembershipBase._watch_poll",
        "GroupTopics.watch_errors",
        "<locals>.guard",
        "Heartbeats.run",
        "ClassicMembership._watch_topics",
        "TargetReconciler.follow_target",
        "<locals>.watch",
        "TargetReconciler._find_names",
        "BatchProducing.run",
        "BatchProducing._follow",
        "BatchProducing._expire",
        "ProducerIds.obtain_ids",
        "FailureLog.write_lines",
        "Telemetry.run",
    }
)
#: Tasks that exist once per broker.
_OF_BROKERS = frozenset({"Fetcher._fetch_from", "Senders._serve"})
_CONNECTION = "ConnectionSlot._run"
#: Requests that wait inside the broker and are repeated whether or not a call waits.
_LASTING = frozenset({"Fetch"})


def _tasks(nursery: trio.Nursery) -> list[str]:
    """Return the names of the tasks below a nursery, without those inside a connection."""
    found: list[str] = []
    for task in nursery.child_tasks:
        name = ".".join(task.name.rsplit(".", 2)[-2:])
        found.append(name)
        if name != _CONNECTION:
            for inner in task.child_nurseries:
                found += _tasks(inner)
    return found


async def assert_nothing_left(
    cluster: ScriptedCluster, client: object, *, buffered: int = 0
) -> None:
    """Wait until all responses have arrived; check that the client holds nothing more.

    Args:
        cluster: The cluster of the client.
        client: The client to inspect.
        buffered: The bytes that may remain buffered.

    Raises:
        AssertionError: A slot, a socket, a task or more bytes remain after ten seconds. The message
            lists them.
    """
    left: list[str] = []
    with trio.move_on_after(10):
        while left := _left(cluster, client, buffered):  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert not left, left


def _left(cluster: ScriptedCluster, client: object, buffered: int) -> list[str]:
    parts = getattr(client, "_parts", None) or client._context  # type: ignore[attr-defined]
    connections = parts.brokers.connections()
    left = []
    for connection in connections:
        waiting = connection.waiting
        left += [f"{api} in flight to {connection.node}" for api in waiting if api not in _LASTING]
        if connection.slots_taken > len(waiting):
            left.append(
                f"{connection.slots_taken} slots taken by {len(waiting)} requests to "
                f"{connection.node}"
            )
    names = _tasks(parts._service._nursery)
    left += [f"task {name}" for name in names if name not in _ONCE | _OF_BROKERS | {_CONNECTION}]
    left += [f"more than one task {name}" for name in _ONCE if names.count(name) > 1]
    if not len(connections) == names.count(_CONNECTION) == cluster.connections():
        left.append(
            f"{len(connections)} connections, {names.count(_CONNECTION)} of their tasks, "
            f"{cluster.connections()} sockets"
        )
    held = parts.core.buffer.buffered if hasattr(parts, "core") else client.statistics().buffer_used  # type: ignore[attr-defined]
    if held > buffered:
        left.append(f"{held} bytes buffered")
    return left
