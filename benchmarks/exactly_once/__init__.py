"""Reading, processing and writing under SIGKILL.

Is a record lost or duplicated? Workers and brokers are killed, and members come and go. ``python -m
benchmarks.exactly_once`` (``make exactly-once``) runs it. The result is what librdkafka reads with
``read_committed``.
"""
