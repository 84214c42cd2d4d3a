"""The TLS context of a client: made from the settings, and made anew when the files that they name have changed."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ..config import ClientConfig
from ..config.secrets import plain
from ..errors import ConfigurationError

_PEM = "-----BEGIN "
_log = logging.getLogger("trikafka.brokers")


class TlsContexts:
    """Gives the context for a new connection. Reading files is quick, but for the system's authorities (some 10 ms, once)."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._context: ssl.SSLContext | None = None
        self._seen: object = None
        self._refused: object = None  # what was looked at when that was told last

    def context(self) -> ssl.SSLContext:
        """The context to use now. Raises :exc:`ConfigurationError` that names the setting whose file cannot be used.

        While files that have changed cannot be used, such as half a pair that is being replaced, the context before stays.
        """
        if self._config.ssl_context is not None:
            return self._config.ssl_context
        seen = self._look()
        if self._context is None or seen != self._seen:
            try:
                self._context, self._seen = make_context(self._config), seen
            except ConfigurationError as error:
                if self._context is None:
                    raise
                if seen != self._refused:
                    self._refused = seen
                    _log.warning("TLS files have changed and cannot be used, so those before are until they can: %s", error)
        return self._context

    def _look(self) -> object:
        """What tells whether a file has changed."""
        config = self._config
        seen: list[tuple[int, int, int] | None] = []
        for text in (config.ssl_cafile, config.ssl_certfile, config.ssl_keyfile, config.ssl_crlfile):
            if text is not None and _PEM not in text:
                try:
                    status = os.stat(text)
                    seen.append((status.st_mtime_ns, status.st_size, status.st_ino))
                except (OSError, ValueError):  # it is no path at all
                    seen.append(None)
        return seen


def make_context(config: ClientConfig) -> ssl.SSLContext:
    """A context for clients: TLS 1.2 and 1.3, as the settings say. Raises :exc:`ConfigurationError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.ssl_check_hostname
    if config.ssl_cafile is None:
        context.load_default_certs()
    else:
        _trust(context, "ssl_cafile", config.ssl_cafile)
    if config.ssl_crlfile is not None:
        _trust(context, "ssl_crlfile", config.ssl_crlfile)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if config.ssl_ciphers is not None:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except ssl.SSLError:
            raise ConfigurationError(f"ssl_ciphers: OpenSSL knows no cipher of {config.ssl_ciphers!r}") from None
    if config.ssl_certfile is not None:
        _present(context, config)
    return context


def _trust(context: ssl.SSLContext, name: str, given: str) -> None:
    try:
        with _as_file(given) as path:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{name}: {_shown(given)} holds no certificates in PEM that OpenSSL can read") from error
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot read {_shown(given)}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{name}: {_shown(given)} is no path: {error}") from error


def _present(context: ssl.SSLContext, config: ClientConfig) -> None:
    wrong = _load_key(context, config)
    if wrong:  # raised here: the errors of Python and OpenSSL hold on to what they were given
        keyfile, shown = config.ssl_keyfile, _shown(config.ssl_certfile or "")
        where = f"ssl_certfile {shown}" + ("" if keyfile is None else " with ssl_keyfile")  # which may be the key itself
        raise ConfigurationError(f"{where}: {wrong}")


def _load_key(context: ssl.SSLContext, config: ClientConfig) -> str:
    """Load the certificate and its key; return what is wrong with them, or nothing."""
    certfile, keyfile = config.ssl_certfile or "", config.ssl_keyfile
    try:
        with _as_file(certfile) as cert, _as_file(keyfile or certfile) as key:
            context.load_cert_chain(cert, key, lambda: config.ssl_password or "")
    except ssl.SSLError as error:
        reason = (error.reason or "").replace("_", " ").lower()
        if "mismatch" not in reason and _is_locked(keyfile or certfile):
            return "the private key cannot be decrypted: ssl_password is wrong, or missing"
        if "mismatch" in reason:
            return "the private key is not that of the certificate"
        return "OpenSSL cannot read it as a certificate and its private key in PEM"
    except OSError as error:
        return error.strerror or type(error).__name__
    except ValueError:  # a path with a null character, a password that is too long
        return "a path or ssl_password has a form that OpenSSL does not take"
    return ""


@contextmanager
def _as_file(given: str) -> Iterator[str]:
    """The path of what is given as a path or as PEM text. OpenSSL, as Python has it, reads keys from files alone."""
    if _PEM not in given:
        yield given
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable by its owner alone
        file.write(given)
        file.flush()
        yield file.name


def _is_locked(given: str) -> bool:
    """Whether a private key needs a password."""
    with contextlib.suppress(OSError), _as_file(given) as path, open(path, encoding="ascii", errors="replace") as file:
        return "ENCRYPTED" in file.read()
    return False


def _shown(given: str) -> str:
    return "(PEM text)" if _PEM in given else repr(plain(given))
