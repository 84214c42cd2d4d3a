"""The plan of a run: configurations, their cases and records, and the order of a round.

Kinds of cases beside those that ``docs/benchmarks-method.md`` defines:

* ``assigned``: partitions of one topic, assigned by hand at their ends. After a second, an idle
  process is measured for 1.5 s: processor time, memory and the bytes of its TCP connections (Linux
  only). Then another process writes 200 records a second.
* ``many``: consumers in one program, which read one partition each, with the default buffers of
  their client. confluent-kafka has a thread for each.
* ``streams``: 16 partitions, read by a task each (``partitions()``) and by one loop.
* TLS and SCRAM: the same at other ports of the broker, with TLS 1.3. ``connect``: a process opens
  thirty clients; trikafka resumes TLS sessions from the fourth connection on. ``sessions``: those
  of two seconds (KIP-368), under ``send()`` at 1,000 a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

# How cases are made comparable:
#
# * Each case moves as many records as take its client about a second. With one number for all, a
#   slow client would be timed much longer than a fast one, and a fast one hardly at all.
# * A round runs every case once, each in a process of its own. Cases that are compared with each
#   other run next to each other (order_of_round), so a machine that slows down for a minute slows
#   both. Each round begins every group with another case, so the place in the order favours no
#   client.
# * A case may have several turns in one round, with the others of its group in between. Latencies
#   have three, because a p99 varies by a factor of four from one process of the same client to the
#   next. So have the aims that are judged in other setups than the main one, since those setups
#   take part in every second round only.
# * Cases that mostly wait (groups, many consumers, opened connections) take part in the other
#   rounds. They are slow, and their figures vary less.

PARTITIONS = 4
#: Tasks that send at the same time in the ordinary concurrent cases.
TASKS = 1_000
#: Tasks in the cases with a crowd. Each waits for its own record.
CROWD = 10_000

#: The broker's ports, by their protocols. ``sessions`` has TLS and SCRAM as well, and requires a
#: new authentication every two seconds.
PLAIN, TLS, SCRAM, BOTH, SESSIONS = PORTS = ("plain", "TLS", "SCRAM", "TLS+SCRAM", "sessions")

PEERS = {
    "ours": "trikafka",
    "confluent": "confluent-kafka",
    "aio": "aiokafka",
    "kafka_python": "kafka-python",
    "franz": "franz-go",
    "java": "Java",
    "librdkafka": "librdkafka in C",
    "raw": "raw limit",
}


@dataclass(frozen=True)
class Setup:
    """The size and compression of the values of some cases.

    ``share`` scales the number of records. The aims are judged mainly by the ``main`` setups.
    """

    size: int
    compression: str
    share: float
    main: bool = False
    partitions: int = PARTITIONS

    @property
    def topic(self) -> str:
        return f"filled-{self.size}-{self.compression}-{self.partitions}"


@dataclass(frozen=True)
class Case:
    """A line of the results.

    ``jobs.Job`` explains the fields that a job receives. A case runs ``turns`` times in each round.
    """

    kind: str
    way: str
    peer: str
    setup: Setup
    records: int
    partitions: int = PARTITIONS
    tasks: int = TASKS
    rate: int = 0
    seconds: float = 0.0
    port: str = PLAIN
    turns: int = 1

    @property
    def name(self) -> str:
        name = f"{self.kind}/{self.way}/{self.setup.size}/{self.setup.compression}/{self.peer}"
        return name if self.port in (PLAIN, self.way) else f"{name}/{self.port}"

    @property
    def reads(self) -> bool:
        """True if the case reads a topic that was filled before."""
        return self.kind in ("consume", "streams", "many", "process", "share")

    @property
    def writes(self) -> bool:
        """True if the records that the case wrote are counted in the topic."""
        return self.kind in ("produce", "latency")

    @property
    def slow(self) -> bool:
        """True if the case mostly waits, and therefore runs in every second round only."""
        return self.kind in ("assigned", "group", "many", "connect", "share") or self.port in (
            BOTH,
            SESSIONS,
        )


SETUPS = (
    Setup(100, "none", 1.0, main=True),
    Setup(100, "lz4", 0.5),
    Setup(100, "zstd", 0.5),
    Setup(1000, "none", 0.2),
    Setup(1000, "lz4", 0.2),
    Setup(1000, "zstd", 0.2),
)
#: One stream per partition, beside one loop that reads all partitions.
_STREAMS = Setup(100, "none", 1.0, main=True, partitions=16)
#: (kind, way, peer) -> the records of 100 bytes that take about a second on two cores.
_RECORDS = {
    ("consume", "arrow", "ours"): 4_000_000,
    ("consume", "batch", "ours"): 1_500_000,
    ("consume", "one", "ours"): 2_000_000,
    ("consume", "batch", "confluent"): 1_000_000,
    ("consume", "one", "confluent"): 600_000,
    ("consume", "batch", "aio"): 500_000,
    ("consume", "one", "aio"): 150_000,
    ("consume", "batch", "kafka_python"): 100_000,
    ("consume", "batch", "franz"): 4_000_000,
    ("consume", "batch", "java"): 2_000_000,
    ("consume", "raw", "raw"): 4_000_000,
    ("produce", "arrow", "ours"): 2_000_000,
    ("produce", "tables", "ours"): 2_000_000,
    ("produce", "one", "ours"): 800_000,
    ("produce", "concurrent", "ours"): 180_000,
    ("produce", "enqueue", "ours"): 800_000,
    ("produce", "one", "confluent"): 800_000,
    ("produce", "one", "librdkafka"): 1_000_000,
    ("produce", "concurrent", "confluent"): 60_000,
    ("produce", "one", "aio"): 160_000,
    ("produce", "concurrent", "aio"): 120_000,
    ("produce", "one", "kafka_python"): 25_000,
    ("produce", "one", "franz"): 2_000_000,
}
_STREAM_RECORDS = {
    ("streams", "batch", "ours"): 1_500_000,
    ("streams", "one", "ours"): 2_000_000,
    ("streams", "together", "ours"): 1_500_000,
    ("streams", "together", "confluent"): 1_000_000,
}
#: Records that a member of a share group acknowledges: each in a block, each by a call, or together.
#: ``defaults``: together, in a group with Kafka's default of locks (``share_groups.LOCKS``).
_SHARE_RECORDS = {
    ("block", "ours"): 200_000,
    ("accept", "ours"): 300_000,
    ("batch", "ours"): 600_000,
    ("accept", "java"): 300_000,
    ("batch", "java"): 600_000,
    ("accept", "franz"): 300_000,
    ("batch", "franz"): 600_000,
    ("defaults", "ours"): 600_000,
    ("defaults", "java"): 600_000,
    ("defaults", "franz"): 600_000,
}
#: Records of 10,000 tasks, each of which waits for its own.
_CROWD_RECORDS = {"ours": 150_000, "confluent": 100_000, "aio": 90_000}
#: Records that all consumers of one program read together.
_MANY_RECORDS = {"ours": 1_000_000, "confluent": 600_000, "aio": 300_000}
#: Cases over TLS in the main setup. _TLS_LARGE has those with records of 1,000 bytes, where TLS
#: costs most.
_TLS_RECORDS = {
    ("consume", "arrow", "ours"): 2_000_000,
    ("consume", "batch", "ours"): 1_500_000,
    ("consume", "one", "ours"): 1_500_000,
    ("consume", "batch", "confluent"): 800_000,
    ("consume", "one", "confluent"): 500_000,
    ("produce", "arrow", "ours"): 1_500_000,
    ("produce", "tables", "ours"): 1_500_000,
    ("produce", "one", "ours"): 800_000,
    ("produce", "enqueue", "ours"): 800_000,
    ("produce", "concurrent", "ours"): 180_000,
    ("produce", "one", "confluent"): 800_000,
    ("produce", "concurrent", "confluent"): 60_000,
    ("streams", "batch", "ours"): 1_500_000,
    ("streams", "one", "ours"): 1_500_000,
    ("streams", "together", "ours"): 1_500_000,
    ("streams", "together", "confluent"): 800_000,
    ("process", "one", "ours"): 600_000,
    ("process", "arrow", "ours"): 1_000_000,
    ("process", "one", "confluent"): 400_000,
}
_TLS_LARGE = {
    ("consume", "arrow", "ours"): 500_000,
    ("consume", "batch", "ours"): 500_000,
    ("consume", "one", "ours"): 400_000,
    ("consume", "batch", "confluent"): 200_000,
    ("produce", "arrow", "ours"): 400_000,
    ("produce", "one", "ours"): 200_000,
    ("produce", "one", "confluent"): 160_000,
}
#: Clients that are opened one after another, at each port.
_OPENINGS = 30
#: Peers that run in the main setup only.
_MAIN_ONLY = ("kafka_python",)
#: Cases that run without compression only.
_PLAIN_ONLY = (("consume", "franz"), ("consume", "java"))
#: Cases by which aims are judged in other setups, too. Those setups have half of the rounds, so
#: the cases have several turns in each.
_JUDGED = (("produce", "arrow", "ours"), ("produce", "one", "franz"))
JUDGED_SETUPS = ((100, "lz4"), (1000, "none"), (1000, "lz4"))
_JUDGED_TURNS = 3
#: The fewest records of a case with large values. A shorter case would measure its start only.
_LEAST = 10_000

#: Way -> records per second of the latency cases. A record is sent and received alone. In ``acks``
#: it is only sent, and its acknowledgement is timed.
LATENCY_RATES = {"one": 500, "thousand": 1_000, "acks": 1_000}
_FOUR = ("ours", "confluent", "aio", "franz")
_LATENCY_PEERS = {"one": ("ours", "confluent", "aio"), "thousand": _FOUR, "acks": (*_FOUR, "raw")}
_LATENCY_SECONDS, _SESSIONS_SECONDS = 3, 5
#: A p99 varies by a factor of four between processes of the same client.
_LATENCY_TURNS = 3

#: Assigned partitions, at first all idle.
ASSIGNED = (1, 50, 500, 2_000)
#: Records per second that then arrive, spread over all of them.
TRICKLE = 200
_ASSIGNED_SECONDS = 1.5

#: Numbers of consumers in one program.
MANY = (1, 10, 100)

#: Members of a group that share a topic, into which records are written all the time. The join of
#: the last member is timed.
MEMBERS = 3
_GROUP_PARTITIONS = 12
_GROUP_RATE = 1_000
_GROUP_SETTLES = 1.5
_GROUPS = {
    "cooperative": ("ours", "confluent", "java"),
    "eager": ("aio",),
    "consumer": ("ours", "confluent", "java"),
}

#: (way, peer) -> records that are read, processed and written in transactions.
_PROCESS_RECORDS = {
    ("one", "ours"): 600_000,
    ("arrow", "ours"): 1_200_000,
    ("one", "confluent"): 400_000,
    ("one", "java"): 600_000,
}
#: Seconds for which each transaction is open.
_COMMIT_EVERY = 0.1

_QUICK_PARTITIONS = 20
_QUICK_SECONDS = 0.3
_QUICK_MEMBERS = 2
#: Filled records per processed record: a case ends with a transaction, somewhat later.
_AND_MORE = 3
#: The records of a latency case in a quick run.
_QUICK_LATENCY = 100
_QUICK_OPENINGS = 3


def all_cases(*, cap: int | None = None, quick: bool = False) -> list[Case]:
    """Return every case. With ``cap`` none moves more records than that.

    ``quick`` leaves out the setups between the first and the last.
    """
    setups = (SETUPS[0], SETUPS[-1]) if quick else SETUPS
    cases = [
        *_throughput(setups),
        *_crowds(),
        *_streams(),
        *_latencies(),
        *_assigned(),
        *_groups(),
        *_many(),
        *_processing(),
        *_sharing(),
    ]
    cases += _secured()
    if cap is not None:
        cases = [capped(case, cap) for case in cases]
    return [_quick(case) for case in cases] if quick else cases


def _throughput(setups: Iterable[Setup]) -> Iterator[Case]:
    for setup in setups:
        for (kind, way, peer), count in _RECORDS.items():
            if (setup.main or peer not in _MAIN_ONLY) and (
                setup.compression == "none" or (kind, peer) not in _PLAIN_ONLY
            ):
                records = max(int(count * setup.share), min(count, _LEAST))
                judged = (kind, way, peer) in _JUDGED and (
                    setup.size,
                    setup.compression,
                ) in JUDGED_SETUPS
                turns = _JUDGED_TURNS if judged else 1
                yield Case(kind, way, peer, setup, records, turns=turns)


def _crowds() -> Iterator[Case]:
    for peer, records in _CROWD_RECORDS.items():
        yield Case("produce", "crowd", peer, SETUPS[0], records, tasks=CROWD)


def _streams() -> Iterator[Case]:
    for (kind, way, peer), count in _STREAM_RECORDS.items():
        yield Case(kind, way, peer, _STREAMS, count, _STREAMS.partitions)


def _latencies() -> Iterator[Case]:
    for way, rate in LATENCY_RATES.items():
        for peer in _LATENCY_PEERS[way]:
            yield Case(
                "latency",
                way,
                peer,
                SETUPS[0],
                rate * _LATENCY_SECONDS,
                1,
                rate=rate,
                turns=_LATENCY_TURNS,
            )


def _assigned() -> Iterator[Case]:
    for count in ASSIGNED:
        for peer in ("ours", "confluent", "aio"):
            yield Case(
                "assigned",
                str(count),
                peer,
                SETUPS[0],
                0,
                count,
                rate=TRICKLE,
                seconds=_ASSIGNED_SECONDS,
            )


def _groups() -> Iterator[Case]:
    for way, peers in _GROUPS.items():
        for peer in peers:
            shape = (_GROUP_PARTITIONS, MEMBERS, _GROUP_RATE, _GROUP_SETTLES)
            yield Case("group", way, peer, SETUPS[0], 0, *shape)


def _many() -> Iterator[Case]:
    for count in MANY:
        for peer, records in _MANY_RECORDS.items():
            yield Case("many", str(count), peer, SETUPS[0], records, tasks=count)


def _processing() -> Iterator[Case]:
    for (way, peer), records in _PROCESS_RECORDS.items():
        yield Case("process", way, peer, SETUPS[0], records, seconds=_COMMIT_EVERY)


def _sharing() -> Iterator[Case]:
    for (way, peer), records in _SHARE_RECORDS.items():
        yield Case("share", way, peer, SETUPS[0], records)


def _secured() -> Iterator[Case]:
    for (kind, way, peer), records in _TLS_RECORDS.items():
        setup = _STREAMS if kind == "streams" else SETUPS[0]
        seconds = _COMMIT_EVERY if kind == "process" else 0.0
        yield Case(kind, way, peer, setup, records, setup.partitions, seconds=seconds, port=TLS)
    large = next(setup for setup in SETUPS if (setup.size, setup.compression) == (1000, "none"))
    for (kind, way, peer), records in _TLS_LARGE.items():
        yield Case(kind, way, peer, large, records, port=TLS)
    for port in (PLAIN, TLS, SCRAM, BOTH):
        for peer in ("ours", "confluent"):
            yield Case("connect", port, peer, SETUPS[0], _OPENINGS, port=port)
    rate = LATENCY_RATES["acks"]
    for port in (BOTH, SESSIONS):
        for peer in ("ours", "confluent"):
            yield Case(
                "latency",
                "acks",
                peer,
                SETUPS[0],
                rate * _SESSIONS_SECONDS,
                1,
                rate=rate,
                port=port,
            )


def capped(case: Case, cap: int) -> Case:
    """Return the same case with at most ``cap`` records."""
    return replace(case, records=min(cap, case.records))


def _quick(case: Case) -> Case:
    """Return the same case with one turn, just long enough to see that it works."""
    case = replace(case, turns=1)
    if case.kind == "latency":
        return capped(case, _QUICK_LATENCY)
    if case.kind == "connect":
        return capped(case, _QUICK_OPENINGS)
    if case.kind == "assigned":
        return replace(
            case, partitions=min(case.partitions, _QUICK_PARTITIONS), seconds=_QUICK_SECONDS
        )
    return (
        replace(case, tasks=_QUICK_MEMBERS, seconds=_QUICK_SECONDS)
        if case.kind == "group"
        else case
    )


def filled(cases: Iterable[Case]) -> dict[Setup, int]:
    """Return the number of records that each topic must hold before it is read.

    Each of many consumers reads a single partition, so all partitions need as many records.
    Processing stops with a whole transaction, some records after the last counted one.
    """
    need: dict[Setup, int] = {}
    for case in cases:
        if case.reads:
            records = case.records * {"many": case.partitions, "process": _AND_MORE}.get(
                case.kind, 1
            )
            need[case.setup] = max(records, need.get(case.setup, 0))
    return need


def order_of_round(
    cases: Iterable[Case], number: int, *, main: bool = False, slow: bool = True
) -> list[Case]:
    """Return the cases of round ``number`` in their order.

    Cases that are compared are neighbours. Each round begins a group with another of its cases. A
    case with several turns has the other cases of its group between them.

    Args:
        cases: All cases.
        number: The number of the round.
        main: Only the main setups, by which the aims are judged.
        slow: Also the slow cases.
    """
    groups: dict[tuple[Setup, str, str], list[Case]] = {}
    for case in cases:
        if (case.setup.main or not main) and (slow or not case.slow):
            groups.setdefault(
                (case.setup, case.kind, "" if case.kind == "connect" else case.port), []
            ).append(case)
    order = []
    for group in groups.values():
        first = number * 2 % len(group)
        for turn in range(max(case.turns for case in group)):
            order += [case for case in group[first:] + group[:first] if turn < case.turns]
    return order
