"""The benchmarks: trikafka beside other clients, against one real broker.

``python -m benchmarks`` runs them; ``docs/benchmarks.md`` shows the results.
"""
