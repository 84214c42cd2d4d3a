"""The TLS context of a client, made from the settings.

The context is made again when the files that the settings name have changed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import math
import os
import re
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from ..config import ClientConfig
from ..config.secrets import plain, secret
from ..errors import ConfigurationError
from . import stores
from .regular_files import check_regular, read_regular
from .tickets import Tickets

_PEM = "-----BEGIN "
#: The first or the last line of an object in PEM text. Each is found in one pass over the text:
#: a pattern of whole objects would search the rest of the text for the end of each beginning.
_EDGE = re.compile(r"-----(BEGIN|END) ([A-Z0-9 ]++)-----")
#: A list of revoked certificates in PEM text. A match ends at the first hyphen, so each beginning is
#: searched once.
_LIST = re.compile(r"-----BEGIN X509 CRL-----[^-]*-----END X509 CRL-----")
#: The end of a line as letters.
_ESCAPED = re.compile(r"\\r\\n|\\n|\\r")
#: The name of a certificate or of revoked ones in a directory that OpenSSL searches.
_HASHED = re.compile(r"[0-9a-f]{8}\.r?[0-9]+")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_log = logging.getLogger("trikafka.brokers")
Made = TypeVar("Made")

#: The number of contexts that clients share; the least recently used one is dropped.
_MOST_SHARED = 8
#: The seconds that a context is kept after its last use. Not longer: it holds a private key.
_KEPT = 600.0
#: The seconds after which files that could not be used are tried again.
_REFUSED_FOR = 10.0
#: The settings from which a context is made.
_SETTINGS = (
    "ssl_cafile",
    "ssl_ca_password",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_crlfile",
    "ssl_check_hostname",
    "ssl_minimum_version",
    "ssl_ciphers",
)


@dataclass(eq=False)
class _Shared:
    """A context made from settings, and the sessions to resume in it."""

    context: ssl.SSLContext
    tickets: Tickets
    used_at: float = 0.0


class _SharedContexts:
    """The contexts of this process, by the settings and the state of the files behind them.

    A program opens clients one after the other, or several at once, with the same settings. With
    one context for all of them the authorities are read once, and a session that was offered to one
    client can be resumed by another. Two clients share a context only if every setting and every
    file is the same, so no session crosses from one set of credentials or checks to another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: OrderedDict[bytes, _Shared] = OrderedDict()

    def get(self, config: ClientConfig, seen: object) -> _Shared:
        """Return the context for these settings and files.

        Raises:
            ConfigurationError: As :func:`make_context`.
        """
        if config.ssl_cafile is None and not any(_system_paths()):
            # No file would show that the authorities have changed, so this context is not shared.
            return _Shared(make_context(config), Tickets())
        key = _digest(config, seen)
        if (found := self._used(key)) is not None:
            return found
        # Made without the lock: opening a store may take long, and others wait for the lock in the
        # event loop.
        made = _Shared(make_context(config), Tickets())
        return self._used(key, made) or made

    def _used(self, key: bytes, made: _Shared | None = None) -> _Shared | None:
        """Return the context with this key, and note its use; without one, keep ``made``."""
        with self._lock:
            now = time.monotonic()
            for old in [old for old, each in self._contexts.items() if each.used_at < now - _KEPT]:
                del self._contexts[old]
            found = self._contexts.get(key, made)
            if found is not None:
                found.used_at = now
                self._contexts[key] = found
                self._contexts.move_to_end(key)
            while len(self._contexts) > _MOST_SHARED:
                self._contexts.popitem(last=False)
            return found


def _digest(config: ClientConfig, seen: object) -> bytes:
    """Return a key for the settings and files of a context.

    The key shows no private key and no password.
    """
    digest = hashlib.sha256(repr(seen).encode())
    for name in _SETTINGS:
        digest.update(repr((name, plain(getattr(config, name)))).encode())
    return digest.digest()


def _system_paths() -> tuple[str | None, str | None]:
    """Return the paths of the system's authorities; ``None`` twice on Windows."""
    known = ssl.get_default_verify_paths()
    return known.cafile, known.capath


