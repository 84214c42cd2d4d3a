"""Schemas of messages that kafka-python lacks, in kafka-python's JSON form.

``extra_messages`` makes the classes of the messages.
"""
