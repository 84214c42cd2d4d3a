"""The extensions of a token for OAUTHBEARER (KIP-342)."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: RFC 7628, section 3.1
_NAME = re.compile("[A-Za-z]+")
_VALUE = re.compile("[\\x21-\\x7e \\t\\r\\n]+")


def wrong_extension(extensions: object) -> str:
    """Return what is wrong with extensions of OAUTHBEARER; empty if nothing is.

    Java's client has the same rules (KIP-342). A broker refuses the whole message without a reason.
    """
    if not isinstance(extensions, Mapping):
        return f"extensions must be a mapping of names and values, not {type(extensions).__name__}"
    for name, value in extensions.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "auth":
            return f"an extension's name must be of the letters A to Z, and not 'auth': {name!r}"
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            return f"the value of extension {name!r} must be text of ASCII, and not empty"
    return ""
