"""The telemetry manager: this client's identity in the cluster's metrics, and its pushes (KIP-714).

Only this manager sets the instance id, which a broker assigns once. A broker offers these requests
only if its operator has set up a receiver of metrics. If none does, this manager sends nothing.
"""

# One request at a time
# ---------------------
#
# A broker refuses the second of two requests of one client within the push interval. So the task
# that pushes and the callers that want the id share one GetTelemetrySubscriptions (`_ask`). The
# task and the last push before a close take turns (`_turn`).
#
# One broker at a time
# --------------------
#
# Brokers keep the state of a client's pushes in memory, each for itself. So the client stays with
# one broker while this one responds and is in the cluster. `PushSchedule` has the other rules.
#
# A connection of their own
# -------------------------
#
# The broker passes each push to the operator's receiver, and answers the requests of one connection
# in order. On a shared connection, a receiver that hangs would delay the metadata and look-ups
# behind a push. So these requests have a connection of their own, and silence on it does not count
# as an outage of the broker: metrics must never harm the client.

from __future__ import annotations

import logging
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Container
from typing import Any

import trio

from ... import _version
from ..._net.brokers import Brokers
from ..._net.deadlines import run_call
from ..._net.singleflight import SingleFlight, StartSoon
from ..._state.telemetry.subscription import PushSchedule, PushState, Subscription, subscription_of
from ..._wire.compression import BY_ID
from ..._wire.extra_messages import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from ..._wire.otlp import encode_metrics
from ...config import ClientConfig
from ...error_codes import ErrorCode
from ...errors import (
    DamagedResponseError,
    KafkaConnectionError,
    TelemetryNotSupportedError,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
)
from ...interfaces import ClientMetrics, MetadataManager
from ...types import MetricsPush, Node

_log = logging.getLogger("trikafka.telemetry")
_NO_ID = uuid.UUID(int=0)
_SCOPE = ("trikafka", _version.VERSION)
#: The most seconds for which the last push may delay a close.
_LAST_PUSH = 1.0
#: Seconds after which another broker is asked for the subscription. A broker has it in memory, so a
#: working one responds soon, and a caller may be waiting for the client's id.
_GET_LIMIT = 5.0


