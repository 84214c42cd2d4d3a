"""The built-in plugin of every client: registered first, and so asked last."""

from __future__ import annotations

from typing import Protocol

from ... import interfaces
from ..._net.brokers import Brokers
from ..._state.telemetry.metrics import Meter
from ...hooks import hookimpl
from .coordinator import Coordinators
from .metadata import Metadata
from .offsets import Offsets
from .telemetry import Telemetry


class AnyClient(interfaces.ClientContext, Protocol):
    """The context of any client, with trikafka's own connections."""

    @property
    def brokers(self) -> Brokers: ...
    @property
    def metrics(self) -> Meter: ...


class Builtin:
    """The request managers that every client may have.

    The factories take from a client only what its context offers to any plugin
    (``tests/hooks/test_contracts.py`` checks that). Type checkers check that each result fits the
    contract of its seat.
    """

    @hookimpl(trylast=True)
    def trikafka_request_manager(self, kind: str, context: object) -> object | None:
        build = getattr(self, f"_{kind}", None)
        return None if build is None else build(context)

    @staticmethod
    def _metadata(client: AnyClient) -> interfaces.MetadataManager:
        return Metadata(client.config, client.brokers, client.start_soon)

    @staticmethod
    def _coordinator(client: AnyClient) -> interfaces.CoordinatorManager:
        outages = client.brokers.outages
        events = getattr(client, "membership_events", None)
        watch = None if events is None else events.coordinator
        leave = lambda node: client.brokers.leave(node, ("coordinator", "group"))  # noqa: E731
        return Coordinators(client.manager("metadata"), client.start_soon, outages, watch, leave)

    @staticmethod
    def _offsets(client: AnyClient) -> interfaces.OffsetsManager:
        isolation = 1 if getattr(client.config, "isolation_level", "") == "read_committed" else 0
        return Offsets(client.brokers, client.manager("metadata"), isolation)

    @staticmethod
    def _telemetry(client: AnyClient) -> interfaces.TelemetryManager:
        metadata = client.manager("metadata")
        return Telemetry(client.config, client.brokers, metadata, client.metrics, client.start_soon)
