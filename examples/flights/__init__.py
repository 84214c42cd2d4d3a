"""The demo in parts. ``demo`` is the way through; the others each do one thing and know nothing of each other."""
