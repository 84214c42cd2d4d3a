"""A run: the topics are filled, then processes are measured in rounds, one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .jobs import Job, Missing
from .kafka import Kafka
from .plan import PLAIN, Case, filled, order_of_round
from .programs import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent
#: Seconds after which a process is killed and counts as failed.
_LIMIT = 600.0
#: Records that a writer delivers before its window opens.
_FIRST = 1
#: How often a topic is read before the first round in a way that the broker is slow at.
_WARMING = 4


@dataclass
class Options:
    """The number of rounds, and the time limit (seconds).

    No round begins that would probably end later than ``limit`` after the start. Every second round
    has the main setups only, together with the slow cases. A round that would take too long is run
    without the slow cases and the other setups.
    """

    rounds: int
    limit: float


@dataclass
class Findings:
    """The results of a run: the measurements of each case by round, missing and failed cases."""

    runs: dict[Case, list[dict[str, Any]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    rounds: int = 0


class Runner:
    """A runner of cases against one broker.

    ``tell`` is called with a line about each step.
    """

    def __init__(
        self, kafka: Kafka, cases: list[Case], options: Options, tell: Callable[[str], None]
    ) -> None:
        self._kafka = kafka
        self._cases = cases
        self._options = options
        self._tell = tell
        self._began = time.monotonic()
        self._written = 0
        self._made: set[str] = set()
        self._took: dict[Case, float] = {}
        self.findings = Findings()

    def run(self) -> Findings:
        """Build the programs, fill the topics, warm the broker; then measure round after round."""
        self.build(self._cases)
        self._began = time.monotonic()
        self.fill(self._cases)
        alone = self._options.rounds == 1
        if not alone:
            self.warm(self._cases)
        for number in range(1, self._options.rounds + 1):
            even = number % 2 == 0
            order = order_of_round(self._cases, number, main=even, slow=even or alone)
            if not self._fits(order):
                order = order_of_round(self._cases, number, main=True, slow=False)
            if not self._fits(order):
                self._tell(f"round {number} is left out: it would not end in time")
                break
            for done, case in enumerate(order, 1):
                self._tell(
                    f"round {number} of {self._options.rounds}, {done} of {len(order)}: {case.name}"
                )
                began = time.monotonic()
                self._measure(case, number)
                self._took[case] = max(time.monotonic() - began, self._took.get(case, 0.0))
            self.findings.rounds = number
        return self.findings

    def _fits(self, order: list[Case]) -> bool:
        """Return whether a round ends in time if each case takes as long as it did before.

        The first round always fits: no case has a duration yet.
        """
        needed = sum(self._took.get(case, 0.0) for case in order)
        return not self._took or time.monotonic() - self._began + needed <= self._options.limit

    def build(self, cases: Iterable[Case]) -> None:
        """Compile the programs of the peers that are not Python.

        A program that cannot be compiled on this machine is not measured.
        """
        cases = list(cases)
        for peer in sorted({case.peer for case in cases} & set(PROGRAMS)):
            self._tell(f"building the program of {peer}")
            try:
                PROGRAMS[peer]()
            except Missing as error:
                self.findings.missing |= {
                    case.name: str(error) for case in cases if case.peer == peer
                }

    def fill(self, cases: Iterable[Case]) -> None:
        """Write the topics that are read.

        Raises:
            RuntimeError: A topic could not be filled.
        """
        for setup, records in filled(cases).items():
            records += -records % setup.partitions
            self._tell(f"filling {setup.topic}: {records:,} records")
            self._made.add(setup.topic)
            self._kafka.create(setup.topic, setup.partitions)
            job = Job(
                *("confluent", "fill", "one", self._kafka.bootstrap, setup.topic, setup.partitions),
                *(setup.size, setup.compression, records),
            )
            found = run_process(job)
            if (
                "seconds" not in found
                or self._kafka.count(setup.topic, setup.partitions) != records
            ):
                raise RuntimeError(f"{setup.topic} could not be filled: {found}")
        # Otherwise the system would write the topics to the disk during the first cases.
        os.sync()

    # A broker encrypts slowly until its JVM has compiled the encryption, which takes some hundreds
    # of megabytes: Arrow was read over TLS at 0.8 to 0.9 million records a second in the first
    # round, and at 2.5 to 3 in the fifth. Without TLS the difference is smaller, because the kernel
    # sends the files. Share groups are alike: half of the broker's processor time in the first four
    # million records was the compiler's. A broker in use is warm, and a client that happens to be
    # measured first should not be behind for it.
    def warm(self, cases: Iterable[Case]) -> None:
        """Read over each encrypted port and in share groups, so that the broker compiles both."""
        readers = {
            (case.kind, case.port, case.way if case.kind == "share" else ""): case
            for case in cases
            if case.peer == "ours"
            and (case.kind == "share" or (case.kind == "consume" and case.port != PLAIN))
        }
        for case in readers.values():
            self._tell(f"warming the broker: {case.name}")
            for _ in range(_WARMING):
                run_process(self._job(case, self._topic(case)))

    # A rate counts only if the work was done. Each result is therefore checked against something
    # that the measured client cannot influence: the bytes of the values that it saw, the broker's
    # end offsets for what it wrote, the records that librdkafka reads as committed for what it
    # processed in transactions, and the broker's type of the group for the protocol. A case that
    # fails a check is not measured again, and the run fails.
    def _measure(self, case: Case, number: int) -> None:
        if case.name in self.findings.missing or case.name in self.findings.failed:
            return
        topic = self._topic(case)
        target = self._written_topic(case) if case.kind == "process" else ""
        found = run_process(self._job(case, topic, target))
        if "seconds" in found and found["value_bytes"] != found["records"] * case.setup.size:
            found = {"failed": f"{found['value_bytes']} bytes in {found['records']} records"}
        if case.writes and "seconds" in found:
            held = self._kafka.count(topic, case.partitions)
            if held != found["records"] + _FIRST:
                found = {
                    "failed": f"{held} records in the topic, {found['records'] + _FIRST} written"
                }
        if case.kind == "group" and "seconds" in found:
            asked = "consumer" if case.way == "consumer" else "classic"
            had = self._kafka.group_type(topic)
            if had != asked:
                found = {"missing": f"the group was to be of type {asked}, and was of type {had}"}
        if target and "seconds" in found:
            written = found["extra"]["written"]
            if (seen := self._kafka.count_committed(target)) != (
                written,
                written * case.setup.size,
            ):
                found = {
                    "failed": f"{seen[0]} records and {seen[1]} bytes committed in the topic, {written} "
                    "records reported"
                }
        for each in {topic, target} - self._made - {""}:
            self._kafka.delete(each)
        if "seconds" in found:
            runs = self.findings.runs.setdefault(case, [])
            runs.append(
                {"round": number, "turn": sum(run["round"] == number for run in runs), **found}
            )
        elif "missing" in found:
            self.findings.missing[case.name] = found["missing"]
        else:
            self.findings.failed[case.name] = found["failed"]
            self._tell(f"{case.name} failed: {found['failed']}")

    def _job(self, case: Case, topic: str, target: str = "") -> Job:
        address, connection = self._kafka.way_in(case.port, case.peer)
        return Job(
            *(case.peer, case.kind, case.way, address, topic, case.partitions),
            *(
                case.setup.size,
                case.setup.compression,
                case.records,
                case.tasks,
                case.rate,
                case.seconds,
            ),
            target=target,
            connection=connection,
        )

    def _topic(self, case: Case) -> str:
        """Return the filled topic, the topic of many partitions, or a new topic of the case's own.

        Several cases share the topics of many partitions.
        """
        if case.reads:
            return case.setup.topic
        if case.kind == "assigned":
            topic = f"assigned-{case.partitions}"
            if topic not in self._made:
                self._kafka.create(topic, case.partitions)
                self._made.add(topic)
            return topic
        return self._written_topic(case)

    def _written_topic(self, case: Case) -> str:
        self._written += 1
        topic = f"written-{self._written}"
        self._kafka.create(topic, case.partitions)
        return topic


def run_process(job: Job) -> dict[str, Any]:
    """Run a job in a process of its own, and return its last line as JSON.

    Returns:
        The result, or ``{"failed": reason}`` if there is none.
    """
    command = [sys.executable, "-m", "benchmarks.child", job.to_json()]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result after {_LIMIT:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    words = done.stderr.strip().splitlines() or ["it said nothing"]
    return {"failed": f"exit code {done.returncode}: {words[-1]}"}
