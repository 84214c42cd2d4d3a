"""The removal of members from a group (KIP-345): requests and responses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import LeaveGroupRequest

from ..._net.deadlines import RunningCall
from ...config.text import is_utf8, plain_text
from ...errors import ConfigurationError, ErrorCode, IllegalStateError, from_code
from ...interfaces import CoordinatorKind
from ...types import GroupDescription
from ..client.option_parsing import names_of
from .messages import named
from .routing import Parts, Routing

#: In characters (KIP-800).
_LONGEST_REASON = 255
#: The first version that takes several members, static ones among them.
_SINCE_MEMBERS = 3


@dataclass(frozen=True, slots=True)
class _Identity:
    """A member as a LeaveGroup request names it: by its id, or by the id of a static member."""

    member_id: str = ""
    instance_id: str | None = None


class Removal:
    """The members of one group to remove, over all attempts of a call.

    Args:
        group: The group.
        member_ids: Members by their ids.
        instance_ids: Static members by their own ids.
        reason: The reason for the log of the coordinator (KIP-800).
    """

    def __init__(
        self,
        group: str,
        member_ids: Iterable[str] | None,
        instance_ids: Iterable[str] | None,
        reason: str | None,
    ) -> None:
        if reason is not None and (not isinstance(reason, str) or not is_utf8(reason)):
            raise ConfigurationError(f"reason must be text that UTF-8 can carry, not {reason!r}")
        #: True to remove all members that the group has when it is first described.
        self.everyone = member_ids is None and instance_ids is None
        self._group = group
        # Brokers refuse a longer reason.
        self._reason = None if reason is None else plain_text(reason)[:_LONGEST_REASON]
        self._identities = {
            **{
                each: _Identity(each)
                for each in names_of("member_ids", () if member_ids is None else member_ids)
            },
            **{
                each: _Identity(instance_id=each)
                for each in names_of("instance_ids", () if instance_ids is None else instance_ids)
            },
        }
        self.parts: Parts[str, None] = Parts(self._identities)

    def add_all(self, description: GroupDescription) -> None:
        """Add all members of the described group to those to remove.

        Raises:
            IllegalStateError: The group is of a kind whose members cannot be removed.
        """
        if description.type not in ("classic", "consumer"):
            raise IllegalStateError(
                f"the members of {description.type} group {self._group!r} cannot be removed: "
                "Kafka has this for consumer groups only"
            )
        for member in description.members:
            self._identities[member.instance_id or member.member_id] = _Identity(
                "" if member.instance_id else member.member_id, member.instance_id
            )
        for name in self._identities:
            self.parts.add(name)
        self.everyone = False

    async def attempt(self, routing: Routing, call: RunningCall) -> None:
        """Ask the coordinator to remove those members that earlier attempts did not remove."""
        asked = self.parts.left
        await routing.coordinators(
            call,
            CoordinatorKind.GROUP,
            [self._group] if asked else [],
            lambda groups: self._request(asked),
            lambda response, groups: self._read(response, asked),
            doubt=lambda groups, error: self.parts.doubt(asked, error),
        )

    def _request(self, names: Iterable[str]) -> LeaveGroupRequest:
        identity = LeaveGroupRequest.MemberIdentity
        return LeaveGroupRequest(
            min_version=_SINCE_MEMBERS,
            group_id=self._group,
            members=[
                identity(
                    member_id=self._identities[name].member_id,
                    group_instance_id=self._identities[name].instance_id,
                    reason=self._reason,
                )
                for name in names
            ],
        )

    def _read(self, response: Any, asked: Iterable[str]) -> None:
        if response.error_code:
            raise from_code(response.error_code, f"group {self._group!r}", operation="Read")
        for member in response.members:
            name = member.group_instance_id or member.member_id
            if member.error_code:
                what = f"{named('member', name, None)} of group {self._group!r}"
                error = from_code(member.error_code, what, operation="Read")
                error.retriable = False  # only the member's own heartbeat could fix it
                self.parts.failed(name, error, made_before=ErrorCode.UNKNOWN_MEMBER_ID)
            else:
                self.parts.done(name, None)
        self.parts.check(asked, "LeaveGroup")
