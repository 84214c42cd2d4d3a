"""``python -m trikafka``."""

from .cli import main

main()
