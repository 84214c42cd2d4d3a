"""Delegation tokens (KIP-48, KIP-373): values, requests and responses."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..._wire.extra_messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
)
from ...config.whole import is_number
from ...errors import ConfigurationError, from_code
from .acls import check_principal

#: Stands for the broker's own limit in a request.
_BROKER_LIMIT = -1
#: The first version with an owner other than the requester (KIP-373).
_SINCE_OWNER = 3


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token: a password that a job uses in place of its owner's own.

    A client authenticates with it by SCRAM: ``sasl_plain_username`` is the ``token_id``,
    ``sasl_plain_password`` the :attr:`password`, and ``sasl_scram_token_auth`` is True.

    Attributes:
        token_id: The id.
        owner: The principal that the token stands for, such as ``"User:alice"``.
        requester: The principal that asked for it; ``None`` if the broker does not say.
        issued: When it was made, in ms since the epoch.
        expires: When it expires unless it is renewed, in ms since the epoch.
        latest: The latest time to which it can be renewed, in ms since the epoch.
        renewers: The principals that may renew it besides its owner.
        hmac: The secret; ``repr`` does not show it.
    """

    token_id: str
    owner: str
    requester: str | None
    issued: int
    expires: int
    latest: int
    renewers: tuple[str, ...] = ()
    hmac: bytes = field(default=b"", repr=False)

    @property
    def password(self) -> str:
        """The secret as a password for SCRAM."""
        return base64.b64encode(self.hmac).decode()


def checked_principals(what: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return the checked principals, each once. Raises :exc:`ConfigurationError`."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what} must be a collection of principals, not {given!r}")
    found = list(given)
    for one in found:
        check_principal(f"one of {what}", one)
    return tuple(dict.fromkeys(found))


def checked_owner(owner: str | None) -> str | None:
    """Return the checked owner of a token. Raises :exc:`ConfigurationError`."""
    if owner is not None:
        check_principal("owner", owner)
    return owner


def milliseconds(what: str, seconds: float | None) -> int:
    """Return the milliseconds for a request; ``None``: -1. Raises :exc:`ConfigurationError`."""
    if seconds is None:
        return _BROKER_LIMIT
    if not is_number(seconds) or not 0 <= seconds < 1e12:  # NaN is neither
        raise ConfigurationError(f"{what} must be a number of seconds from 0, not {seconds!r}")
    return int(seconds * 1000)


def secret_of(token: DelegationToken | bytes) -> bytes:
    """Return the secret of a token. Raises :exc:`ConfigurationError`, without the secret."""
    secret = token.hmac if isinstance(token, DelegationToken) else token
    if not isinstance(secret, bytes) or not secret:
        raise ConfigurationError(
            "a token is what create_delegation_token returned, or its hmac in bytes, not a "
            f"{type(token).__name__}{' without its secret' if not secret else ''}"
        )
    return secret


def create_request(
    owner: str | None, renewers: Iterable[str], lifetime_ms: int
) -> CreateDelegationTokenRequest:
    """Return a CreateDelegationToken request."""
    kind, name = _split(owner) if owner is not None else (None, None)
    request = CreateDelegationTokenRequest
    return request(
        min_version=0 if owner is None else _SINCE_OWNER,
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            request.CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in map(_split, renewers)
        ],
        max_lifetime_ms=lifetime_ms,
    )


def describe_request(owners: Iterable[str] | None) -> DescribeDelegationTokenRequest:
    """Return a DescribeDelegationToken request; ``None`` stands for all tokens."""
    request = DescribeDelegationTokenRequest
    return request(
        owners=None
        if owners is None
        else [
            request.DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_split, owners)
        ]
    )


def read_created(response: Any, renewers: tuple[str, ...]) -> DelegationToken:
    """Return the token in a CreateDelegationToken response. Raises its error."""
    if response.error_code:
        raise from_code(
            response.error_code, "creating a delegation token", operation="CreateTokens"
        )
    return DelegationToken(
        response.token_id,
        _joined(response.principal_type, response.principal_name),
        _requester(response),
        response.issue_timestamp_ms,
        response.expiry_timestamp_ms,
        response.max_timestamp_ms,
        renewers,
        bytes(response.hmac),
    )


def read_described(response: Any) -> list[DelegationToken]:
    """Return the tokens in a DescribeDelegationToken response. Raises its error."""
    if response.error_code:
        raise from_code(
            response.error_code, "describing delegation tokens", operation="DescribeTokens"
        )
    tokens = (
        DelegationToken(
            each.token_id,
            _joined(each.principal_type, each.principal_name),
            _requester(each),
            each.issue_timestamp,
            each.expiry_timestamp,
            each.max_timestamp,
            tuple(_joined(one.principal_type, one.principal_name) for one in each.renewers),
            bytes(each.hmac),
        )
        for each in response.tokens
    )
    return sorted(tokens, key=lambda token: (token.owner, token.issued, token.token_id))


def read_expiry(response: Any, doing: str) -> int:
    """Return the time in a response about a token, in ms since the epoch. Raises its error."""
    if response.error_code:
        raise from_code(response.error_code, f"{doing} a delegation token")
    return int(response.expiry_timestamp_ms)


def _requester(token: Any) -> str | None:
    name = getattr(token, "token_requester_principal_name", None)
    return _joined(token.token_requester_principal_type, name) if name else None


def _split(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _joined(kind: str, name: str) -> str:
    return f"{kind}:{name}"
