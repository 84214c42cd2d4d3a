"""Text of a peer (a broker, a token endpoint, a registry) in errors and logs.

The peer chooses that text. A newline could forge a log line, an escape sequence could control the
terminal, a change of direction could reverse a name, and a megabyte could fill a disk.
"""

from __future__ import annotations

#: The most characters of a peer's text in an error or log line.
MOST = 300
_CUT = "..."


def peer_text(said: object, most: int = MOST) -> str:
    """Return at most ``most`` characters of a peer's text, all of them printable."""
    text = str(said)
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - len(_CUT)] + _CUT


def printable(text: str) -> str:
    r"""Return the text with an escape such as ``\\n`` for each unprintable character."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
