"""Numbers of things in errors and logs."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """Return ``1 record``, or ``2 records``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
