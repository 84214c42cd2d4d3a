"""TLS 1.3 sessions that brokers offered, for later connections to resume (RFC 8446, 2.2).

A Kafka broker cannot resume every session that it offered. Each of its network threads
(``num.network.threads``, 3 by default) has a TLS context with keys of its own, and the listener
distributes new connections over these threads in turn. A ticket is valid on its own thread only:
with three threads, that is the thread of three connections ago. OpenSSL offers one ticket for each
connection, so the choice matters. Offering the newest ticket resumed 0 of 12 connections; offering
the one of three connections ago resumed 180 of 180.

No response contains the number of threads. :class:`_Threads` learns it from the tickets that were
resumed and those that were not. Connections of other clients in between shift the turns. Then a
ticket of any age is as good as another, and one in as many as there are threads is resumed. A
ticket that the broker does not know costs nothing: the same flight carries what a full handshake
needs.

A resumed session skips the check of the broker's certificate, and the broker keeps the client's
identity from the session before. So the tickets belong to one TLS context, whose certificates and
authorities never change (:mod:`trikafka._net.tls_context` makes a new one for new files), and to
the name and port for which the certificate was checked. A chain of sessions, each resumed from the
one before, lasts for an hour at most; then a broker's certificate is checked again.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: The most tickets of one address. A broker with more network threads than this is not resumed.
_MOST_TICKETS = 12
#: The most addresses with tickets; the least recently used one is forgotten.
_MOST_ADDRESSES = 64
#: The seconds from a full handshake until the last ticket that descends from it expires; the broker
#: may set less.
_LIFETIME = 3600.0
#: A ticket that the broker refused this many times is dropped: it may be older than the broker's
#: keys.
_MOST_OFFERS = 3
#: If a ticket at least this likely is refused, the broker may have restarted. Then it knows none of
#: the other tickets, and the number of its threads is unchanged.
_CERTAIN = 0.8
#: The seconds without tickets after a failed handshake that offered one.
_PAUSE = 600.0


class _Threads:
    """The likelihoods that a broker has one, two, three ... network threads."""

    #: Added to every likelihood, so that the number is learned again after a broker's configuration
    #: has changed.
    _FORGETTING = 0.005

    def __init__(self) -> None:
        likelihoods = [1.0] * (_MOST_TICKETS + 1)
        likelihoods[0] = 0.0
        likelihoods[3] = 4.0  # Kafka's default
        self._likelihoods = likelihoods

    def chance(self, distance: int) -> float:
        """Return the chance that one thread has this connection and that of ``distance`` before."""
        return sum(likely for threads, likely in self._likelihoods_of(distance)) / sum(
            self._likelihoods
        )

    def learn(self, distance: int, *, resumed: bool) -> None:
        """Record whether the ticket of ``distance`` connections ago was resumed."""
        fits = {threads for threads, _ in self._likelihoods_of(distance)}
        for threads in range(1, _MOST_TICKETS + 1):
            if (threads in fits) != resumed:
                self._likelihoods[threads] *= 0.5
        total = sum(self._likelihoods)
        for threads in range(1, _MOST_TICKETS + 1):
            self._likelihoods[threads] = self._likelihoods[threads] / total + self._FORGETTING

    def _likelihoods_of(self, distance: int) -> list[tuple[int, float]]:
        return [
            (threads, self._likelihoods[threads])
            for threads in range(1, _MOST_TICKETS + 1)
            if distance % threads == 0
        ]


@dataclass(slots=True)
class _Ticket:
    session: ssl.SSLSession
    verified: float  # when the certificate was checked
    expires: float
    offers: int = 0  # how often the broker refused it


class _Address:
    """The tickets of one host and port, by the number of the connection that brought each."""

    def __init__(self) -> None:
        self.count = 0  # connections so far
        self.tickets: OrderedDict[int, _Ticket] = OrderedDict()
        self.threads = _Threads()
        self.surprised = False  # the last ticket was almost certain, and was refused
        self.paused_until = 0.0


class Resumption:
    """The share of one connection in the tickets of its address."""

    def __init__(
        self, tickets: Tickets, address: _Address, number: int, now: float, old: int | None
    ) -> None:
        self._tickets = tickets
        self._address = address
        self._number = number
        self._distance = None if old is None else number - old
        self._verified = now
        ticket = None if old is None else address.tickets[old]
        self._verified_before = now if ticket is None else ticket.verified
        #: The session to offer; ``None``: a full handshake.
        self.session = None if ticket is None else ticket.session

    def succeeded(self, *, resumed: bool) -> None:
        """Record the end of the handshake."""
        self.session = None
        if resumed:
            self._verified = self._verified_before
        if self._distance is not None:
            self._tickets.learn(self._address, self._number, self._distance, resumed=resumed)

    def failed(self, *, cancelled: bool = False) -> None:
        """Record that the handshake failed.

        If a ticket was offered, the next attempts go without. After a handshake that was
        ``cancelled``, at its limit or by the user, they do so only until there are new tickets.
        """
        self.session = None
        if self._distance is not None:
            self._tickets.forget(self._address, 0.0 if cancelled else _PAUSE)

    def store(self, session: ssl.SSLSession | None) -> None:
        """Keep the session that the broker offered on this connection."""
        if session is not None and session.has_ticket:
            self._tickets.store(self._address, self._number, session, self._verified)


class Tickets:
    """The tickets of one TLS context. Clients in several threads may share it.

    ``clock`` is in seconds. It is not Trio's, because the clients may have event loops of their
    own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._addresses: OrderedDict[tuple[str, int], _Address] = OrderedDict()

    def begin(self, host: str, port: int) -> Resumption:
        """Return the share of a connection that was accepted just now."""
        with self._lock:
            address = self._addresses.setdefault((host, port), _Address())
            self._addresses.move_to_end((host, port))
            while len(self._addresses) > _MOST_ADDRESSES:
                self._addresses.popitem(last=False)
            number = address.count
            address.count += 1
            now = self._clock()
            return Resumption(self, address, number, now, self._choose(address, number, now))

    def _choose(self, address: _Address, number: int, now: float) -> int | None:
        for old in [
            old
            for old, each in address.tickets.items()
            if each.expires <= now or number - old > _MOST_TICKETS
        ]:
            del address.tickets[old]
        if not address.tickets or now < address.paused_until:
            return None
        chances = {old: address.threads.chance(number - old) for old in address.tickets}
        enough = 0.9 * max(chances.values())
        # A multiple of the number of threads is as good for the broker, but the younger ticket
        # lasts longer.
        return max(old for old, chance in chances.items() if chance >= enough)

    def learn(self, address: _Address, number: int, distance: int, *, resumed: bool) -> None:
        """Record whether connection ``number`` resumed the session of ``distance`` connections ago.

        A ticket is used once (RFC 8446, C.4); the connection brings a new one of the same thread.
        """
        with self._lock:
            if (
                not resumed
                and not address.surprised
                and address.threads.chance(distance) >= _CERTAIN
            ):
                address.tickets.clear()
                address.surprised = True
                return
            address.surprised = False
            address.threads.learn(distance, resumed=resumed)
            ticket = address.tickets.get(number - distance)
            if ticket is not None:
                ticket.offers += 1
                if resumed or ticket.offers >= _MOST_OFFERS:
                    del address.tickets[number - distance]

    def forget(self, address: _Address, pause: float) -> None:
        """Forget the tickets of an address, and offer none for ``pause`` seconds."""
        with self._lock:
            address.tickets.clear()
            address.paused_until = self._clock() + pause

    def store(
        self, address: _Address, number: int, session: ssl.SSLSession, verified: float
    ) -> None:
        """Keep the ticket that connection ``number`` brought, for as long as the broker allows."""
        with self._lock:
            expires = min(self._clock() + session.ticket_lifetime_hint, verified + _LIFETIME)
            address.tickets[number] = _Ticket(session, verified, expires)
            while len(address.tickets) > _MOST_TICKETS:
                address.tickets.popitem(last=False)
