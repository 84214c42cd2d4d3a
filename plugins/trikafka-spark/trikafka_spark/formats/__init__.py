"""How keys and values are read: JSON, Avro and Protobuf, batch by batch into Arrow columns, by schemas that a plan pins.

From the bottom up: ``errors``, ``options`` (what a user may say), ``registry`` (the client of a schema registry); ``rows`` and
``framing`` (what all formats have in common), one module or two a format; ``parsing`` (the columns of a table), ``pinning`` (what
goes into a plan) and ``letters`` (where that goes which cannot be read).
"""
