"""SASL over Kafka's requests: the mechanism, the credentials, and the conversation.

There is one object for each client. Each (re-)authentication asks for the credentials again, so
that changed ones are used. An error's text has the mechanism and the user's name, never more.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from .._wire.sasl import Mechanism, OAuthBearer, Scram, make_password_mechanism, takes_long
from ..config import ClientConfig
from ..config.extensions import wrong_extension
from ..config.secrets import redacted, secret
from ..error_codes import ErrorCode
from ..errors import (
    AuthenticationError,
    ConfigurationError,
    HandshakeError,
    KafkaConnectionError,
    TrikafkaError,
    from_code,
)
from ..errors.cut_off import await_user_call
from ..errors.groups import every, members, outlined, unwrapped
from ..errors.peer_text import peer_text
from ..types import Node, OAuthToken
from .session import Ask, CredentialsUnavailableError

if TYPE_CHECKING:
    from .oauth import ClientCredentials

#: A factory of a plugin: it makes the mechanism for one authentication with a broker.
MechanismFactory = Callable[[Node], Any]
_MOST_STEPS = 16
_log = logging.getLogger("trikafka.brokers")


class SaslAuthenticator:
    """The authentication of a client with its brokers.

    ``offered`` is a plugin's factory for the mechanism, if there is one.
    """

    def __init__(self, config: ClientConfig, offered: MechanismFactory | None = None) -> None:
        self._config = config
        self._offered = offered
        self._name = config.sasl_mechanism or ""
        self._tokens: ClientCredentials | None = None
        if config.sasl_oauth_token_endpoint_url is not None:
            from .oauth import ClientCredentials  # with HTTP behind it

            self._tokens = ClientCredentials(config)
        self._limiter = trio.CapacityLimiter(4)

    async def check(self) -> None:
        """Read the files that the settings name.

        Raises :exc:`ConfigurationError` for files that cannot be used.
        """
        if self._tokens is not None:
            await self._tokens.check()

    async def __call__(self, ask: Ask, node: Node) -> float | None:
        """Authenticate; see :class:`~trikafka._net.session.Authenticate`.

        Raises :exc:`AuthenticationError`, and what ``ask`` raises.
        """
        # The credentials come first: they may take long, and other requests wait from the first
        # SASL request on.
        mechanism, who = await self._mechanism(node)
        await self._agree(ask, node)
        said: bytes | None = await self._step(node, mechanism.first)
        if said is None:
            raise HandshakeError(f"{self._name} with {node}: the mechanism's first() returned None")
        for _ in range(_MOST_STEPS):
            response = await ask(SaslAuthenticateRequest(auth_bytes=said))
            if response.error_code:
                if self._tokens is not None and isinstance(mechanism, OAuthBearer):
                    self._tokens.refused(mechanism.token)
                raise self._refused(response, node, who)
            challenge = bytes(response.auth_bytes or b"")
            said = await self._respond(node, mechanism, challenge)
            if said is None:
                lifetime = getattr(response, "session_lifetime_ms", 0) or 0
                return lifetime / 1000 if lifetime > 0 else None
        raise HandshakeError(f"{self._name} with {node} did not end within {_MOST_STEPS} steps")

    async def _agree(self, ask: Ask, node: Node) -> None:
        response = await ask(SaslHandshakeRequest(mechanism=self._name))
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offers = peer_text(", ".join(sorted(response.mechanisms or ()))) or "none"
            raise from_code(
                response.error_code,
                f"{node} does not offer {self._name}; it offers: {offers} (sasl_mechanism)",
            )
        if response.error_code:
            hint = (
                "; a port without SASL answers so: security_protocol without SASL_"
                if response.error_code == ErrorCode.ILLEGAL_SASL_STATE
                else ""
            )
            raise from_code(response.error_code, f"{node}, asked for {self._name}{hint}")

    async def _mechanism(self, node: Node) -> tuple[Mechanism, str]:
        """Return the mechanism for one authentication, and the user's name as errors show it."""
        try:
            if self._offered is not None:
                return await _result(self._offered(node)), ""
            if self._name == "GSSAPI":
                return await self._in_thread(lambda: self._kerberos(node)), ""
            if self._name == "OAUTHBEARER":
                token = await self._token()
                return OAuthBearer(
                    token.value, {**(self._config.sasl_oauth_extensions or {}), **token.extensions}
                ), ""
            username, password = await self._credentials()
            token_auth = self._config.sasl_scram_token_auth
            who = f" of {'delegation token' if token_auth else 'user'} {username!r}"
            return make_password_mechanism(self._name, username, password, token=token_auth), who
        # An error of a function of the user or of a plugin, or a value that cannot be used. A
        # nursery in an async function raises its errors in a group.
        except Exception as raised:
            if not holds_text(raised):
                error = unwrapped(raised)
                failure = self._failed(node, error)
                raise failure from (raised if failure is not error else error.__cause__)
        raise self._not_text(node)

    def _failed(self, node: Node, error: BaseException) -> TrikafkaError:
        """Return the error to raise for any error of a source of credentials.

        Another error of trikafka, such as a timeout of a call that a token provider makes, would be
        taken for one of the connection, and the broker would be blamed. A failure that may be over
        soon is retriable.
        """
        if isinstance(error, AuthenticationError | CredentialsUnavailableError):
            return error
        what = f"cannot authenticate with {node} ({self._name}): {_words(error)}"
        return (
            CredentialsUnavailableError(what)
            if every(error, KafkaConnectionError)
            else HandshakeError(what)
        )

    def _not_text(self, node: Node) -> HandshakeError:
        return HandshakeError(
            f"cannot authenticate with {node} ({self._name}): a name, password or token is no "
            "text for UTF-8"
        )

    def _kerberos(self, node: Node) -> Mechanism:
        from .kerberos import Kerberos

        config = self._config
        return Kerberos(
            config.sasl_kerberos_service_name,
            node.host.removesuffix("."),  # the dot of an absolute name in DNS
            config.sasl_kerberos_principal,
            config.sasl_kerberos_keytab,
        )

    async def _credentials(self) -> tuple[str, str]:
        config = self._config
        if config.sasl_credentials is None:
            return config.sasl_plain_username or "", config.sasl_plain_password or ""
        given = await _result(config.sasl_credentials())
        if (
            not isinstance(given, tuple)
            or len(given) != 2
            or not all(isinstance(part, str) for part in given)
        ):
            given = None  # error trackers show the locals of a traceback's frames
            raise ConfigurationError("sasl_credentials must return (name, password), two texts")
        return given[0], secret(given[1])

    async def _token(self) -> OAuthToken:
        if self._tokens is not None:
            return await self._tokens.token()
        assert self._config.sasl_oauth_token_provider is not None
        given = await _result(self._config.sasl_oauth_token_provider())
        if isinstance(given, str):
            return OAuthToken(secret(given))
        if isinstance(given, OAuthToken):
            value, extensions = secret(given.value), secret(given.extensions)
            given = None
            if wrong := wrong_extension(extensions):
                raise ConfigurationError(f"sasl_oauth_token_provider: {wrong}")
            if isinstance(value, str):
                return OAuthToken(value, extensions)
            given = value
        kind = type(given).__name__
        given = None
        raise ConfigurationError(
            f"sasl_oauth_token_provider must return text or an OAuthToken, not {kind}"
        )

    async def _respond(self, node: Node, mechanism: Mechanism, challenge: bytes) -> Any:
        long = isinstance(mechanism, Scram) and takes_long(challenge)
        return await self._step(node, lambda: mechanism.respond(challenge), long)

    async def _in_thread(self, step: Callable[[], Any]) -> Any:
        """Run in a thread what may take long, or hang.

        A cancelled caller does not wait for its end.
        """
        return await trio.to_thread.run_sync(step, limiter=self._limiter, abandon_on_cancel=True)

    async def _step(self, node: Node, step: Callable[[], bytes | None], long: bool = False) -> Any:
        said: Any = b""
        try:
            if self._name == "GSSAPI":  # uses the ticket cache, and perhaps a server
                # In a list: Trio refuses a function that returns a coroutine, as a plugin's may.
                made = await self._in_thread(lambda: [step()])
                return await _result(made.pop())
            said = await (self._in_thread(step) if long else _result(step()))
            encoded = True
        except Exception as raised:
            if not holds_text(raised):
                error = unwrapped(raised)
                if every(error, TrikafkaError):
                    failure = self._failed(node, error)
                    raise failure from (raised if failure is not error else error.__cause__)
                # A mechanism's own words are those of a ValueError; others need their class.
                said_why = redacted(f"{error}") if type(error) is ValueError else _words(error)
                raise HandshakeError(f"{self._name} with {node}: {said_why}") from raised
            encoded = False
        if not encoded:
            raise self._not_text(node)
        if said is not None and not isinstance(said, bytes):
            kind = type(said).__name__
            said = None
            raise HandshakeError(
                f"{self._name} with {node}: the mechanism returned {kind}, not bytes"
            )
        return secret(said)

    def _refused(self, response: Any, node: Node, who: str) -> AuthenticationError:
        detail = f"{node} refused the credentials{who} ({self._name})"
        if response.error_message:
            detail += f": {peer_text(response.error_message)}"
        error = from_code(response.error_code, detail)
        return error if isinstance(error, AuthenticationError) else HandshakeError(str(error))


def holds_text(error: BaseException) -> bool:
    """Return whether an error keeps alive the text that cannot be encoded, perhaps a password.

    It must not be the cause or the context of another error, nor stay in a frame's variables.
    """
    return any(isinstance(each, UnicodeEncodeError) for each in members(error))


async def _result(given: Any) -> Any:
    """Return the result of a function of the user or of a plugin.

    The log shows only the classes of what it raises when it is cut off: a text may hold a password.
    """
    if not inspect.isawaitable(given):
        return given
    return await await_user_call("a source of credentials", lambda: given, _log, _classes)


def _classes(error: BaseException) -> str:
    return ", ".join(type(each).__name__ for each in members(error))


def _words(error: BaseException) -> str:
    """Return the class and the text of an error of other code, without secrets in addresses."""
    text = redacted(outlined(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
