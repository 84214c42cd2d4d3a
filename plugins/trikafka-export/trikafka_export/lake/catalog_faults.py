"""Errors of Iceberg catalogs after which another attempt may succeed."""

from __future__ import annotations

import re

from requests.exceptions import ConnectionError, ProxyError, SSLError, Timeout

#: The names of errors, because some of the libraries are optional. The errors of boto3 (Glue,
#: DynamoDB) are left out: boto3 has repeated the request.
_PASSING = frozenset(
    {
        # pyiceberg's, for status 500, 502 and 504 of a commit, for 503, and for other faults
        "CommitStateUnknownException",
        "ServiceUnavailableError",
        "ServerError",
        # SQLAlchemy's, for a database that is locked, or was restarted
        "OperationalError",
        "InterfaceError",
    }
)
_LASTING = (Timeout, ProxyError, SSLError)
_TOO_LATE = re.compile("timed ?out|timeout", re.IGNORECASE)


def may_pass(error: BaseException) -> bool:
    """Return whether another attempt may succeed.

    A catalog that did not respond in time is not asked again: each attempt might take as long.
    """
    if isinstance(error, ConnectionError):
        return not isinstance(error, _LASTING) and not isinstance(error.__cause__, _LASTING)
    # Of SQLAlchemy's errors, only the driver's text: the rest has the statement and its parameters.
    driver = getattr(error, "orig", None)
    return type(error).__name__ in _PASSING and not (driver and _TOO_LATE.search(str(driver)))
