"""Temporary and final refusals of a broker, in one table.

An operator can lift a temporary refusal, so the client raises the error once and then retries. A
final refusal is raised until the program changes its request, since an unchanged request would fail
in the same way.

==========================================  ========  ==============================================
refusal                                     may pass  reason
==========================================  ========  ==============================================
``AuthenticationError`` (also               yes       credentials are created and rotated,
``HandshakeError``)                                   certificates and tokens renewed
``AuthorizationError`` (group, topic,       yes       access rules are added, and reach brokers one
cluster, transactional id)                            after the other
``GroupFullError``                          yes       another member leaves
UNKNOWN_SERVER_ERROR, unknown codes         yes       nothing says that the broker's failure lasts
``UnsupportedVersionError``,                no        no version of the request is in common
UNSUPPORTED_VERSION
``GroupProtocolMismatchError``              no        the other members have no assignor in common
                                                      with this program, or are of a share group
``FencedInstanceIdError``                   no        two programs with one instance id would fence
                                                      each other in turn
``UnsupportedAssignorError``,               no        the broker refuses a setting of this program
``InvalidRegularExpressionError``,
``InvalidTopicError``, INVALID_GROUP_ID,
INVALID_SESSION_TIMEOUT, INVALID_REQUEST
``ConfigurationError``, ``PluginError``     no        the program, or a plugin of it, is wrong
==========================================  ========  ==============================================
"""

from __future__ import annotations

from ..error_codes import KNOWN_CODES, ErrorCode
from .classes import (
    AuthenticationError,
    AuthorizationError,
    BrokerResponseError,
    GroupFullError,
    TrikafkaError,
)


def may_be_lifted(error: TrikafkaError) -> bool:
    """Return whether the refusal ``error`` may pass without a change of the program."""
    if isinstance(error, AuthenticationError | AuthorizationError | GroupFullError):
        return True
    return is_unexplained(error)


def is_unexplained(error: TrikafkaError) -> bool:
    """Return whether a broker reported a fault of its own, without a reason that is known here.

    A code of a newer broker counts as UNKNOWN_SERVER_ERROR, as in Java's client.
    """
    if not isinstance(error, BrokerResponseError):
        return False
    return error.code == ErrorCode.UNKNOWN_SERVER_ERROR or error.code not in KNOWN_CODES
