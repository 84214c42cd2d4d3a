"""Tokens for OAUTHBEARER from an OAuth 2 endpoint, kept until shortly before they expire.

The grants are the client's credentials (KIP-768) and an assertion that the client signs
(``jwt-bearer``, KIP-1139).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import json
import logging
import math
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any

import trio

from .._wire.sasl import is_token
from ..config import ClientConfig
from ..config.secrets import secret
from ..errors import ConfigurationError, HandshakeError, KafkaConnectionError, TrikafkaError
from ..errors.copies import again
from ..errors.peer_text import peer_text
from ..http_request import Exchange
from ..types import OAuthToken
from . import assertions
from .retry import backoff
from .session import CredentialsUnavailableError
from .tls_context import in_thread_if_long, names_store, trust

#: The share of its life after which a token is renewed.
_RENEW_AFTER = 0.8
_MOST_BYTES = 1 << 20
#: The part of a connection's setup time that one request may take. So a fault of the endpoint is
#: known before the broker would be blamed.
_SHARE = 0.8
#: Statuses of HTTP after which the same request may succeed.
_TOO_SLOW, _TOO_MANY, _ITS_OWN_FAULT = 408, 429, 500
#: Statuses of HTTP for a client that the endpoint does not know.
_WRONG_CLIENT = (400, 401)
_DEFAULT_LIFETIME = 300.0
#: How long (seconds) a token is kept even if a broker refuses it.
_KEPT_FOR = 30.0
#: How long (ms) an endpoint that has refused is not asked again: after the first refusal, and at
#: most after many in a row. Each dial asks for a token, and a client may dial several brokers at
#: once. Without a pause an endpoint would be asked more than once a second, for hours.
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000.0, 10_000.0
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_log = logging.getLogger("trikafka.brokers")


class ClientCredentials:
    """The tokens of one client.

    Tasks that ask at the same time wait for one request, and share its failure.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._url = config.sasl_oauth_token_endpoint_url or ""
        self._limit = config.socket_connection_setup_timeout_ms / 1000 * _SHARE
        self._token = OAuthToken("")
        # By time.monotonic:
        self._received_at = 0.0
        self._renew_at = 0.0
        self._expires_at = 0.0
        self._system: ssl.SSLContext | None = None
        self._asking = trio.Lock()
        self._requests = 0
        self._failure: Exception | None = None  # of the last request
        self._refusals = 0  # in a row
        self._ask_from = 0.0  # by time.monotonic: not asked again before, after a refusal
        # A limiter of its own: an endpoint that hangs must not use up the program's threads. One
        # request is made at a time. The second thread serves while the first is stuck in the
        # resolution of a name.
        self._threads = trio.CapacityLimiter(2)
        if _is_in_the_clear(self._url):
            _log.warning(
                "the token endpoint %s is used without TLS: the client's secret and its tokens can "
                "be read on the way; give sasl_oauth_token_endpoint_url with https://",
                _place(self._url),
            )

    async def check(self) -> None:
        """Read the files that the settings name.

        Raises:
            ConfigurationError: A file cannot be used.
        """
        config = self._config
        if config.sasl_oauth_cafile is not None:
            await in_thread_if_long(
                self._context, names_store(config.sasl_oauth_cafile), self._threads
            )
        if config.sasl_oauth_grant_type != "jwt-bearer":
            return
        if config.sasl_oauth_assertion_private_key_passphrase is None:
            assertions.assertion(config)
        else:
            # The writer of the key chose how long its passphrase takes to check.
            await trio.to_thread.run_sync(
                assertions.assertion, config, limiter=self._threads, abandon_on_cancel=True
            )

    async def token(self) -> OAuthToken:
        """Return a valid token.

        On cancellation the request in progress is cut off, and nothing is left of it.

        Raises:
            HandshakeError: The endpoint refuses.
            CredentialsUnavailableError: The endpoint is unreachable, slow or has trouble.
        """
        before = self._requests
        async with self._asking:
            if self._token.value and time.monotonic() < self._renew_at:
                return self._token
            if self._failure is not None and (
                self._requests > before or time.monotonic() < self._ask_from
            ):
                # This task has waited for a request that failed, or the endpoint has just refused.
                # It makes no further request, or the last of many tasks would wait for as many
                # requests.
                if time.monotonic() >= self._expires_at:
                    raise again(self._failure)
                return self._token
            try:
                await self._renew()
            except (HandshakeError, KafkaConnectionError) as error:
                self._failure = again(error)
                if isinstance(error, HandshakeError):
                    self._refusals += 1
                    now = time.monotonic()
                    self._ask_from = now + backoff(
                        self._refusals, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS
                    )
                    if now < self._expires_at:
                        self._ask_from = min(self._ask_from, self._expires_at)
                if time.monotonic() >= self._expires_at:
                    raise
                _log.warning("the token before is used until it expires: %s", error)
            else:
                self._refusals = 0
            return self._token

    def refused(self, token: str) -> None:
        """Forget a token that a broker has refused: the next authentication gets a new one.

        A token that was received in the last half minute is kept.
        """
        # It may have been revoked, or its issuer has changed its keys. Kept, it would be offered
        # and refused for the rest of its life. If the broker refuses a token that is new, it
        # probably refuses the next one, too. Without a lower bound each authentication, of each
        # connection, would cost the endpoint a request.
        old = time.monotonic() >= self._received_at + _KEPT_FOR
        if token == self._token.value and old:
            self._token = OAuthToken("")
            self._expires_at = 0.0

    async def _renew(self) -> None:
        exchange = Exchange(self._limit)
        answer: tuple[OAuthToken, float] | TrikafkaError
        answer = CredentialsUnavailableError(
            f"the token endpoint {_place(self._url)} did not respond within {self._limit:g} s"
        )
        self._requests += 1
        self._failure = None
        asked_at = time.monotonic()
        with trio.move_on_after(self._limit):
            try:
                answer = await trio.to_thread.run_sync(
                    self._ask, exchange, limiter=self._threads, abandon_on_cancel=True
                )
            finally:
                exchange.end()
        if isinstance(answer, TrikafkaError):
            raise answer
        self._token, lifetime = answer
        self._received_at = time.monotonic()
        # A life counts from the moment at which the endpoint made the token. The endpoint may have
        # done that long before its response arrives, but not before the request.
        self._renew_at = asked_at + lifetime * _RENEW_AFTER
        self._expires_at = asked_at + lifetime

    def _context(self) -> ssl.SSLContext:
        """Return the context for TLS with the endpoint.

        The system's authorities take some 10 ms to load, once.
        """
        given = self._config.sasl_oauth_cafile
        if given is None and self._system is not None:
            return self._system
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if given is not None:
            trust(context, "sasl_oauth_cafile", given)  # each time: a file may have changed
        elif self._url.lower().startswith("https:"):
            context.load_default_certs()
            self._system = context
        return context

    def _ask(self, exchange: Exchange) -> tuple[OAuthToken, float] | TrikafkaError:
        """Return a token and its life (seconds), or why there is none. Runs in a thread.

        An error is returned, not raised: a raised error keeps its frames, whose variables hold
        secrets.
        """
        place = _place(self._url)
        try:
            with exchange.open(self._request(), self._context()) as response:
                content = secret(response.read(_MOST_BYTES))
                if response.length and len(content) < _MOST_BYTES:
                    raise http.client.IncompleteRead(b"", response.length)
                return self._read(json.loads(content))
        except ConfigurationError as error:
            return HandshakeError(f"the token endpoint {place} was not asked: {error}")
        except urllib.error.HTTPError as error:
            with error:
                text = f"the token endpoint {place} refused: {_reason(error)}"
            if error.code in _WRONG_CLIENT:
                text += self._encoding()
            transient = error.code in (_TOO_SLOW, _TOO_MANY) or error.code >= _ITS_OWN_FAULT
            return CredentialsUnavailableError(text) if transient else HandshakeError(text)
        except http.client.IncompleteRead:
            return CredentialsUnavailableError(
                f"the token endpoint {place} closed the connection within its response"
            )
        except OSError as error:
            why = getattr(error, "reason", None) or error
            if isinstance(why, ssl.SSLCertVerificationError):
                said = peer_text(why.verify_message)
                return HandshakeError(
                    f"the certificate of the token endpoint {place} is not accepted: {said} "
                    "(sasl_oauth_cafile names the authorities to trust there)"
                )
            return CredentialsUnavailableError(
                f"the token endpoint {place} cannot be reached{_proxy(self._url)}: {peer_text(why)}"
            )
        except (ValueError, RecursionError, http.client.HTTPException) as error:
            # Its text may contain the address, which may contain a secret.
            return HandshakeError(
                f"the token endpoint {place} gave no token: {type(error).__name__}"
            )

    def _request(self) -> urllib.request.Request:
        config = self._config
        fields = {"grant_type": "client_credentials"}
        headers = {"Accept": "application/json"}
        if config.sasl_oauth_grant_type == "jwt-bearer":
            fields = {"grant_type": _JWT_BEARER, "assertion": assertions.assertion(config)}
        if config.sasl_oauth_scope is not None:
            fields["scope"] = config.sasl_oauth_scope
        if config.sasl_oauth_client_id is not None:
            pair: Iterable[str] = self._client()
            if config.sasl_oauth_header_urlencode:
                pair = map(urllib.parse.quote_plus, pair)
            words = ":".join(pair)
            headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
        return urllib.request.Request(self._url, urllib.parse.urlencode(fields).encode(), headers)

    def _client(self) -> tuple[str, str]:
        config = self._config
        return config.sasl_oauth_client_id or "", config.sasl_oauth_client_secret or ""

    def _encoding(self) -> str:
        """Return how id and secret were sent, if that matters: endpoints do not agree on it."""
        if all(urllib.parse.quote_plus(part) == part for part in self._client()):
            return ""
        if self._config.sasl_oauth_header_urlencode:
            return (
                "; the client's id and secret were sent URL-encoded (RFC 6749): "
                "sasl_oauth_header_urlencode=False sends them as they are"
            )
        return (
            "; the client's id and secret were sent as they are: "
            "sasl_oauth_header_urlencode=True sends them URL-encoded (RFC 6749)"
        )

    def _read(self, answer: Any) -> tuple[OAuthToken, float] | HandshakeError:
        place = _place(self._url)
        if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
            return HandshakeError(f"the token endpoint {place} answered without an access_token")
        token = secret(answer["access_token"])
        if not is_token(token):  # kept, it would fail each authentication of its life
            return HandshakeError(
                f"the token endpoint {place} answered with an access_token that is empty, not ASCII, "
                "or has spaces or control characters"
            )
        lifetime = math.nan
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            lifetime = float(answer.get("expires_in") or _life_of(token))
        # NaN and infinity, which Python's JSON reads, would keep a token for ever.
        if not math.isfinite(lifetime) or lifetime < 0:
            return HandshakeError(
                f"the token endpoint {place} answered with an expires_in that is not a number of "
                "seconds"
            )
        return OAuthToken(token), lifetime


