"""Every exception of trikafka, and the one table of broker error codes.

This package defines the meaning of an error: whether a call may retry, and what it must look up
before. Managers never compare error codes. They call :func:`from_code` and read the three flags of
the exception.
"""

from ..error_codes import ErrorCode as ErrorCode
from .classes import *  # noqa: F403 - all of them
from .missing_topic import no_topic as no_topic
from .missing_topic import topic_error as topic_error
from .missing_topic import topic_missing as topic_missing
from .table import from_code as from_code
