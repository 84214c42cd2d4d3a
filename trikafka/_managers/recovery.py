"""Whom to ask for metadata, so that a cluster is found again that has moved (KIP-899, KIP-1102). It sends nothing.

The bootstrap addresses are asked in between the known brokers, so they are reached soon when brokers are gone. That is not enough
where an old connection holds on to a place that is of no use any more: then all are closed, and the names are resolved anew.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable

import trio

from .._net.addresses import parse_bootstrap
from .._net.brokers import Brokers
from ..config import ClientConfig
from ..error_codes import ErrorCode
from ..errors import TrikafkaError
from ..errors.copies import again
from ..types import Node

_log = logging.getLogger("trikafka.metadata")


class Recovery:
    """Knows the bootstrap addresses, and since when nobody responds."""

    def __init__(self, config: ClientConfig, brokers: Brokers) -> None:
        self.addresses = parse_bootstrap(config.bootstrap_servers)
        self._brokers = brokers
        self._on = config.metadata_recovery_strategy == "rebootstrap"
        self._patience = config.metadata_recovery_rebootstrap_trigger_ms / 1000
        self._failing_since: float | None = None
        self.last_error: TrikafkaError | None = None  #: why nobody responded, since somebody did
        self._told = False  # that the cluster is looked for anew, since somebody responded

    def order(self, known: Iterable[Node]) -> list[Node]:
        """Whom to ask, one after the other."""
        nodes = list(known)
        random.shuffle(nodes)
        if not self._on:
            return nodes or self.addresses
        now = trio.current_time()
        if self._failing_since is not None and now - self._failing_since >= self._patience:
            self._begin_anew(f"nobody has responded for {now - self._failing_since:.0f} s")
            self._failing_since = now
            return self.addresses + nodes
        return _interleaved(nodes, self.addresses)

    def asked_for(self, error: TrikafkaError) -> bool:
        """Whether this error is a broker's order to begin anew with the bootstrap addresses, which is followed."""
        return self._on and error.code == ErrorCode.REBOOTSTRAP_REQUIRED

    def follow(self) -> list[Node]:
        """Whom to ask after such an error: nobody who is known already."""
        self._begin_anew("a broker asks for it")
        return self.addresses

    def responded(self) -> None:
        """Somebody did."""
        self._failing_since, self.last_error, self._told = None, None, False

    def failed(self, error: TrikafkaError) -> None:
        """Nobody did, because of ``error``."""
        self.last_error = again(error)
        if self._failing_since is None:
            self._failing_since = trio.current_time()

    def _begin_anew(self, why: str) -> None:
        _log.log(
            logging.DEBUG if self._told else logging.WARNING, "looking for the cluster anew at the bootstrap addresses: %s", why
        )
        self._told = True
        self._brokers.disconnect()


def _interleaved(nodes: list[Node], bootstrap: list[Node]) -> list[Node]:
    """Two known brokers, a bootstrap address, a known broker, an address ...: were all that are known gone, one is reached soon."""
    order, addresses = nodes[:1], list(bootstrap)
    for node in nodes[1:]:
        order += [node, *addresses[:1]]
        del addresses[:1]
    return order + addresses
