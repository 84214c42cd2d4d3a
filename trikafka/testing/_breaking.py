"""Faults of one API of a scripted cluster that last until the end of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .cluster import ScriptedCluster
from .faults import cut


class Breakable(Protocol):
    """An API with two error codes: one that clients retry after, and one that they do not."""

    @property
    def name(self) -> str: ...
    @property
    def retriable(self) -> int: ...
    @property
    def fatal(self) -> int: ...


#: Begins each fault, by its description.
HOW: dict[str, Callable[[ScriptedCluster, Breakable], object]] = {
    "a code that passes": lambda cluster, api: cluster.fail(api.name, api.retriable, None),
    "a code that does not": lambda cluster, api: cluster.fail(api.name, api.fatal, None),
    "no response": lambda cluster, api: cluster.silence(api.name),
    "a cut connection": lambda cluster, api: cluster.drop(api.name, None),
    "garbage": lambda cluster, api: cluster.garbage(api.name, b"\0\0\0\x09garbage!!", None),
    "a damaged response": lambda cluster, api: cluster.damage(api.name, None, change=cut),
}
