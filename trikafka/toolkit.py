"""Tools for programs that are built on the clients: workers, exporters, commands.

:func:`trikafka.run_tasks` and trikafka's plugins are such programs. Beside these tools they use
only public names of trikafka.
"""

from ._api.client.opens import Unopened, opens
from ._api.client.option_parsing import check_client, shown
from ._checksum import crc32c
from ._net.callers import Caller, Host, calling_for, calling_for_host, set_host
from ._net.deadlines import check_timeout
from ._net.gather import call_each, with_background
from ._net.interrupts import interrupts_unwrapped
from ._net.reminders import Reminder
from ._net.retry import Retry, backoff
from .errors.groups import decisive, with_others

__all__ = [
    "Caller",
    "Host",
    "Reminder",
    "Retry",
    "Unopened",
    "backoff",
    "call_each",
    "calling_for",
    "calling_for_host",
    "check_client",
    "check_timeout",
    "crc32c",
    "decisive",
    "interrupts_unwrapped",
    "opens",
    "set_host",
    "shown",
    "with_background",
    "with_others",
]
