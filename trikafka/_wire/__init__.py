"""The bytes that trikafka reads and writes: messages, record batches, columns. No I/O."""

from .._kafka_python import allow_schemas

allow_schemas()
import kafka as kafka  # noqa: E402  # all its message classes are made while the filter is set
