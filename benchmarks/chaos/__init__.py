"""The producer under everything that goes wrong, and whether it lost, doubled or reordered a record (``make chaos``).

Three brokers, a fault proxy before each (:mod:`trikafka_broker.proxy`), three producers that write by all four calls at once, and a
plan of faults made from a seed. What was written and what became of it is in the :class:`.ledger.Ledger`; in the end librdkafka
reads everything, and :mod:`.check` compares.
"""
