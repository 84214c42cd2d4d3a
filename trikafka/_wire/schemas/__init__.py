"""Schemas of the messages that kafka-python lacks, in its JSON form.

``extra_messages`` makes classes of them.
"""
