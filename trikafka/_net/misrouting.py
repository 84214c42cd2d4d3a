"""The check that a connection has reached the broker it was made for (KIP-1242).

An address may be given to another cluster while a client runs, by a proxy or where containers move.
Without the check, a client would read from and write to the wrong cluster.
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
    """The ids that new connections state, once they are known. All connections share it.

    A connection to a bootstrap address states none: whatever cluster is there is the right one.
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
        """Call ``act`` when a broker says that a connection is misrouted."""
        self._on_refusal = act

    def cluster_is(self, cluster_id: str | None) -> None:
        """Record the cluster of this client, ``None`` if it has no id."""
        self._cluster_id = cluster_id

    def negotiated(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """Record what a broker of the cluster offers.

        Until one has offered the checked version, connections begin with the plain one. An older
        broker would refuse the checked one, which costs a second request for each connection.
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
