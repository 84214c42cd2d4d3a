"""Hints for names that other Kafka clients have, and these do not."""

from __future__ import annotations

import re
from typing import NoReturn

_BLOCK = "use its 'async with' block"
_TRANSACTION = "use 'async with producer.transaction() as transaction:'"
#: For each client the names of others, and what to do instead.
_HINTS = {
    "Consumer": {
        "commit_async": "use commit()",
        "commit_sync": "use commit()",
        "consume": "use receive_batch(timeout=...)",
        "get_watermark_offsets": "use beginning_offsets() and end_offsets()",
        "getmany": "use receive_batch(timeout=...)",
        "getone": "use receive()",
        "highwater": "use current_lag()",
        "partitions_for_topic": "use partitions_for()",
        "poll": "use receive(), or receive_batch(timeout=...)",
        "store_offsets": "use mark_processed()",
        "topics": "use list_topics()",
    },
    "Producer": {
        "abort_transaction": _TRANSACTION,
        "begin_transaction": _TRANSACTION,
        "commit_transaction": _TRANSACTION,
        "init_transactions": _TRANSACTION,
        "poll": "no call is needed: the acks of enqueue() and send_nowait() are awaited",
        "produce": "use enqueue()",
        "send_and_wait": "use send()",
        "send_offsets_to_transaction": "use transaction.send_offsets()",
    },
    "ShareConsumer": {
        "acknowledge": "use 'async with delivery:', or delivery.accept()",
        "commit_async": "use flush()",
        "commit_sync": "use flush()",
        "poll": "use receive(), or receive_batch()",
    },
    "Admin": {"incremental_alter_configs": "use alter_configs()"},
}
#: Names that no client has.
_ALL = {
    "close": f"{_BLOCK}, or aclose()",
    "start": _BLOCK,
    "stop": f"{_BLOCK}, or aclose()",
}


def raise_missing(client: object, name: str) -> NoReturn:
    """Raise the :exc:`AttributeError` of a name that a client does not have, with a hint."""
    kind = type(client)
    if hasattr(kind, name):
        # The client has the property, and an AttributeError came from inside of it.
        object.__getattribute__(client, name)
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if not name.startswith("_") and (hint := _hint(kind, name)):
        # With the object, Python would add a suggestion of its own, often a private name.
        raise AttributeError(f"{text}; {hint}", name=name, obj=None)
    raise AttributeError(text, name=name, obj=client)


def _hint(kind: type, name: str) -> str | None:
    snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()  # Java's names
    known = _HINTS.get(kind.__name__, {})
    if snake in known:
        return known[snake]
    if snake in _ALL:
        # A share consumer ends with its block only.
        return _ALL[snake] if hasattr(kind, "aclose") else _BLOCK
    for near in (snake, snake.replace("consumer_", "")):
        if near != name and hasattr(kind, near):
            return f"use {near}()" if callable(getattr(kind, near)) else f"use {near}"
    return None
