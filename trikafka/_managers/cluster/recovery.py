"""The brokers to ask for metadata, so that a cluster that has moved is found again.

It implements KIP-899 and KIP-1102, and sends nothing.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable

import trio

from ..._net.addresses import parse_bootstrap
from ..._net.brokers import Brokers
from ..._net.reminders import Reminder
from ...config import AdminConfig, ClientConfig
from ...error_codes import ErrorCode
from ...errors import TrikafkaError
from ...errors.copies import again
from ...types import Node

#: The seconds after a rebootstrap in which a broker's order, or a misrouted connection, closes no
#: connections: the first time, and at most. It doubles each time.
_REST = 1.0
_LONGEST_REST = 30.0
#: After this many seconds without an order the next one counts as the first.
_QUIET = 10.0
#: For this many seconds a node that did not respond in time is asked after the others.
_LAST_FOR = 10.0
_log = logging.getLogger("trikafka.metadata")


class Recovery:
    """The bootstrap addresses, and how long no broker has responded."""

    def __init__(self, config: ClientConfig, brokers: Brokers) -> None:
        self.addresses = (
            parse_bootstrap(config.bootstrap_controllers, "bootstrap_controllers")
            if isinstance(config, AdminConfig) and config.asks_controllers
            else parse_bootstrap(config.bootstrap_servers)
        )
        self._brokers = brokers
        self._enabled = config.metadata_recovery_strategy == "rebootstrap"
        self._patience = config.metadata_recovery_rebootstrap_trigger_ms / 1000
        self._again_at = 0.0  # the earliest time of the next rebootstrap for lack of a response
        self._failing_since: float | None = None
        # By host and port: when a node was overtaken by another one, because it did not respond.
        self._overtaken: dict[tuple[str, int], float] = {}
        #: The reason why no broker responded; ``None`` after a response.
        self.last_error: TrikafkaError | None = None
        # True if a connection was misrouted since the last rebootstrap (KIP-1242).
        self.is_misrouted = False
        self._rest = 0.0
        self._rests_until = -math.inf
        # Bootstrap addresses respond while the known ones lead astray, so no response ends this.
        self._reminder = Reminder()

    def order(self, known: Iterable[Node]) -> list[Node]:
        """Return the nodes to ask, in order."""
        # How a lost cluster is found again. A client that has run for long knows its brokers by
        # address. If the whole cluster moves, all of these addresses are wrong, and only the
        # bootstrap names lead to the new ones. Three things follow:
        # * The bootstrap addresses are asked in every round, in between the known brokers
        #   (`_interleaved`). A silent node costs a second, so an address is reached within seconds.
        # * An old connection to a bootstrap address may be alive but useless. So when no broker
        #   has responded for `metadata_recovery_rebootstrap_trigger_ms`, all connections are closed
        #   and the names are resolved again (KIP-899, KIP-1102). The time then starts over, so this
        #   happens at most once in that time, and at most once a second: the end of all connections
        #   ends their reconnect back-offs, too.
        # * A broker can order the same with REBOOTSTRAP_REQUIRED (KIP-1102).
        #
        # `metadata_recovery_strategy="none"` switches all of it off: then the known brokers are
        # asked, and the bootstrap addresses only while there are none.
        nodes = list(known)
        random.shuffle(nodes)
        if not self._enabled:
            return self._away_last(nodes) or self.addresses
        now = trio.current_time()
        if (
            self._failing_since is not None
            and now - self._failing_since >= self._patience
            and now >= self._again_at
        ):
            self._again_at = now + _REST
            self._rebootstrap(f"no broker has responded for {now - self._failing_since:.0f} s")
            self._failing_since = now
            return self.addresses + nodes
        return self._away_last(_interleaved(nodes, self.addresses))

    def _away_last(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes with the unreachable and the late ones last: those would cost time.

        A frozen broker counts as unreachable only after seconds of silence. Until then it is last
        here because it was overtaken. A bootstrap address may be the address of such a broker.
        """
        now = trio.current_time()
        self._overtaken = {
            place: when for place, when in self._overtaken.items() if now < when + _LAST_FOR
        }
        away = {(node.host, node.port) for node in self._brokers.outages.unreachable()}
        away.update(self._overtaken)
        return sorted(nodes, key=lambda node: (node.host, node.port) in away)

    def asked_for(self, error: TrikafkaError) -> bool:
        """Return whether the error is REBOOTSTRAP_REQUIRED and rebootstrapping is enabled."""
        return self._enabled and error.code == ErrorCode.REBOOTSTRAP_REQUIRED

    def follow(self) -> list[Node]:
        """Return the nodes to ask after REBOOTSTRAP_REQUIRED; close all connections, if it is time.

        These are the bootstrap addresses; no known broker is among them.
        """
        # The end of all connections ends their reconnect back-offs, too. While addresses lead
        # astray, the bootstrap addresses may name them again and again: then each misrouted
        # connection would be dialled a dozen times a second. So connections are closed once in a
        # time that doubles. The bootstrap addresses are asked every time.
        if trio.current_time() >= self._rests_until:
            self._rebootstrap("a broker asks for it")
        self.is_misrouted = False
        return self.addresses

    def misrouted(self) -> None:
        """Record that the address of a known broker leads to another one."""
        self.is_misrouted = self._enabled and trio.current_time() >= self._rests_until

    def overtaken(self, node: Node) -> None:
        """Record that the next node was asked, because this one had not responded in time."""
        self._overtaken[node.host, node.port] = trio.current_time()

    def in_time(self, node: Node) -> None:
        """Record that this node has responded."""
        self._overtaken.pop((node.host, node.port), None)

    def responded(self) -> None:
        """Record a response to a metadata request."""
        self._failing_since = None
        self.last_error = None

    def failed(self, error: TrikafkaError) -> None:
        """Record that no broker responded, and why."""
        self.last_error = again(error)
        if self._failing_since is None:
            self._failing_since = trio.current_time()

    def _rebootstrap(self, why: str) -> None:
        now = trio.current_time()
        is_due = self._reminder.is_due(now)
        if is_due:
            self._reminder.logged(now)
        _log.log(
            logging.WARNING if is_due else logging.DEBUG,
            "looking for the cluster again at the bootstrap addresses: %s",
            why,
        )
        self.is_misrouted = False
        is_first = now > self._rests_until + _QUIET
        self._rest = _REST if is_first else min(2 * self._rest, _LONGEST_REST)
        self._rests_until = now + self._rest
        self._brokers.disconnect()


def _interleaved(nodes: list[Node], bootstrap: list[Node]) -> list[Node]:
    """Return two known brokers, a bootstrap address, a known broker, an address, and so on.

    So an address is reached soon, even if all known brokers are gone.
    """
    order = nodes[:1]
    addresses = list(bootstrap)
    for node in nodes[1:]:
        order += [node, *addresses[:1]]
        del addresses[:1]
    return order + addresses
