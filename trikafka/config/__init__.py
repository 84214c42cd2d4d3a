"""The settings of clients, and their checks when a client is opened.

Nothing here does I/O. ``clients.py`` declares each setting once. ``make docs`` generates
``typed.py`` from it, for editors and type checkers.
"""

from .budget import MemoryBudget
from .clients import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig
from .properties import from_properties
from .resets import OffsetReset, parse_reset
from .setting import Setting, settings_of
from .topics import check_pattern, check_topic_name, check_topics_given

__all__ = [
    "AdminConfig",
    "ClientConfig",
    "ConsumerConfig",
    "MemoryBudget",
    "OffsetReset",
    "ProducerConfig",
    "Setting",
    "ShareConsumerConfig",
    "check_pattern",
    "check_topic_name",
    "check_topics_given",
    "from_properties",
    "parse_reset",
    "settings_of",
]
