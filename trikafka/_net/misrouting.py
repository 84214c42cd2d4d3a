"""The check that a connection has reached the broker it was made for (KIP-1242).

While a client runs, an address may come to lead to another cluster, because of a proxy or of
containers that move. Without the check, the client would then use the wrong cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .._wire.messages import ApiVersionsRequest
from ..config import ClientConfig
from ..types import Node

#: The version of ApiVersions from which a broker compares the ids.
_CHECKED = 5
#: The version for a broker that may not know the checked one.
_PLAIN = 4


class MisroutingCheck:
    """The cluster id and node id that a new connection names, so that the broker can compare them.

    All connections of a client share this. A connection to a bootstrap address names no ids,
    because any cluster at that address is the right one.
    """

    def __init__(self, config: ClientConfig) -> None:
        # Without rebootstrapping there is no way back from a misrouted address, so the check is
        # off, as in Java's client.
        self._on = (
            config.metadata_cluster_check_enable
            and config.metadata_recovery_strategy == "rebootstrap"
        )
        self._cluster_id: str | None = None
        self._offered = False
        self._on_refusal: Callable[[], object] = lambda: None

    def when_refused(self, act: Callable[[], object]) -> None:
        """Call ``act`` when a broker reports that a connection is misrouted."""
        self._on_refusal = act

    def cluster_is(self, cluster_id: str | None) -> None:
        """Record the id of this client's cluster; ``None`` if the cluster has none."""
        self._cluster_id = cluster_id

    def negotiated(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """Record the versions that a broker of the cluster offers.

        Connections begin with the checked version of ApiVersions only after a broker has offered
        that version. An older broker would refuse it, and each connection would need a second
        request.
        """
        self._offered = versions.get(ApiVersionsRequest.API_KEY, (0, 0))[1] >= _CHECKED

    def refused(self) -> None:
        """Report a misrouted connection."""
        self._on_refusal()

    def stated(self, node: Node) -> tuple[int, str | None, int]:
        """Return the version of ApiVersions for ``node``, and the ids of cluster and node."""
        if self._on and self._offered and self._cluster_id is not None and node.node_id >= 0:
            return _CHECKED, self._cluster_id, node.node_id
        return _PLAIN, None, -1