_shared = _SharedContexts()


class TlsContexts:
    """The source of the context for each new connection.

    Reading files is quick, except for the system's authorities (some 10 ms, once), and for what a
    password opens: see :func:`may_take_long`.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._current: _Shared | None = None
        self._seen: object = None
        # The state of the files at the last failure. It is tried again at ``_again_at``: the cause
        # may be the system (no file descriptor left, a file server that is away), not the files.
        self._refused: object = None
        self._again_at = 0.0
        self._logged: object = None  # the last state of the files with the text that was logged
        # Tasks that dial at the same time wait for one load, and share its outcome.
        self._loading = trio.Lock()
        # One at a time. A thread whose caller was cancelled keeps its turn, and the next caller
        # finds the context that it made among the shared ones.
        self._threads = trio.CapacityLimiter(1)

    async def refresh(self, limit: float = math.inf) -> None:
        """Load the files if they have changed.

        While changed files cannot be used, such as half a pair that is being replaced, the last
        context stays in use. It also does if loading takes longer than ``limit`` seconds.

        Raises:
            ConfigurationError: A file cannot be used, and there is no last context. The message
                names the setting.
        """
        if self._config.ssl_context is not None or self._is_settled(seen := self._look()):
            return
        with trio.move_on_after(math.inf if self._current is None else limit) as scope:
            async with self._loading:
                await self._load()
        if scope.cancelled_caught:
            self._refuse(seen, f"loading the new ones takes more than {limit:.3g} s")

    async def _load(self) -> None:
        seen = self._look()
        if self._is_settled(seen):
            return
        try:
            self._current = await in_thread_if_long(
                lambda: _shared.get(self._config, seen), may_take_long(self._config), self._threads
            )
        except ConfigurationError as error:
            if self._current is None:
                raise
            self._refuse(seen, str(error))
        else:
            self._seen = seen
            self._refused = self._logged = None

    def _is_settled(self, seen: object) -> bool:
        """Return whether files in this state are loaded, or were refused a moment ago."""
        if self._current is None:
            return False
        refused = seen == self._refused and trio.current_time() < self._again_at
        return seen == self._seen or refused

    def _refuse(self, seen: object, why: str) -> None:
        """Keep the last context for a while; log the reason, once for each state of the files."""
        self._refused = seen
        self._again_at = trio.current_time() + _REFUSED_FOR
        if self._logged != (seen, why):
            self._logged = (seen, why)
            _log.warning(
                "TLS files have changed; until the new ones can be loaded, the previous ones stay in "
                "use: %s",
                why,
            )

    async def context(self) -> ssl.SSLContext:
        """Return the context of the last refresh; the first call refreshes.

        Raises:
            ConfigurationError: As :meth:`refresh`.
        """
        if self._config.ssl_context is not None:
            return self._config.ssl_context
        if self._current is None:
            await self.refresh()
        assert self._current is not None
        return self._current.context

    async def nameless(self) -> ssl.SSLContext:
        """Return a new context that presents no certificate and checks no host name.

        Raises:
            ConfigurationError: A file cannot be used.
        """
        context = await in_thread_if_long(
            lambda: make_context(self._config, anonymous=True),
            may_take_long(self._config),
            self._threads,
        )
        context.check_hostname = False
        return context

    @property
    def tickets(self) -> Tickets | None:
        """The sessions to resume in the current context.

        ``None`` with a context of the user: the user may change its checks and its certificate at
        any time, and a resumed session would keep the old ones.
        """
        return None if self._current is None else self._current.tickets

    def _look(self) -> object:
        """Return a value that changes when a file has changed."""
        config = self._config
        paths = [config.ssl_cafile, config.ssl_certfile, config.ssl_keyfile, config.ssl_crlfile]
        if config.ssl_cafile is None:
            paths += _system_paths()
        paths += _lists_in(config.ssl_crlfile)
        seen: list[tuple[int, ...] | None] = []
        for text in paths:
            if text is not None and _PEM not in text:
                try:
                    status = os.stat(text)
                    # st_ctime also changes with the permissions.
                    times = (status.st_mtime_ns, status.st_ctime_ns)
                    seen.append((*times, status.st_size, status.st_ino))
                except (OSError, ValueError):  # There is no such file, or the text is not a path.
                    seen.append(None)
        return seen


def may_take_long(config: ClientConfig) -> bool:
    """Return whether the settings name a secured store or key.

    Its writer chose how long its password takes to check, which may be many seconds.
    """
    if config.ssl_password is not None or config.ssl_ca_password is not None:
        return True
    return names_store(config.ssl_cafile) or names_store(config.ssl_certfile)


def names_store(given: str | None) -> bool:
    """Return whether the value of a setting is the path of a store."""
    if given is not None and _PEM not in given:
        # Making the context says what is wrong with the file.
        with contextlib.suppress(OSError, ValueError):
            return stores.is_store(read_regular(given, 4))
    return False


async def in_thread_if_long(
    make: Callable[[], Made], long: bool, limiter: trio.CapacityLimiter
) -> Made:
    """Call ``make``, which loads the files of TLS, in a thread if that may take ``long``.

    A cancelled caller does not wait for the end of the thread.
    """
    # Quick files are loaded here: a thread would cost more, and virtual time does not wait for it.
    if not long:
        return make()
    return await trio.to_thread.run_sync(make, limiter=limiter, abandon_on_cancel=True)


def _lists_in(given: str | None) -> list[str]:
    """Return the lists of revoked certificates in a directory.

    They are loaded once, and a program that renews them may write into the same files, which leaves
    the directory as it was. Authorities in a directory are read by OpenSSL, when it needs them.
    """
    if given is None or _PEM in given:
        return []
    try:
        return [str(Path(given, name)) for name in _hashed_in(given, revoked=True)]
    except (OSError, ValueError):  # a file, or no path
        return []


def _hashed_in(directory: str, *, revoked: bool) -> list[str]:
    """Return the names of the files that OpenSSL would search; with ``revoked``, only of lists."""
    named = [entry for entry in sorted(os.listdir(directory)) if _HASHED.fullmatch(entry)]
    return [entry for entry in named if entry[9] == "r"] if revoked else named


def make_context(config: ClientConfig, *, anonymous: bool = False) -> ssl.SSLContext:
    """Make a client's context, for TLS 1.2 and 1.3, from the settings.

    An ``anonymous`` context presents no certificate of the client.

    Raises:
        ConfigurationError: A file or the ciphers cannot be used. The message names the setting.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[config.ssl_minimum_version]
    context.check_hostname = config.ssl_check_hostname
    if config.ssl_cafile is None:
        context.load_default_certs()
    else:
        trust(context, "ssl_cafile", config.ssl_cafile, config.ssl_ca_password)
    if config.ssl_crlfile is not None:
        trust(context, "ssl_crlfile", config.ssl_crlfile)
        # Both flags are needed. CHAIN alone checks nothing. With LEAF alone an authority that was
        # revoked could still sign any certificate.
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_CRL_CHECK_CHAIN
    if config.ssl_ciphers is not None:
        try:
            context.set_ciphers(config.ssl_ciphers)
        except (ssl.SSLError, ValueError):  # ValueError: a null character
            raise ConfigurationError(
                f"ssl_ciphers: OpenSSL knows no cipher of {config.ssl_ciphers!r} for TLS 1.2; those "
                "of TLS 1.3 cannot be chosen"
            ) from None
    if config.ssl_certfile is not None and not anonymous:
        _present(context, config)
    return context


