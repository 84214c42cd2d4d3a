"""The conversations of a group member: join, sync, heartbeats, and the listeners' turn."""
