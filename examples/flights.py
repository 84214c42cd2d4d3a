"""A year of flights out of New York through Kafka and Spark, every step checked: ``python examples/flights.py``.

What ``make demo`` runs. The parts are in the folder beside this file; ``flights/demo.py`` has the way through them.
"""

import sys

if __name__ == "__main__":
    try:
        from flights.main import main

        code = main()
    except KeyboardInterrupt:  # while it imports: later ones are seen to inside
        code = 130
    sys.exit(code)
