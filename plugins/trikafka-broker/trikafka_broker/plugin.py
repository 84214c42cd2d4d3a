"""The plugin of trikafka's command line: the subcommand ``broker``.

trikafka imports this module; nothing else needs trikafka here.
"""

from __future__ import annotations

from typing import Any

from trikafka.hooks import hookimpl
from trikafka.interfaces import Subcommand


@hookimpl
def trikafka_command() -> Subcommand:
    """Return the command ``broker``."""
    return Subcommand("broker", "Run real Apache Kafka brokers on this machine.", _command)


def _command() -> Any:
    from .cli import broker

    return broker