def _life_of(token: str) -> float:
    """Return the seconds until a token expires by its own claims, or the usual ones without them.

    An endpoint need not say ``expires_in`` (RFC 6749, section 5.1). Most tokens are JSON web
    tokens, which the brokers take for expired after the time of the claim ``exp``.
    """
    try:
        part = secret(token.split(".")[1])
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        expires = float(claims["exp"])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return _DEFAULT_LIFETIME
    # The endpoint's clock wrote both claims. This machine's clock may be wrong by more than the
    # life of a token.
    issued = math.nan
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        issued = float(claims.get("iat"))
    life = expires - (issued if math.isfinite(issued) else time.time())
    return max(0.0, life) if math.isfinite(life) else _DEFAULT_LIFETIME


def _is_in_the_clear(url: str) -> bool:
    """Return whether data sent to this URL can be read on a network."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme.lower() != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def _proxy(url: str) -> str:
    """Return where the proxy comes from that requests to this URL go through; empty without one.

    The proxy's own address may hold a password.
    """
    parts = urllib.parse.urlsplit(url)
    scheme = parts.scheme.lower()
    if not urllib.request.getproxies().get(scheme) or urllib.request.proxy_bypass(parts.netloc):
        return ""
    return f" through the proxy of the environment ({scheme}_proxy)"


def _place(url: str) -> str:
    """Return the URL without its parts that may be secret."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return "(its address cannot be read)"
    if not parts.hostname:
        return "(its address cannot be read)"
    return f"{parts.scheme}://{parts.hostname}{f':{port}' if port else ''}{parts.path}"


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the status, and OAuth's own words for it (RFC 6749, section 5.2)."""
    try:
        said = json.loads(error.read(_MOST_BYTES))
        words = [peer_text(said[name]) for name in ("error", "error_description") if name in said]
    except (OSError, ValueError, TypeError, RecursionError, http.client.HTTPException):
        words = []
    return " ".join([f"HTTP {error.code}", *(f"({word})" for word in words)])
