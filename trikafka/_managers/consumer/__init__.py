"""The conversations about records to read: positions, fetches, validation."""
