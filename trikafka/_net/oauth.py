"""Tokens for OAUTHBEARER by OAuth 2's client credentials (KIP-768), kept until shortly before they expire."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import trio

from ..config import ClientConfig
from ..config.secrets import secret
from ..errors import HandshakeError, KafkaConnectionError, TrikafkaError
from ..types import OAuthToken

#: A token is asked for anew when so much of its life is over.
_RENEW_AFTER = 0.8
_MOST_BYTES = 1 << 20
#: Statuses of HTTP after which the same request may succeed.
_TOO_MANY, _ITS_OWN_FAULT = 429, 500
_log = logging.getLogger("trikafka.brokers")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Wherever a redirect leads, the client's secret would go there too."""

    def redirect_request(self, *args: Any) -> None:
        """Do not follow it: the response is an error, as any that is not a token."""


_opener = urllib.request.build_opener(_NoRedirects)


class ClientCredentials:
    """Asks the endpoint for tokens. Tasks that ask at the same time wait for one request."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._token = OAuthToken("")
        self._renew_at = self._expires_at = 0.0  # by time.monotonic
        self._asking = trio.Lock()

    async def token(self) -> OAuthToken:
        """A token that is good. Raises :exc:`HandshakeError` if the endpoint gives none, :exc:`KafkaConnectionError` if it is away.

        Cancelled: nothing is left.
        """
        async with self._asking:
            if not self._token.value or time.monotonic() >= self._renew_at:
                try:
                    await self._renew()
                except (HandshakeError, KafkaConnectionError) as error:
                    if time.monotonic() >= self._expires_at:
                        raise
                    _log.warning("the token before is used until it expires: %s", error)
            return self._token

    async def _renew(self) -> None:
        answer = await trio.to_thread.run_sync(self._ask, abandon_on_cancel=True)
        if isinstance(answer, TrikafkaError):
            raise answer
        self._token, lifetime = answer
        now = time.monotonic()
        self._renew_at, self._expires_at = now + lifetime * _RENEW_AFTER, now + lifetime

    def _ask(self) -> tuple[OAuthToken, float] | TrikafkaError:
        """A token and its life (seconds), or why there is none: an error raised here would hold on to frames that show secrets."""
        config, url = self._config, self._config.sasl_oauth_token_endpoint_url or ""
        fields = {"grant_type": "client_credentials"}
        if config.sasl_oauth_scope is not None:
            fields["scope"] = config.sasl_oauth_scope
        pair = ":".join(map(urllib.parse.quote_plus, (config.sasl_oauth_client_id or "", config.sasl_oauth_client_secret or "")))
        headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", "Accept": "application/json"}
        try:
            request = urllib.request.Request(url, urllib.parse.urlencode(fields).encode(), headers)
            with _opener.open(request, timeout=config.socket_connection_setup_timeout_ms / 1000) as response:
                return self._read(json.loads(response.read(_MOST_BYTES)))
        except urllib.error.HTTPError as error:
            with error:
                text = f"the token endpoint {_place(url)} refused: {_reason(error)}"
            again = error.code == _TOO_MANY or error.code >= _ITS_OWN_FAULT
            return KafkaConnectionError(text) if again else HandshakeError(text)
        except OSError as error:  # it may be back in a moment
            why = getattr(error, "reason", None) or error
            return KafkaConnectionError(f"the token endpoint {_place(url)} cannot be reached: {why}")
        except (ValueError, http.client.HTTPException) as error:  # whose words may hold the address, and what is secret in it
            return HandshakeError(f"the token endpoint {_place(url)} gave no token: {type(error).__name__}")

    def _read(self, answer: Any) -> tuple[OAuthToken, float] | HandshakeError:
        place = _place(self._config.sasl_oauth_token_endpoint_url or "")
        if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
            return HandshakeError(f"the token endpoint {place} answered without an access_token")
        try:
            lifetime = float(answer.get("expires_in") or 300)
        except (TypeError, ValueError):
            return HandshakeError(f"the token endpoint {place} answered with an expires_in that is no number")
        return OAuthToken(secret(answer["access_token"])), lifetime


def _place(url: str) -> str:
    """The URL without what may be secret in it."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return "(its address cannot be read)"
    if not parts.hostname:
        return "(its address cannot be read)"
    return f"{parts.scheme}://{parts.hostname}{f':{port}' if port else ''}{parts.path}"


def _reason(error: urllib.error.HTTPError) -> str:
    """The status, and OAuth's own words for it (RFC 6749, section 5.2)."""
    try:
        said = json.loads(error.read(_MOST_BYTES))
        words = [str(said[name]) for name in ("error", "error_description") if name in said]
    except (OSError, ValueError, TypeError):
        words = []
    return " ".join([f"HTTP {error.code}", *(f"({word})" for word in words)])