class Telemetry:
    """The client's instance id, and the task that pushes its metrics."""

    def __init__(
        self,
        config: ClientConfig,
        brokers: Brokers,
        metadata: MetadataManager,
        metrics: ClientMetrics,
        start_soon: StartSoon,
    ) -> None:
        self._config = config
        self._enabled = config.enable_metrics_push
        self._brokers = brokers
        self._metadata = metadata
        self._metrics = metrics
        self._schedule = PushSchedule(trio.current_time())
        self._ask = SingleFlight(start_soon, self._get)
        self._turn = trio.Lock()
        self._wake = trio.Event()
        self._closing = False
        self._node: Node | None = None
        self._left: int | None = None  # the broker at which a request failed last
        self._last: float | None = None
        self._pushes = 0
        self._last_error: Exception | None = None
        self._failing_since: float | None = None
        self._too_large = False  # True once this was logged
        #: Ids of codecs that a broker has refused in a push. Its subscription may still list them.
        self._refused_codecs: set[int] = set()

    # --- the identity ---

    async def client_instance_id(self, timeout: float | None) -> uuid.UUID:
        """Return the id; request it from a broker if it is not known yet.

        Raises:
            TelemetryNotSupportedError: No broker accepts metrics.
            KafkaTimeoutError: No broker responded within ``timeout`` seconds.

        Cancelling the call does not cancel a request that other tasks share.
        """
        return await run_call(
            "client_instance_id",
            lambda call: call.step("ask for the id", self._ask_for_id),
            config=self._config,
            timeout=timeout,
            recover=self._recover,
        )

    async def _ask_for_id(self) -> uuid.UUID:
        if self._schedule.instance_id is None:
            try:
                await self._ask()
            except UnsupportedVersionError as error:
                raise TelemetryNotSupportedError(
                    "the brokers accept no metrics from clients (KIP-714), so they assign no "
                    "client instance id; this needs Kafka 3.7 or newer, and a metrics reporter on "
                    "the brokers that receives metrics of clients"
                ) from error
        assert self._schedule.instance_id is not None
        return self._schedule.instance_id

    async def _get(self) -> None:
        """Request the id and the subscription, from another broker if the first has no receiver."""
        lacking: set[int] = set()
        limit = min(_GET_LIMIT, self._config.request_timeout)
        while True:
            node = self._chosen_node(lacking)
            request = GetTelemetrySubscriptionsRequest(
                client_instance_id=self._schedule.instance_id or _NO_ID
            )
            try:
                response = await self._brokers.request(
                    node, request, purpose="telemetry", response_timeout=limit
                )
            except UnsupportedVersionError:
                lacking.add(node.node_id)
                if lacking.issuperset(self._metadata.snapshot.nodes):
                    raise
            else:
                self._subscribed(response)
                return

    def _recover(self, error: TrikafkaError) -> None:
        self._leave()
        if error.refresh_metadata:
            self._metadata.request_update()

    # --- the pushes ---

    async def run(self) -> None:
        """Request the subscription of metrics, and push these metrics, until cancelled."""
        if not self._enabled:
            await trio.sleep_forever()
        while True:
            await self._until_due()
            async with self._turn:
                # Another task may have sent the request while this one waited for its turn.
                if not self._closing and self._schedule.due <= trio.current_time():
                    await self._next_request()

    async def _until_due(self) -> None:
        while self._closing or self._schedule.due > trio.current_time():
            self._wake = trio.Event()
            # A scope whose deadline has passed is cancelled as it is entered, and after a close
            # the due time passes without a request.
            with trio.move_on_at(math.inf if self._closing else self._schedule.due):
                await self._wake.wait()

    async def _next_request(self) -> None:
        try:
            if self._schedule.state is PushState.PUSH_NEEDED:
                await self._push(self._to_node, terminating=False)
            elif self._is_offered():
                await self._ask()
            else:
                self._schedule.lost(trio.current_time())
        except UnsupportedVersionError as error:
            # This broker has no receiver. Another one may have one now or later, so the
            # subscription is requested again.
            self._metrics.select(())
            self._failed(error)
            self._schedule.withdrawn(trio.current_time())
        except TrikafkaError as error:
            self._failed(error)

    def _failed(self, error: TrikafkaError) -> None:
        """Record that a request failed; send the next one to another broker."""
        self._note(error)
        self._leave()
        self._schedule.lost(trio.current_time())
        _log.debug("the metrics of this client were not pushed: %s", error)

    def _leave(self) -> None:
        """Choose another broker for the next request, if there is one."""
        if self._node is not None:
            self._left = self._node.node_id
            self._node = None

    def _note(self, error: Exception | None) -> None:
        """Record how a request ended, for the statistics."""
        self._last_error = error
        if error is None:
            self._failing_since = None
            self._left = None  # that broker may have recovered
        elif self._failing_since is None:
            self._failing_since = trio.current_time()

    async def push_last(self) -> None:
        """Push once more before a close, if there is a connection; take a second at most.

        Errors of the brokers are logged and not raised. When cancelled, the push may or may not
        have arrived.
        """
        self._closing = True
        if not self._schedule.wanted:
            return
        with trio.move_on_after(_LAST_PUSH):
            async with self._turn:
                try:
                    node = self._chosen_node()
                    # An idle connection may have been closed since the last push. Then the general
                    # one serves as well: at the end of a close, no other request is behind it.
                    connection = self._brokers.ready(node, "telemetry") or self._brokers.ready(
                        node, "general"
                    )
                    if connection is not None and self._schedule.wanted:
                        await self._push(connection.request, terminating=True)
                except TrikafkaError as error:
                    self._note(error)
                    _log.debug("the last metrics of this client were not pushed: %s", error)

    async def _push(self, ask: Callable[[Any], Awaitable[Any]], *, terminating: bool) -> None:
        subscription = self._schedule.subscription
        assert subscription is not None
        assert self._schedule.instance_id is not None
        metrics = self._metrics.collect(subscription.delta)
        payload = encode_metrics(self._metrics.resource(), _SCOPE, metrics)
        usable = BY_ID.keys() - self._refused_codecs
        codec = next((BY_ID[code] for code in subscription.codecs if code in usable), BY_ID[0])
        packed = bytes(codec.compress(payload, None))
        if 0 < subscription.max_bytes < len(packed):
            self._note_too_large(len(packed), subscription)
            self._schedule.lost(trio.current_time())
            return
        response = await ask(
            PushTelemetryRequest(
                client_instance_id=self._schedule.instance_id,
                subscription_id=subscription.id,
                terminating=terminating,
                compression_type=codec.id,
                metrics=packed,
            )
        )
        code = response.error_code
        now = trio.current_time()
        if code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
            self._refused_codecs.add(codec.id)
        self._schedule.pushed(code, now)
        self._note(from_code(code, "pushing metrics to the broker") if code else None)
        if not code:
            self._metrics.confirm()
            self._last = now
            self._pushes += 1
        self._check_off()

    def _note_too_large(self, size: int, subscription: Subscription) -> None:
        text = (
            f"the metrics of this client have {size:,} bytes, and the broker accepts at most "
            f"{subscription.max_bytes:,}; subscribe to fewer metrics, or raise the broker's "
            "telemetry.max.bytes"
        )
        self._note(TrikafkaError(text))
        if not self._too_large:
            self._too_large = True
            _log.warning("%s", text)

    # --- the subscription ---

    def _subscribed(self, response: Any) -> None:
        """Apply a broker's response to the schedule and the metrics.

        Raises the error in the response, after it has been applied to the schedule.
        """
        now = trio.current_time()
        pushing = self._enabled and self._schedule.state is not PushState.OFF
        if response.error_code:
            refusal = from_code(response.error_code, "asking for the client instance id")
            self._note(refusal)
            if pushing:
                self._schedule.get_failed(response.error_code, now)
                self._check_off()
            raise refusal
        given: uuid.UUID | None = response.client_instance_id
        if given is not None and given != _NO_ID:
            self._schedule.known_as(given)
        elif self._schedule.instance_id is None:
            raise DamagedResponseError("the broker's response has no client instance id")
        self._note(None)
        if pushing:
            subscription = subscription_of(
                response.subscription_id,
                response.accepted_compression_types or (),
                response.push_interval_ms,
                response.telemetry_max_bytes,
                response.delta_temporality,
                response.requested_metrics or (),
            )
            self._too_large = False
            self._schedule.subscribed(subscription, now, random.random())
            self._metrics.select(subscription.prefixes)
            self._wake.set()

    def _check_off(self) -> None:
        if self._schedule.state is PushState.OFF:
            self._metrics.select(())
            _log.warning(
                "the brokers refuse the metrics of this client, so it pushes no more: %s",
                self._last_error,
            )

    # --- the broker ---

    def _is_offered(self) -> bool:
        """Return whether a connected broker accepts metrics.

        No connection is made just to find that out.
        """
        key = GetTelemetrySubscriptionsRequest.API_KEY
        return any(key in connection.versions for connection in self._brokers.connections())

    async def _to_node(self, message: Any) -> Any:
        return await self._brokers.request(self._chosen_node(), message, purpose="telemetry")

    def _chosen_node(self, lacking: Container[int] = ()) -> Node:
        """Return the broker of the last request if it is still in the cluster, or choose another.

        A broker in ``lacking`` is never chosen. The broker at which a request failed last is chosen
        only if there is no other.
        """
        nodes = {
            number: node
            for number, node in self._metadata.snapshot.nodes.items()
            if number not in lacking
        }
        chosen = self._node
        if chosen is not None:
            known = nodes.get(chosen.node_id)
            if known is not None and (known.host, known.port) == (chosen.host, chosen.port):
                return chosen
        key = GetTelemetrySubscriptionsRequest.API_KEY
        offering = {
            connection.node.node_id
            for connection in self._brokers.connections()
            if key in connection.versions
        }
        others = [node for node in nodes.values() if node.node_id != self._left]
        connected = [node for node in others if node.node_id in offering]
        candidates = connected or others or list(nodes.values())
        if not candidates:
            raise KafkaConnectionError("the cluster names no broker, so no metrics are pushed")
        self._node = random.choice(candidates)
        return self._node

    def statistics(self) -> MetricsPush | None:
        """Return the state of the pushes; ``None`` for a client that pushes no metrics."""
        if not self._enabled:
            return None
        schedule = self._schedule
        now = trio.current_time()
        subscription = schedule.subscription
        return MetricsPush(
            state=schedule.state.value,
            client_instance_id=schedule.instance_id,
            broker=self._node,
            metrics=()
            if subscription is None
            else tuple(prefix or "*" for prefix in subscription.prefixes),
            interval=None if subscription is None else subscription.interval,
            next=None if schedule.state is PushState.OFF else max(0.0, schedule.due - now),
            last=None if self._last is None else now - self._last,
            pushes=self._pushes,
            last_error=self._last_error,
            failing=None if self._failing_since is None else now - self._failing_since,
        )
