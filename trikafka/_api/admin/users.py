"""The passwords of SCRAM users: values, requests and responses.

A password never leaves this process: what the cluster stores is made here by RFC 5802 from the
password and a random salt.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import trio
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

from ...config.text import plain_text
from ...config.whole import is_whole, whole
from ...errors import ConfigurationError, ErrorCode, TrikafkaError, from_code
from ..client.option_parsing import is_name, names_of
from .messages import named
from .routing import Parts

ScramMechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
# Kafka's numbers, and the hash functions.
_NUMBERS: dict[ScramMechanism, int] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {number: name for name, number in _NUMBERS.items()}
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: The limits of brokers.
_LEAST_ITERATIONS, _MOST_ITERATIONS = 4_096, 16_384
_SALT_BYTES = 24


@dataclass(frozen=True, slots=True, order=True)
class ScramCredential:
    """The mechanism and iterations of a user's password; the cluster reveals no more.

    Attributes:
        mechanism: ``"SCRAM-SHA-256"`` or ``"SCRAM-SHA-512"``; ``"unknown"`` for one of a later
            release.
        iterations: How often the password was hashed.
    """

    mechanism: ScramMechanism | Literal["unknown"]
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramPassword:
    """A password to set for a user.

    Attributes:
        password: The password; ``repr`` does not show it.
        mechanism: ``"SCRAM-SHA-256"`` or ``"SCRAM-SHA-512"``. A user may have one for each.
        iterations: How often the password is hashed: 4096 to 16384.
    """

    password: str = field(repr=False)
    mechanism: ScramMechanism = "SCRAM-SHA-512"
    iterations: int = 8_192

    def __post_init__(self) -> None:
        # No error here shows the password.
        if not is_name(self.password):
            raise ConfigurationError(
                "the password must be a text that is not empty and that UTF-8 can encode"
            )
        _check_mechanism(self.mechanism)
        object.__setattr__(self, "iterations", whole(self.iterations))
        if not is_whole(self.iterations, _LEAST_ITERATIONS, _MOST_ITERATIONS):
            raise ConfigurationError(
                f"iterations must be a whole number from {_LEAST_ITERATIONS} to "
                f"{_MOST_ITERATIONS}, not {self.iterations!r}"
            )


@dataclass(frozen=True, slots=True)
class ScramRemoval:
    """The removal of a user's password for one mechanism.

    Attributes:
        mechanism: ``"SCRAM-SHA-256"`` or ``"SCRAM-SHA-512"``.
    """

    mechanism: ScramMechanism = "SCRAM-SHA-512"

    def __post_init__(self) -> None:
        _check_mechanism(self.mechanism)


def _check_mechanism(value: object) -> None:
    if value not in _NUMBERS:
        known = " or ".join(get_args(ScramMechanism))
        raise ConfigurationError(f"mechanism is {known}, not {value!r}")


ScramChange: TypeAlias = ScramPassword | ScramRemoval
UserChanges: TypeAlias = dict[str, ScramChange]


def checked_changes(changes: Mapping[str, ScramChange]) -> UserChanges:
    """Return the changes by user. Raises :exc:`ConfigurationError`, without any password."""
    if not isinstance(changes, Mapping):
        raise ConfigurationError(
            "changes must be a mapping of users to ScramPassword or ScramRemoval, not a "
            f"{type(changes).__name__}"
        )
    names_of("users", changes)
    for user, change in changes.items():
        if not isinstance(change, ScramPassword | ScramRemoval):
            raise ConfigurationError(
                f"the change of user {user!r} must be a ScramPassword or a ScramRemoval, not a "
                f"{type(change).__name__}"
            )
    return {plain_text(user): change for user, change in changes.items()}


def salted_password(change: ScramPassword, salt: bytes) -> bytes:
    """Return the SaltedPassword of RFC 5802.

    As in Kafka's own tools the password is taken as UTF-8, without SASLprep: clients of Java and
    librdkafka do the same.
    """
    return hashlib.pbkdf2_hmac(
        _HASHES[change.mechanism], change.password.encode(), salt, change.iterations
    )


class Salting:
    """The salted passwords of one call, each made once for all of its attempts."""

    def __init__(self, changes: UserChanges) -> None:
        self._changes = changes
        self._made: dict[str, tuple[bytes, bytes]] = {}
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Salt the passwords in threads: each takes some milliseconds of computing.

        When cancelled, the next run goes on with the passwords that are left. Thousands of them
        take longer than one attempt may.
        """
        await trio.lowlevel.checkpoint()
        for user, change in self._changes.items():
            if isinstance(change, ScramPassword) and user not in self._made:
                salt = secrets.token_bytes(_SALT_BYTES)
                self._made[user] = (
                    salt,
                    await trio.to_thread.run_sync(
                        salted_password,
                        change,
                        salt,
                        limiter=self._limiter,
                        abandon_on_cancel=True,
                    ),
                )

    def request(self, users: Iterable[str]) -> AlterUserScramCredentialsRequest:
        """Return an AlterUserScramCredentials request about these users."""
        kind = AlterUserScramCredentialsRequest
        deletions, upsertions = [], []
        for user in users:
            change = self._changes[user]
            number = _NUMBERS[change.mechanism]
            if isinstance(change, ScramRemoval):
                deletions.append(kind.ScramCredentialDeletion(name=user, mechanism=number))
                continue
            salt, salted = self._made[user]
            upsertions.append(
                kind.ScramCredentialUpsertion(
                    name=user,
                    mechanism=number,
                    iterations=change.iterations,
                    salt=salt,
                    salted_password=salted,
                )
            )
        return kind(deletions=deletions, upsertions=upsertions)


def describe_request(users: Sequence[str] | None) -> DescribeUserScramCredentialsRequest:
    """Return a DescribeUserScramCredentials request; ``None`` stands for all users."""
    # No users in the request stand for all. A null would, too, but a broker that wants to refuse it
    # fails with a NullPointerException and never responds.
    kind = DescribeUserScramCredentialsRequest
    return kind(users=[kind.UserName(name=name) for name in users or ()])


def read_described(
    response: Any, parts: Parts[str, tuple[ScramCredential, ...]], *, everyone: bool
) -> None:
    """Pass the results of a DescribeUserScramCredentials response to ``parts``.

    Raises the error of the whole response.
    """
    if response.error_code:
        raise from_code(response.error_code, "the SCRAM users", operation="Describe")
    for result in response.results:
        if everyone:
            parts.add(result.user)
        if result.error_code:
            parts.failed(result.user, _error(result, "Describe"))
        else:
            credentials = sorted(
                ScramCredential(_NAMES.get(each.mechanism, "unknown"), each.iterations)
                for each in result.credential_infos
            )
            parts.done(result.user, tuple(credentials))


def read_altered(response: Any, parts: Parts[str, None]) -> None:
    """Pass the results of an AlterUserScramCredentials response to ``parts``."""
    for result in response.results:
        if result.error_code:
            error = _error(result, "Alter")
            parts.failed(result.user, error, made_before=ErrorCode.RESOURCE_NOT_FOUND)
        else:
            parts.done(result.user, None)


def _error(result: Any, operation: str) -> TrikafkaError:
    return from_code(
        result.error_code, named("user", result.user, result.error_message), operation=operation
    )