def trust(context: ssl.SSLContext, name: str, given: str, password: str | None = None) -> None:
    """Load the authorities or revoked certificates that a setting gives.

    They are given as the path of a file or directory, or as PEM text.

    Raises:
        ConfigurationError: They cannot be read. The error names the setting.
    """
    try:
        if _PEM not in given and Path(given).is_dir():
            _trust_directory(context, name, given)
            return
        lists = name == "ssl_crlfile"
        pem = _revocations(given) if lists else _in_pem(name, given, password, stores.authorities)
        with _as_file(pem) as path:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        what = "lists of revoked certificates" if name == "ssl_crlfile" else "certificates"
        raise ConfigurationError(
            f"{name}: {_shown(given)} holds no {what} in PEM that OpenSSL can read"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{name}: cannot read {_shown(given)}: {error.strerror}"
        ) from error
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{name}: {_shown(given)} is not a path: {error}") from error


def _trust_directory(context: ssl.SSLContext, name: str, path: str) -> None:
    """Trust the authorities in a directory, or load the revoked certificates in it.

    OpenSSL reads a certificate there during a handshake, and finds it by its name, a hash, as with
    ``ssl.ca.location`` of librdkafka. Revoked ones are loaded here, file by file: otherwise OpenSSL
    would also trust the authorities that lie beside them.
    """
    named = _hashed_in(path, revoked=name == "ssl_crlfile")
    if not named:
        example = "9d66eef0.r0" if name == "ssl_crlfile" else "9d66eef0.0"
        raise ConfigurationError(
            f"{name}: the directory {path!r} has no file that is named by a hash, such as "
            f"{example!r}: run 'openssl rehash' on it, or give one file"
        )
    if name == "ssl_crlfile":
        for entry in named:
            with _as_file(_revocations(str(Path(path, entry)))) as file:
                context.load_verify_locations(file)
    else:
        context.load_verify_locations(capath=path)


