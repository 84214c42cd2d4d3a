"""What a task does about formats: its parser, and where that goes which cannot be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trikafka import PieceLog

from ..folders import AGAIN
from .letters import FileLetters, Letters, TopicLetters
from .options import RegistrySettings
from .parsing import Parser, Wait


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a task is told beside the plan's format. Pickled by Spark; shows no secrets."""

    registry: RegistrySettings | None = None
    dead_letter_topic: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one range. ``letters`` makes those of a piece."""

    parser: Parser | None
    letters: Callable[[PieceLog], Letters]

    @staticmethod
    def of(
        format: Mapping[str, Any],
        topic: str,
        options: ReadOptions = ReadOptions(),
        settings: Mapping[str, Any] | None = None,
        *,
        wait: Wait = time.sleep,
        on_start: Callable[[Callable[[], None]], None] = lambda end: None,
    ) -> Reading:
        """``settings`` are the client's; ``on_start`` is given what ends a call that waits for Kafka, ``wait`` what waits."""
        parser = Parser.of(format, topic, options.registry, wait)
        dead = options.dead_letter_topic
        if dead is None:
            return Reading(parser, lambda log: FileLetters(log, str(format.get(AGAIN, ""))))
        return Reading(parser, lambda log: TopicLetters(dead, settings or {}, on_start))
