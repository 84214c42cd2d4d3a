"""The benchmarks: trikafka beside other clients, against one real broker. ``python -m benchmarks``; ``docs/benchmarks.md``."""
