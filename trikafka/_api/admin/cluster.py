"""The description of the cluster (KIP-700): request, response, and what older brokers say."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeClusterRequest

from ..._managers.cluster.metadata import CONTROLLERS
from ..._net.deadlines import RunningCall
from ...errors import UnsupportedVersionError, from_code
from ...interfaces import MetadataManager
from ...types import Node
from .messages import operations_of, words
from .routing import Routing
from .types import ClusterDescription

#: The version that shows fenced brokers (KIP-1073).
_SINCE_FENCED = 2
#: The kind of nodes to describe; from version 1 on there are also controllers.
_BROKERS = 1


async def describe(
    routing: Routing,
    metadata: MetadataManager,
    call: RunningCall,
    *,
    fenced: bool,
    operations: bool,
    controllers: bool,
) -> ClusterDescription:
    """Return the description, by DescribeCluster or by Metadata of older brokers.

    Raises:
        UnsupportedVersionError: The brokers are too old for what was asked for.
    """
    request = DescribeClusterRequest(
        min_version=_SINCE_FENCED if fenced else int(controllers),
        endpoint_type=CONTROLLERS if controllers else _BROKERS,
        include_cluster_authorized_operations=operations,
        include_fenced_brokers=fenced,
    )
    try:
        response = await routing.request(call, "any", request)
    except UnsupportedVersionError:
        if fenced or operations or controllers:
            raise
        seen = await call.step("describe the cluster", metadata.refresh)
        nodes = tuple(seen.nodes[number] for number in sorted(seen.nodes))
        return ClusterDescription(seen.cluster_id, seen.controller_node, nodes)
    if response.error_code:
        raise from_code(
            response.error_code,
            f"describing the cluster{words(response.error_message)}",
            operation="Describe",
        )
    return _described(response)


def _described(response: Any) -> ClusterDescription:
    nodes: dict[int, Node] = {}
    fenced: dict[int, Node] = {}
    for broker in response.brokers:
        node = Node(broker.broker_id, broker.host, broker.port, broker.rack)
        known = fenced if getattr(broker, "is_fenced", False) else nodes
        known[node.node_id] = node
    return ClusterDescription(
        response.cluster_id,
        nodes.get(response.controller_id),
        tuple(nodes[number] for number in sorted(nodes)),
        tuple(fenced[number] for number in sorted(fenced)),
        operations_of(response.authorized_operations),
    )
