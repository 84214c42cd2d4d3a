"""The conversations about records to write, and about transactions."""
