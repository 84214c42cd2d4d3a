"""A program that writes a topic to a folder by ``sink_batches`` until it is killed.

SIGTERM ends it, too. Arguments: servers, topic, folder.
"""

from __future__ import annotations

import signal
import sys

import trio

import trikafka


async def main(servers: str, topic: str, root: str) -> None:
    settings: trikafka.ConsumerSettings = {
        "bootstrap_servers": servers,
        "group_id": f"lake-{topic}",
    }
    settings |= {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_poll_records": 40,
    }
    settings |= {
        "session_timeout_ms": 1_000,
        "heartbeat_interval_ms": 300,
        "group_protocol": "classic",
    }
    async with trikafka.open_consumer(topic, **settings) as consumer:
        await trikafka.sink_batches(
            consumer, root, flush_ms=100, max_rows=50, stop_on=[signal.SIGTERM]
        )


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