def _revocations(given: str) -> str:
    """Return only the lists of revoked certificates in a PEM file or PEM text.

    OpenSSL would also trust the certificates beside them. Often that is the authority of the lists,
    but no one has asked to trust it.

    Raises:
        OSError: The file cannot be read.
        ValueError: The setting is not a path.
        ConfigurationError: There is no list, or one of them is damaged.
    """
    text = given if _PEM in given else secret(read_regular(given).decode("latin-1"))
    found = _LIST.findall(text)
    begun = text.count("-----BEGIN X509 CRL-----")
    if not found or len(found) != begun:
        what = "a list that is damaged or incomplete" if begun else "no list in PEM"
        raise ConfigurationError(
            f"ssl_crlfile: {_shown(given)} holds {what}; a list of revoked certificates (CRL) "
            "begins with -----BEGIN X509 CRL-----"
        )
    return "\n".join([*found, ""])


def _in_pem(
    name: str, given: str, password: str | None, read: Callable[[bytes, str | None], str]
) -> str:
    """Return PEM text or a path as given, and a store in PKCS #12 as PEM text.

    Raises:
        OSError: The file cannot be read.
        ValueError: The setting is not a path.
        ConfigurationError: The store cannot be read.
    """
    if _PEM in given:
        return given
    content = read_regular(given)
    if not stores.is_store(content):
        return given
    try:
        return read(content, password)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} {_shown(given)}: {error}") from error


def _present(context: ssl.SSLContext, config: ClientConfig) -> None:
    wrong = _load_key(context, config)
    # The error is raised here, and not in _load_key(). There its context would be an error of Python
    # or OpenSSL, which keeps the arguments of the call, such as a password.
    if wrong:
        keyfile = config.ssl_keyfile
        shown = _shown(config.ssl_certfile or "")
        # The value of ssl_keyfile may be the key itself, so it is not shown.
        where = f"ssl_certfile {shown}" + ("" if keyfile is None else " with ssl_keyfile")
        raise ConfigurationError(f"{where}: {wrong}")


