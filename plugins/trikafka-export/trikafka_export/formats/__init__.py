"""Parsing of keys and values: JSON, Avro and Protobuf into Arrow columns, batch by batch.

The schemas are pinned by the plan. From the bottom up: ``errors``; ``options`` (the user's
options); ``registry`` (the client of a schema registry); ``rows`` and ``framing`` (shared by all
formats); one module or two per format; ``parsing`` (the columns of a table); ``pinning`` (the
schemas in a plan); ``letters`` (the destination of unreadable records).
"""
