"""A program that starts Spark as an export does, with settings from JSON on its standard input.

It prints the settings that arrived, and ends when its standard input ends.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from trikafka_spark import shared_context


def main() -> None:
    given: dict[str, str] = json.loads(sys.stdin.readline())
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(shared_context.acquire("local[1]", "jvm", given))
    )
    thread.start()
    thread.join()
    context = found[0]
    system = context._jvm.java.lang.System
    conf = dict(context.getConf().getAll())
    properties = {
        name: system.getProperty(name)
        for name in ("mine", "theirs", "defaults", "spark.theirs", "spark.both")
    }
    answer = {
        "conf": {name: conf.get(name) for name in given},
        "properties": properties,
        "scratch": str(shared_context._scratch),
    }
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()
    shared_context.release(context)


if __name__ == "__main__":
    main()
