"""The columns of Spark's Kafka connector as Spark declares them. Apart from :mod:`.columns`: to name them takes no pyarrow."""

DDL = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS_DDL = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
