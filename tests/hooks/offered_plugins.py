"""Plugins of single hooks, and the settings of clients that have them."""

from __future__ import annotations

import types
from typing import Any

from trikafka import hookimpl
from trikafka.testing import ScriptedCluster


def plugin(**hooks: Any) -> object:
    """Return a plugin with these functions as its hooks."""
    return types.SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})


def settings(cluster: ScriptedCluster, *plugins: object, **more: Any) -> dict[str, Any]:
    """Return the settings of a client of ``cluster`` with these plugins."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "plugins": plugins,
        **more,
    }
