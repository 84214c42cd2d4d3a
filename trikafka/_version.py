"""trikafka's version, as brokers and users see it."""

VERSION = "0.1.0"
