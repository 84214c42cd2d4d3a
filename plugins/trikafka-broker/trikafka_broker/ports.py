"""Free loopback ports, chosen by the kernel and held by sockets."""

from __future__ import annotations

import contextlib
import socket
import sys

HOST = "127.0.0.1"

# On Linux, a bound socket that does not listen reserves its port: the kernel never returns it to a
# program that asks for any free port. A program that binds this very port with SO_REUSEADDR still
# gets it, and a broker does so, as Java sets that option.
#
# Without the reservation another program soon gets the port of a broker that is down. A client that
# dials that port again and again may even connect to itself (TCP's simultaneous open), because its
# own ephemeral port may be that port.
_CAN_HOLD = sys.platform == "linux"


class Ports:
    """The ports of one cluster, held from `take` to `release`."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, port: int = 0) -> int:
        """Hold `port`, or any free one if it is 0; return the port.

        Raises:
            OSError: The port is in use.
        """
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
        """Hold `port`, or any free one if it is in use; return the port."""
        with contextlib.suppress(OSError):
            return self.take(port)
        return self.take()

    def let_brokers_bind(self) -> None:
        """Release the ports where holding them would prevent brokers from binding.

        Called before brokers start.
        """
        if not _CAN_HOLD:
            self.release()

    def release(self) -> None:
        """Release all ports."""
        for holder in self._held:
            holder.close()
        self._held.clear()
