"""Hints for names that other Kafka clients have, and these do not."""

from __future__ import annotations

import re
from typing import NoReturn

_BLOCK = "its 'async with' block, or aclose()"
_TRANSACTION = "'async with producer.transaction() as transaction:'"
#: For each client the names of others, and what to use.
_HINTS = {
    "Consumer": {
        "commit_async": "commit()",
        "commit_sync": "commit()",
        "consume": "receive_batch(timeout=...)",
        "get_watermark_offsets": "beginning_offsets() and end_offsets()",
        "getmany": "receive_batch(timeout=...)",
        "getone": "receive()",
        "highwater": "current_lag()",
        "partitions_for_topic": "partitions_for()",
        "poll": "receive(), or receive_batch(timeout=...)",
        "store_offsets": "mark_processed()",
        "topics": "list_topics()",
    },
    "Producer": {
        "abort_transaction": _TRANSACTION,
        "begin_transaction": _TRANSACTION,
        "commit_transaction": _TRANSACTION,
        "init_transactions": _TRANSACTION,
        "poll": "nothing: the acks of enqueue() and send_nowait() are awaited",
        "produce": "enqueue()",
        "send_and_wait": "send()",
        "send_offsets_to_transaction": "transaction.send_offsets()",
    },
    "ShareConsumer": {
        "acknowledge": "'async with delivery:', or delivery.accept()",
        "commit_async": "flush()",
        "commit_sync": "flush()",
        "poll": "receive(), or receive_batch()",
    },
    "Admin": {"incremental_alter_configs": "alter_configs()"},
}
_ALL = {"close": _BLOCK, "start": _BLOCK, "stop": _BLOCK}


def raise_missing(client: object, name: str) -> NoReturn:
    """Raise the :exc:`AttributeError` of a name that a client does not have, with a hint."""
    kind = type(client)
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if not name.startswith("_") and (hint := _hint(kind, name)):
        text += f"; use {hint}"
    raise AttributeError(text, name=name, obj=client)


def _hint(kind: type, name: str) -> str | None:
    snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()  # Java's names
    known = _HINTS.get(kind.__name__, {}) | _ALL
    if snake in known:
        return known[snake]
    near = (snake, snake.replace("consumer_", ""))
    return next((f"{each}()" for each in near if each != name and hasattr(kind, each)), None)
