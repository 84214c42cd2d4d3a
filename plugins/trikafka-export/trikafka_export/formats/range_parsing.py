"""The parsing in a task: its parser, and the destination of unreadable records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..folders import AGAIN
from ..piece_log import PieceLog
from .dead_letters import FileLetters, Letters, TopicLetters
from .options import RegistrySettings
from .parsing import Parser, Wait


@dataclass(frozen=True, slots=True)
class ParsingOptions:
    """Options of a task besides the plan's format. Pickled by Spark; shows no secrets."""

    registry: RegistrySettings | None = None
    dead_letter_topic: str | None = None


@dataclass(frozen=True, slots=True)
class RangeParsing:
    """The parsing of one range. ``letters`` creates the dead letters of a piece."""

    parser: Parser | None
    letters: Callable[[PieceLog], Letters]

    @staticmethod
    def of(
        format: Mapping[str, Any],
        topic: str,
        options: ParsingOptions = ParsingOptions(),
        settings: Mapping[str, Any] | None = None,
        *,
        wait: Wait = time.sleep,
        on_start: Callable[[Callable[[], None]], None] = lambda end: None,
    ) -> RangeParsing:
        """Return the parsing of a topic.

        Args:
            format: The plan's format.
            topic: The topic.
            options: The task's options.
            settings: The settings of the client.
            wait: Called to wait between attempts to reach the registry.
            on_start: Receives a function that ends a call to Kafka.
        """
        parser = Parser.of(format, topic, options.registry, wait)
        dead = options.dead_letter_topic
        if dead is None:
            return RangeParsing(parser, lambda log: FileLetters(log, str(format.get(AGAIN, ""))))
        return RangeParsing(parser, lambda log: TopicLetters(dead, settings or {}, on_start))
