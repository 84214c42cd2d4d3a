"""Which versions of each API a broker speaks, and which features its cluster has."""

from __future__ import annotations

from collections.abc import Mapping

from .._wire import messages
from .._wire.messages import ApiMessage
from .._wire.writing import RawRequest
from ..types import Node


class BrokerVersions:
    """What a broker said at the beginning of a connection: ``ranges`` of versions by API, and the cluster's ``features``.

    ``features`` are those with a finalized level (KIP-584), by name.
    """

    def __init__(self, ranges: Mapping[int, tuple[int, int]], features: Mapping[str, int]) -> None:
        self.ranges, self.features = ranges, features
        self._chosen: dict[tuple[int, int], int] = {}  # of the requests of the record path, by API and their own newest

    def newest_common(self, message: ApiMessage | RawRequest, node: Node) -> int:
        """The newest version that both sides have. Raises :exc:`UnsupportedVersionError` if there is none."""
        if not isinstance(message, RawRequest):  # it may be limited by what stands in it
            return messages.choose_version(message, self.ranges, str(node))
        kind = (message.API_KEY, message.max_version)
        version = self._chosen.get(kind)
        if version is None:
            version = self._chosen[kind] = messages.choose_version(message, self.ranges, str(node))
        return version
