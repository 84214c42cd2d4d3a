"""The versions of each API that a broker supports, and the features of its cluster."""

from __future__ import annotations

from collections.abc import Mapping

from .._wire import messages
from .._wire.messages import ApiMessage
from .._wire.writing import RawRequest
from ..types import Node


class BrokerVersions:
    """The content of a broker's ApiVersions response.

    ``ranges`` are the versions by API. ``features`` are those with a finalized level (KIP-584), by
    name.
    """

    def __init__(self, ranges: Mapping[int, tuple[int, int]], features: Mapping[str, int]) -> None:
        self.ranges = ranges
        self.features = features
        # The chosen versions of the record path's requests, by API and their own newest version.
        self._chosen: dict[tuple[int, int], int] = {}

    def newest_common(self, message: ApiMessage | RawRequest, node: Node) -> int:
        """Return the newest version that both sides support.

        Raises :exc:`UnsupportedVersionError` if there is none.
        """
        if not isinstance(message, RawRequest):  # its content may limit the version
            return messages.choose_version(message, self.ranges, str(node))
        kind = (message.API_KEY, message.max_version)
        version = self._chosen.get(kind)
        if version is None:
            version = self._chosen[kind] = messages.choose_version(message, self.ranges, str(node))
        return version
