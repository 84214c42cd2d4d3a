"""A stand-in for `java` whose broker answers the probe, for tests of processes and their ends.

A real broker takes three seconds of a processor to start, and this one a tenth of a second.
"""

import socket
import struct
import sys

VERSION = 'openjdk version "17.0.1" 2021-10-19\nOpenJ9'  # OpenJ9 has no archive of classes


def serve(port: int) -> None:
    """Respond to each request as to one for metadata, version 1: with broker 0 and no topics."""
    host = b"127.0.0.1"
    broker = struct.pack(">ih", 0, len(host)) + host + struct.pack(">ih", port, -1)
    body = struct.pack(">i", 1) + broker + struct.pack(">ii", 0, 0)
    with socket.create_server((host, port)) as server:
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as requests:
                while size := requests.read(4):
                    correlation = requests.read(*struct.unpack(">i", size))[4:8]
                    connection.sendall(struct.pack(">i", 4 + len(body)) + correlation + body)


def main() -> None:
    if sys.argv[1:] == ["-version"]:
        print(VERSION, file=sys.stderr)
        return
    if "kafka.Kafka" not in sys.argv:
        return  # the storage tool, whose files this broker does not need
    with open(sys.argv[-1], encoding="ascii") as file:
        properties = dict(line.rstrip("\n").split("=", 1) for line in file)
    (plain,) = (each for each in properties["listeners"].split(",") if each.startswith("PLAINTEXT"))
    serve(int(plain.rpartition(":")[2]))


if __name__ == "__main__":
    main()
