"""The conversations that any client has: metadata, coordinators, ends of logs, telemetry."""
