"""The measured process: ``python -m benchmarks.child JOB``.

It prints one line of JSON: the measurements, or the reason for having none.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

from .jobs import Job, Missing, Outcome

#: Kinds with a separate module of the peer, by the suffix of its name.
_MODULES = {
    **dict.fromkeys(("assigned", "group", "many", "streams"), "_consumers"),
    "process": "_processing",
    "share": "_sharing",
}


def main() -> int:
    job = Job.from_json(sys.argv[1])
    peer = importlib.import_module(f"benchmarks.peers.{job.peer}{_MODULES.get(job.kind, '')}")
    ways: dict[tuple[str, str], Callable[[Job], Outcome]] = peer.WAYS
    try:
        if (job.kind, job.way) not in ways:
            raise Missing(f"{job.peer} has nothing for {job.kind}/{job.way}")
        outcome = ways[job.kind, job.way](job)
    except Missing as error:
        print(json.dumps({"missing": str(error)}))
        return 0
    print(outcome.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
