"""The conversations of a share consumer: membership, and one fetch task for each broker."""
