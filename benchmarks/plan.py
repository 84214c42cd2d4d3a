"""What is measured: the configurations, the cases of each, how many records a case moves, and in which order a round runs.

Every case moves as many records as take it about a second, so that a slow client is not timed for longer than a fast one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

PARTITIONS = 4
TASKS = 1_000
LATENCY_RATE = 500

PEERS = {
    "ours": "trikafka",
    "confluent": "confluent-kafka",
    "aio": "aiokafka",
    "kafka_python": "kafka-python",
    "raw": "raw limit",
}


@dataclass(frozen=True)
class Setup:
    """Size and compression of the values; in the ``main`` one the aims are judged. ``share`` scales the records."""

    size: int
    compression: str
    share: float
    main: bool = False

    @property
    def topic(self) -> str:
        return f"filled-{self.size}-{self.compression}"


@dataclass(frozen=True)
class Case:
    """One line of the results."""

    kind: str
    way: str
    peer: str
    setup: Setup
    records: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.way}/{self.setup.size}/{self.setup.compression}/{self.peer}"


SETUPS = (
    Setup(100, "none", 1.0, main=True),
    Setup(100, "lz4", 0.5),
    Setup(100, "zstd", 0.5),
    Setup(1000, "none", 0.2),
    Setup(1000, "lz4", 0.2),
    Setup(1000, "zstd", 0.2),
)
#: (kind, way, peer) -> records of 100 bytes, for about a second on two cores.
_RECORDS = {
    ("consume", "arrow", "ours"): 4_000_000,
    ("consume", "batch", "ours"): 1_500_000,
    ("consume", "one", "ours"): 800_000,
    ("consume", "batch", "confluent"): 1_000_000,
    ("consume", "one", "confluent"): 600_000,
    ("consume", "batch", "aio"): 500_000,
    ("consume", "one", "aio"): 150_000,
    ("consume", "batch", "kafka_python"): 100_000,
    ("consume", "raw", "raw"): 4_000_000,
    ("produce", "arrow", "ours"): 2_000_000,
    ("produce", "one", "ours"): 800_000,
    ("produce", "concurrent", "ours"): 60_000,
    ("produce", "one", "confluent"): 800_000,
    ("produce", "concurrent", "confluent"): 60_000,
    ("produce", "one", "aio"): 80_000,
    ("produce", "concurrent", "aio"): 40_000,
    ("produce", "one", "kafka_python"): 25_000,
}
#: These run in the main setup alone.
_MAIN_ONLY = ("kafka_python",)
#: Large values are fewer, yet not so few that a case is over before it has begun.
_LEAST = 10_000
_LATENCY_SECONDS = 4


def all_cases(*, cap: int | None = None, quick: bool = False) -> list[Case]:
    """Every case; with ``cap`` none moves more records. ``quick`` leaves out the setups between the first and the last."""
    setups = (SETUPS[0], SETUPS[-1]) if quick else SETUPS
    cases = []
    for setup in setups:
        for (kind, way, peer), count in _RECORDS.items():
            if setup.main or peer not in _MAIN_ONLY:
                records = max(int(count * setup.share), min(count, _LEAST))
                cases.append(Case(kind, way, peer, setup, records))
    samples = LATENCY_RATE * _LATENCY_SECONDS
    cases += [Case("latency", "one", peer, SETUPS[0], samples) for peer in ("ours", "confluent", "aio")]
    return cases if cap is None else [capped(case, cap) for case in cases]


def capped(case: Case, cap: int) -> Case:
    """The same case with no more than ``cap`` records."""
    return replace(case, records=min(cap, case.records))


def filled(cases: Iterable[Case]) -> dict[Setup, int]:
    """How many records each topic that is read must hold."""
    need: dict[Setup, int] = {}
    for case in cases:
        if case.kind == "consume":
            need[case.setup] = max(case.records, need.get(case.setup, 0))
    return need


def order_of_round(cases: Iterable[Case], number: int, *, main: bool = False) -> list[Case]:
    """The cases of round ``number``, those that are compared next to each other, begun with another one in every round.

    With ``main`` only those that the aims are judged by.
    """
    groups: dict[tuple[Setup, str], list[Case]] = {}
    for case in cases:
        if case.setup.main or not main:
            groups.setdefault((case.setup, case.kind), []).append(case)
    order = []
    for group in groups.values():
        turn = number * 2 % len(group)
        order += group[turn:] + group[:turn]
    return order
