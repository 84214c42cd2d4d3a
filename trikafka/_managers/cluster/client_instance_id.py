"""The telemetry manager: this client's identity in the cluster's metrics (KIP-714).

Nothing else writes the instance id. The broker assigns the id, once. Brokers accept metrics from
clients only where an operator has set up a receiver for them.
"""

from __future__ import annotations

import uuid

from ..._net.deadlines import run_call
from ..._wire.extra_messages import GetTelemetrySubscriptionsRequest
from ...config import ClientConfig
from ...errors import (
    DamagedResponseError,
    TelemetryNotSupportedError,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
)
from ...interfaces import MetadataManager

_NOBODY = uuid.UUID(int=0)


class ClientInstanceId:
    """The client's instance id, which any broker assigns."""

    def __init__(self, config: ClientConfig, metadata: MetadataManager) -> None:
        self._config = config
        self._metadata = metadata
        self._instance_id: uuid.UUID | None = None

    async def client_instance_id(self, timeout: float | None) -> uuid.UUID:
        """Return the id, which the first call requests.

        Raises :exc:`TelemetryNotSupportedError`, :exc:`KafkaTimeoutError`.
        """
        return await run_call(
            "client_instance_id",
            lambda call: call.step("ask for the id", self._ask),
            config=self._config,
            timeout=timeout,
            recover=self._recover,
        )

    async def _ask(self) -> uuid.UUID:
        if self._instance_id is not None:
            return self._instance_id
        try:
            response = await self._metadata.ask_any(
                lambda: GetTelemetrySubscriptionsRequest(client_instance_id=_NOBODY)
            )
        except UnsupportedVersionError as error:
            raise TelemetryNotSupportedError(
                "the brokers take no metrics from clients (KIP-714), so they give no client "
                "instance id;"
                " it needs Kafka 3.7 or newer, and a metrics reporter that an operator sets up to "
                "receive them"
            ) from error
        if response.error_code:
            raise from_code(response.error_code, "asking for the client instance id")
        given: uuid.UUID | None = response.client_instance_id
        if given is None or given == _NOBODY:
            raise DamagedResponseError("the broker gave no client instance id when asked for one")
        if self._instance_id is None:  # another task may have asked meanwhile, and been quicker
            self._instance_id = given
        return self._instance_id

    def _recover(self, error: TrikafkaError) -> None:
        if error.refresh_metadata:
            self._metadata.request_update()
