"""The conversations about committed offsets."""
