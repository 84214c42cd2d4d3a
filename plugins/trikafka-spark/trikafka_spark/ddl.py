"""The columns of Spark's Kafka connector in Spark's terms.

They are apart from :mod:`.columns`, since their names need no pyarrow.
"""

DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
HEADERS_DDL = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
