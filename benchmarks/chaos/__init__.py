"""The producer under faults (``make chaos``).

Is a record lost, duplicated or reordered? There are three brokers with a fault proxy before each
(:mod:`trikafka_broker.proxy`). Three producers write with all four calls at once, under a plan of
faults made from a seed. The :class:`.ledger.Ledger` has every record with its outcome. In the end
librdkafka reads everything, and :mod:`.check` compares.
"""
