"""The built-in plugin of a share consumer: its request managers."""

from __future__ import annotations

from typing import Protocol

from ... import interfaces
from ..._managers.cluster.builtin import Builtin
from ..._managers.group.membership_base import GroupRequests
from ..._managers.group.membership_events import MembershipEvents
from ..._managers.share.fetch import ShareFetcher
from ..._managers.share.membership import ShareMembership
from ..._net.brokers import Brokers
from ..._wire.compression import Codecs
from .core import ShareCore


class ShareClient(interfaces.ShareConsumerContext, Protocol):
    """A share consumer's context, with trikafka's own objects in it."""

    @property
    def brokers(self) -> Brokers: ...
    @property
    def core(self) -> ShareCore: ...
    @property
    def membership_events(self) -> MembershipEvents: ...
    @property
    def decompression(self) -> Codecs: ...


class ShareBuiltin(Builtin):
    """The request managers of a share consumer."""

    @staticmethod
    def _share_membership(client: ShareClient) -> interfaces.ShareMembershipManager:
        config, core = client.config, client.core
        requests = GroupRequests(config.group_id, client.brokers, client.manager("coordinator"))
        return ShareMembership(
            config,
            core.member,
            core.assignment,
            core.poll_timer,
            requests,
            client.membership_events,
            lambda: core.is_at_work,
            core.deliver,
            core.returned,
            core.buffer.give_back,
        )

    @staticmethod
    def _share_fetch(client: ShareClient) -> interfaces.ShareFetchManager:
        core = client.core
        return ShareFetcher(
            client.config,
            client.brokers,
            client.manager("metadata"),
            core.assignment,
            client.manager("share_membership").member_id,
            core.buffer,
            core.holdings,
            core.wake,
            core.deliver,
            client.start_soon,
            client.decompression,
        )
