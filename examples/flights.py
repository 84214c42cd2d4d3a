"""A year of flights out of New York through Kafka and Spark, every step checked.

Run ``python examples/flights.py``, or ``make demo``. The parts are in the folder beside this file;
``flights/demo.py`` calls them in order.
"""

import sys

if __name__ == "__main__":
    try:
        from flights.main import main

        code = main()
    except KeyboardInterrupt:  # during the imports; main() handles later ones
        code = 130
    sys.exit(code)
