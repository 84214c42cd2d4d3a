"""A quick run of everything beside the others: ``python benchmarks/smoke.py``; what it does stands in ``benchmarks/glance.py``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # this folder has a module called kafka
    from benchmarks.glance import main

    sys.exit(main())
