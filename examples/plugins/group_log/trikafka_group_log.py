"""A log, with counts, of the membership of every consumer of a program.

Logged are partitions that are assigned, revoked and lost, and clients that open, fail and close.
"""

import logging
from collections import Counter

import trio

from trikafka import RebalanceListener, hookimpl
from trikafka.interfaces import MembershipObserver

_log = logging.getLogger("trikafka_group_log")


class GroupLog:
    """The plugin.

    ``counts`` is for a metrics endpoint. Its keys are opened, failed, closed, assigned, revoked,
    lost (the last three count partitions), and each kind of ``trikafka.MembershipEvent``.
    """

    def __init__(self):
        self.counts = Counter()

    @hookimpl
    def trikafka_rebalance_listener(self, context):
        return _Listener(self, context.config.client_id)

    @hookimpl
    def trikafka_observer(self, context):
        return _Observer(self, context.config.client_id)

    def note(self, client, what, count=1, detail=""):
        self.counts[what] += count
        _log.info("%s: %s %s", client, what, detail)


class _Listener(RebalanceListener):
    def __init__(self, plugin, client):
        self._plugin = plugin
        self._client = client

    async def on_partitions_assigned(self, partitions):
        self._plugin.note(
            self._client, "assigned", len(partitions), ", ".join(map(str, partitions))
        )

    async def on_partitions_revoked(self, partitions):
        self._plugin.note(self._client, "revoked", len(partitions), ", ".join(map(str, partitions)))

    async def on_partitions_lost(self, partitions):
        self._plugin.note(self._client, "lost", len(partitions), ", ".join(map(str, partitions)))


class _Observer(MembershipObserver):
    def __init__(self, plugin, client):
        self._plugin = plugin
        self._client = client

    def opened(self, context):
        self._since = trio.current_time()
        self._plugin.note(self._client, "opened")

    def membership_changed(self, event):
        self._plugin.note(self._client, event.kind, detail=event.reason)

    def failed(self, error):
        self._plugin.note(self._client, "failed", detail=str(error))

    def closed(self):
        self._plugin.note(
            self._client, "closed", detail=f"after {trio.current_time() - self._since:.1f} s"
        )


plugin = GroupLog()
