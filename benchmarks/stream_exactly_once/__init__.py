"""A Spark stream from topic to topic that is killed repeatedly.

Is each record copied once? A kill ends the driver, the JVM and the workers.
"""
