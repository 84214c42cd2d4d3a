"""The obligations of every client: fresh metadata, and the results of its calls.

See :mod:`.stalls`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..._managers.cluster.metadata import Metadata
from ..._net.deadlines import calls_under_way
from ..._net.outages import Outages
from ...config import ClientConfig
from ...interfaces import MetadataManager
from .stalls import Owed


def metadata_owed(metadata: MetadataManager, outages: Outages, now: float) -> Iterator[Owed]:
    """Report the refresh of the metadata.

    Nothing is reported late while no broker can be reached: the outage is the cause then.
    """
    if not isinstance(metadata, Metadata):
        return
    since = (
        now if metadata.unanswered_since is None or outages.all_away else metadata.unanswered_since
    )
    why = lambda: str(metadata.last_error or "no broker has responded yet")  # noqa: E731
    yield Owed("metadata", "the refresh of the cluster's metadata", None, since, why)


def calls_owed(config: ClientConfig, now: float, *, but: str | None = None) -> Iterator[Owed]:
    """Report the API calls that wait for a broker, except those named ``but``."""
    for call in calls_under_way(config):
        if call.name == but:
            continue
        well_at = now if call.waits else call.began
        yield Owed(call, f"{call.name}()", None, well_at, call.obstacle)
