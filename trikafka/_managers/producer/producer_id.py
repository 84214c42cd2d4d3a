"""The producer id of an idempotent producer.

The id is requested when batches wait for one, and again when its epochs are used up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio
from kafka.protocol.producer import InitProducerIdRequest

from ..._net import reasons
from ..._net.retry import Retry
from ..._state.producer.sequences import ProducerIdentity
from ...config import ProducerConfig
from ...errors import TrikafkaError, UnsupportedVersionError, from_code
from ...interfaces import MetadataManager

_log = logging.getLogger("trikafka.produce")


class ProducerIds:
    """The task that gets producer ids, one request at a time."""

    def __init__(self, config: ProducerConfig, metadata: MetadataManager) -> None:
        self._config = config
        self._metadata = metadata
        self._needed = trio.Event()
        self.reason = reasons.WaitContext()  # what the task waits for

    def need(self) -> None:
        """Request an id, because batches wait for one."""
        self._needed.set()

    async def obtain_ids(
        self,
        given: Callable[[ProducerIdentity], object],
        delayed: Callable[[TrikafkaError], object],
        refused: Callable[[TrikafkaError], object],
    ) -> None:
        """Get an id whenever one is needed.

        ``delayed`` is called after each retriable failure, ``refused`` if no id will ever be given.
        """
        reasons.adopt(self.reason)
        while True:
            await self._needed.wait()
            try:
                identity = await self._obtain(delayed)
            except TrikafkaError as error:
                self._needed = trio.Event()
                refused(error)
            else:
                self._needed = trio.Event()
                given(identity)

    async def _obtain(self, delayed: Callable[[TrikafkaError], object]) -> ProducerIdentity:
        """Ask until a broker gives an id.

        Raises an error that is not retriable, such as a missing permission.
        """
        retry = Retry(self._config)
        while True:
            try:
                return await self._ask()
            except UnsupportedVersionError as error:
                raise UnsupportedVersionError(
                    f"{error}; set enable_idempotence=False for such a broker"
                ) from error
            except TrikafkaError as error:
                if not error.retriable:
                    raise
                delayed(error)
                _log.debug("no producer id yet (%d failures before): %s", retry.failures, error)
            await retry.wait()

    async def _ask(self) -> ProducerIdentity:
        response = await self._metadata.ask_any(
            lambda: InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
        )
        if response.error_code:
            raise from_code(
                response.error_code, "asking for a producer id", operation="IdempotentWrite"
            )
        return ProducerIdentity(response.producer_id, response.producer_epoch)
