"""The heartbeat manager: says to the coordinator that the member lives.

A child task like any other: while it runs, the member's session is kept, whatever the consuming task does (KIP-62).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio
from kafka.protocol.consumer.group import HeartbeatRequest

from .._net.brokers import Brokers
from .._state.member import Member
from ..config import ConsumerConfig
from ..errors import MemberFencedError, RebalanceInProgressError, TrikafkaError, from_code
from ..interfaces import CoordinatorManager

_log = logging.getLogger("trikafka.heartbeat")


class Heartbeats:
    """Runs while the member is in a generation."""

    def __init__(
        self, config: ConsumerConfig, group: str, brokers: Brokers, coordinators: CoordinatorManager, member: Member
    ) -> None:
        self._config, self._group, self._member = config, group, member
        self._brokers, self._coordinators = brokers, coordinators

    async def run(self, rejoin: Callable[[str], None], fenced: Callable[[TrikafkaError], None]) -> None:
        """Send heartbeats until cancelled. ``rejoin`` is told that the group rebalances, ``fenced`` why the member is out of it."""
        interval = self._config.heartbeat_interval_ms / 1000
        while True:
            await trio.sleep(interval)
            try:
                await self._beat()
            except RebalanceInProgressError:
                rejoin("the group rebalances")
            except MemberFencedError as error:
                fenced(error)
                return
            except TrikafkaError as error:
                _log.debug("heartbeat of group %s failed: %s", self._group, error)
                if error.refresh_coordinator:
                    self._coordinators.mark_unknown(self._group)
                if not error.retriable:
                    fenced(error)
                    return
                interval = min(interval, self._config.retry_backoff_max_ms / 1000)
                continue
            interval = self._config.heartbeat_interval_ms / 1000

    async def _beat(self) -> None:
        identity = self._member.identity
        with trio.move_on_after(self._config.session_timeout_ms / 3000) as scope:
            node = await self._coordinators.find(self._group)
            request = HeartbeatRequest(
                group_id=self._group,
                generation_id=identity.generation,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
            )
            response = await self._brokers.request(node, request, purpose="coordinator")
        if scope.cancelled_caught:
            self._coordinators.mark_unknown(self._group)
            _log.debug("no response to a heartbeat of group %s", self._group)
        elif response.error_code and identity == self._member.identity:
            raise from_code(response.error_code, f"heartbeat of group {self._group!r}")
