"""Every exception that trikafka raises, and the one table of broker error codes.

Owns the meaning of an error: whether a call may try again, and what must be looked up anew before it does. Managers never
compare error codes: they call :func:`from_code` and look at the three flags of what comes back.
"""

from ..error_codes import ErrorCode as ErrorCode
from .classes import *  # noqa: F403 - all of them
from .missing_topic import no_topic as no_topic
from .missing_topic import topic_error as topic_error
from .missing_topic import topic_missing as topic_missing
from .table import from_code as from_code
