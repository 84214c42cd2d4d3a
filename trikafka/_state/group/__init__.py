"""The state of a group member. No I/O."""
