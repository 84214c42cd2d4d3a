"""The configs of topics: their names, and the check of their values. No I/O, no state."""

from __future__ import annotations

from collections.abc import Mapping

_NUMBERS = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.decompressed.message.bytes",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("compact", "delete"),
    "compression.type": ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    **dict.fromkeys(
        [
            "errors.deadletterqueue.group.enable",
            "preallocate",
            "remote.log.copy.disable",
            "remote.log.delete.on.disable",
            "remote.storage.enable",
            "unclean.leader.election.enable",
        ],
        ("true", "false"),
    ),
}
_LISTS = frozenset({"cleanup.policy"})
#: The configs whose values are not checked.
_OTHERS = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "min.cleanable.dirty.ratio",
    }
)


def fault_of(config: Mapping[str, str | None]) -> str | None:
    """Return why Kafka refuses a topic's config; ``None`` if it does not.

    Kafka knows no other names. Those without a dot are accepted here: tests make them up.
    """
    for name, value in config.items():
        if "." in name and name not in _NUMBERS | _CHOICES.keys() | _OTHERS:
            return f"Unknown topic config name: {name}"
        if value is not None and (wrong := _fault_of_value(name, value)) is not None:
            return f"Invalid value {value} for configuration {name}: {wrong}"
    return None


def _fault_of_value(name: str, value: str) -> str | None:
    if name in _NUMBERS:
        try:
            number = int(value)
        except ValueError:
            return "Not a number"
        return "Value must be at least 0" if name == "max.message.bytes" and number < 0 else None
    choices = _CHOICES.get(name)
    if choices is None:
        return None
    given = [text for text in value.split(",") if text] if name in _LISTS else [value]
    if all(text in choices for text in given):
        return None
    return f"String must be one of: {', '.join(choices)}"
