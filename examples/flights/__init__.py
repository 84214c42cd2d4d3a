"""The parts of the demo.

``demo`` calls the others, which each do one thing and do not depend on each other.
"""
