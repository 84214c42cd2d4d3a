"""A Spark stream that is killed again and again, driver, JVM and workers: from a topic to a topic, each record once."""
