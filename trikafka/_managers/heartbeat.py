"""The heartbeat manager: says to the coordinator that the member lives, and watches over ``max_poll_interval_ms`` (KIP-62).

A child task like any other: while it runs, the member's session is kept, whatever the consuming task does. When that asks for
nothing for too long, heartbeats end and the member leaves the group, to join again when it comes back.
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
from .coordinator import Coordinators

_log = logging.getLogger("trikafka.heartbeat")


class Heartbeats:
    """Runs while the member is in a generation. ``last_poll`` is written by the consumer at every receive."""

    def __init__(self, config: ConsumerConfig, group: str, brokers: Brokers, coordinators: Coordinators, member: Member) -> None:
        self._config, self._group, self._member = config, group, member
        self._brokers, self._coordinators = brokers, coordinators
        self.last_poll = 0.0
        self.waiting = 0  # receives that wait for records: the consuming task is there (listeners that it runs have to be quick)
        #: Seconds that the user may take between two receives; KIP-62: never below the session timeout.
        self.poll_limit = max(config.max_poll_interval_ms, config.session_timeout_ms) / 1000

    def polled(self) -> None:
        """The user came back for more."""
        self.last_poll = trio.current_time()

    @property
    def overdue(self) -> bool:
        """Whether the user has asked for nothing for longer than ``max_poll_interval_ms``."""
        return not self.waiting and trio.current_time() >= self.last_poll + self.poll_limit

    async def watch(self) -> None:
        """Return when the user is overdue."""
        while not self.overdue:  # noqa: ASYNC110
            # Many a receive goes by in this time; a signal from each of them would cost more than looking again.
            await trio.sleep_until(max(self.last_poll, trio.current_time() if self.waiting else 0.0) + self.poll_limit)

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
                    self._coordinators.forget(self._group)
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
            answer = await self._brokers.request(node, request, purpose="coordinator")
        if scope.cancelled_caught:
            self._coordinators.forget(self._group)
            _log.debug("no answer to a heartbeat of group %s", self._group)
        elif answer.error_code and identity == self._member.identity:
            raise from_code(answer.error_code, f"heartbeat of group {self._group!r}")
