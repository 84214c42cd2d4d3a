"""The command as a module: ``python -m trikafka.cli``."""

from . import main

main()
