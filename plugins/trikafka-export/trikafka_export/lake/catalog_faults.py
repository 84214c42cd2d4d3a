"""Errors of Iceberg catalogs after which another attempt may succeed."""

from __future__ import annotations

from requests.exceptions import ConnectionError, ProxyError, SSLError

#: By their names, because some of the libraries are optional. Glue's and DynamoDB's library is not
#: among them: it has sent the request again already.
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


def may_pass(error: BaseException) -> bool:
    """Return whether the catalog may soon be well again.

    A catalog that did not respond in time is not asked again: each attempt might take as long.
    """
    if isinstance(error, ConnectionError):
        return not isinstance(error.__cause__, ProxyError | SSLError)
    return type(error).__name__ in _PASSING
