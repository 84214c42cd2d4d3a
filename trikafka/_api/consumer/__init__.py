"""The public consumer, its streams, and the composition of its managers."""
