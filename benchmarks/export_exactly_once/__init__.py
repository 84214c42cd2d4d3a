"""An exporter that is killed repeatedly while records arrive and brokers die.

A reader checks the destination all the time: are rows lost or duplicated at any moment?
"""
