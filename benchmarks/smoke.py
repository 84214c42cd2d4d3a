"""The command ``python benchmarks/smoke.py``: a quick run (see ``benchmarks/glance.py``)."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # This folder has a module called kafka, which would hide kafka-python's package.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from benchmarks.glance import main

    sys.exit(main())
