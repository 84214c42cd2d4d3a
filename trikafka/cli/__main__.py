"""``python -m trikafka.cli``."""

from . import main

main()
