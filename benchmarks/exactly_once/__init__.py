"""Read, process, write while everything dies: workers by SIGKILL, brokers too, members come and go. Was a record lost or doubled?

``python -m benchmarks.exactly_once`` (``make exactly-once``). What counts is what librdkafka reads with ``read_committed``.
"""
