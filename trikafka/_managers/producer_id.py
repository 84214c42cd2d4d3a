"""The producer id manager: who this producer is to the brokers, asked for once and again when an id is used up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kafka.protocol.producer import InitProducerIdRequest

from .._net import reasons
from .._net.retry import Retry
from .._state.sequences import Identity
from ..config import ProducerConfig
from ..errors import TrikafkaError, UnsupportedVersionError, from_code
from ..interfaces import MetadataManager

_log = logging.getLogger("trikafka.produce")


class ProducerIds:
    """Gets producer ids. One task uses it, so there is one request at a time."""

    def __init__(self, config: ProducerConfig, metadata: MetadataManager) -> None:
        self._config, self._metadata = config, metadata
        self.reason = reasons.Reason()  # what the task that uses it waits for

    async def obtain(self, failed: Callable[[TrikafkaError], object]) -> Identity:
        """Ask until a broker gives an id; ``failed`` is told each time that none does.

        Raises what is not retriable, such as a missing permission.
        """
        reasons.adopt(self.reason)
        retry = Retry(self._config)
        while True:
            try:
                return await self._ask()
            except UnsupportedVersionError as error:
                raise UnsupportedVersionError(f"{error}; set enable_idempotence=False for such a broker") from error
            except TrikafkaError as error:
                if not error.retriable:
                    raise
                failed(error)
                _log.debug("no producer id yet (%d failures before): %s", retry.failures, error)
            await retry.wait()

    async def _ask(self) -> Identity:
        response = await self._metadata.ask_any(
            lambda: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
        )
        if response.error_code:
            raise from_code(response.error_code, "asking for a producer id")
        return Identity(response.producer_id, response.producer_epoch)