def _load_key(context: ssl.SSLContext, config: ClientConfig) -> str:
    """Load the certificate and its key; return what is wrong with them, or an empty text."""
    keyfile, password = config.ssl_keyfile, config.ssl_password
    try:
        certfile = _in_pem("ssl_certfile", config.ssl_certfile or "", password, stores.identity)
        if keyfile is not None and _PEM not in keyfile:
            check_regular(keyfile)
        with _as_file(certfile) as cert, _as_file(keyfile or certfile) as key:
            context.load_cert_chain(cert, key, lambda: password or "")
    except ConfigurationError:
        raise
    except ssl.SSLError as error:
        reason = (error.reason or "").replace("_", " ").lower()
        if "mismatch" not in reason and _is_locked(keyfile or certfile):
            return "the private key cannot be decrypted: ssl_password is wrong, or missing"
        if "mismatch" in reason:
            return "the private key is not that of the certificate" + _first_of(certfile)
        return "OpenSSL cannot read it as a certificate and its private key in PEM"
    except OSError as error:
        if error.errno == errno.ESPIPE:
            # OpenSSL refused what it read from a pipe. Python then reports the errno of the read
            # instead of OpenSSL's reason.
            return "the private key is not that of the certificate, or cannot be read"
        return error.strerror or type(error).__name__
    except ValueError:  # a null character in the path, a password that is too long
        return "a path or ssl_password has a form that OpenSSL does not take"
    return ""


def _first_of(certfile: str) -> str:
    """Return a hint about the order of certificates, if the file has several."""
    count = 0
    with contextlib.suppress(OSError):
        text = secret(certfile.encode() if _PEM in certfile else read_regular(certfile))
        count = text.count(b"-----BEGIN CERTIFICATE-----")
    return " (of several, the client's own must be the first)" if count > 1 else ""


@contextmanager
def _as_file(given: str) -> Iterator[str]:
    """Give a path for a setting that is a path or PEM text.

    Python lets OpenSSL read keys from paths only. A private key never touches a disk: its path is
    that of a descriptor, to memory on Linux, and to a pipe on systems without ``memfd_create``.
    """
    if _PEM not in given:
        yield given
        return
    content = secret(pem_lines(given).encode())
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("trikafka"), "wb", buffering=0) as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with _piped(content) as path:
            yield path


def pem_lines(text: str) -> str:
    r"""Return PEM text whose lines are those that OpenSSL reads.

    From an environment or a properties file the text often comes in one line. The ends of lines
    are blanks there, which Java's client reads too, or the letters ``\n`` or ``\r\n``. Text outside
    of the objects, such as ``Bag Attributes``, is kept: OpenSSL skips it. Each object begins a line
    of its own.
    """
    parts: list[str] = []
    done = 0
    begin: re.Match[str] | None = None
    for edge in _EDGE.finditer(text):
        if edge[1] == "BEGIN":
            begin = edge
        elif begin is not None and edge[2] == begin[2]:
            before = secret(text[done : begin.start()])
            parts.append(before)
            if before and not before.endswith("\n"):
                parts.append("\n")
            inner = secret(text[begin.end() : edge.start()])
            parts += [begin[0], _inner_lines(inner), edge[0], "\n"]
            done = edge.end()
            begin = None
    parts.append(secret(text[done:]))
    return secret("".join(parts))


def _inner_lines(text: str) -> str:
    """Return what is between the first and the last line of an object in PEM text."""
    if ":" in text:  # headers of the old kind of encrypted key: their lines matter
        return secret(_ESCAPED.sub("\n", text))
    letters = secret("".join(_ESCAPED.sub(" ", text).split()))
    rows = secret([letters[at : at + 64] for at in range(0, len(letters), 64)])
    return secret("\n".join(["", *rows, ""]))


@contextmanager
def _piped(content: bytes) -> Iterator[str]:
    """Give the path of a pipe that can be read once.

    A thread writes, because a pipe holds only some thousand bytes.
    """
    source, sink = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(sink, "wb", buffering=0) as file:
            file.write(content)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield f"/dev/fd/{source}"
    finally:
        os.close(source)  # unread bytes are an error for the writer, which ends
        writer.join()


def _is_locked(given: str) -> bool:
    """Return whether a private key needs a password."""
    if _PEM in given:
        return "ENCRYPTED" in given
    with contextlib.suppress(OSError):
        return b"ENCRYPTED" in read_regular(given)
    return False


def _shown(given: str) -> str:
    return "(PEM text)" if _PEM in given else repr(plain(given))
