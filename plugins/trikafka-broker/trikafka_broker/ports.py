"""Free loopback ports, chosen by the kernel and kept. Owns the sockets that keep them."""

from __future__ import annotations

import contextlib
import socket
import sys

HOST = "127.0.0.1"

# On Linux a bound socket that does not listen keeps its port from being given to anybody who asks for "any" port, while
# one who asks for just this port (the broker, which sets SO_REUSEADDR as Java does) gets it. Without that, the port of
# a broker that is down is soon somebody's: a client that tries and tries to connect to it may even connect to itself.
_CAN_HOLD = sys.platform == "linux"


class Ports:
    """The ports of one cluster, held from `take` to `release`."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, port: int = 0) -> int:
        """Hold `port`, or any free one if it is 0, and return it. Raises `OSError` if it is in use."""
        holder = socket.socket()
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, port))
        except OSError:
            holder.close()
            raise
        self._held.append(holder)
        return int(holder.getsockname()[1])

    def take_preferred(self, port: int) -> int:
        """Hold `port`, or any free one if it is in use."""
        with contextlib.suppress(OSError):
            return self.take(port)
        return self.take()

    def let_brokers_bind(self) -> None:
        """Called before brokers start: gives the ports up where holding them would be in the way."""
        if not _CAN_HOLD:
            self.release()

    def release(self) -> None:
        """Give all ports up."""
        for holder in self._held:
            holder.close()
        self._held.clear()
