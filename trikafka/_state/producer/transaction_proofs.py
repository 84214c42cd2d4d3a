"""The table of what an error proves about a request that ends a transaction. No I/O.

A response with an error code does not prove that the request was not carried out. The coordinator
appends to its log first, and a failure after the append is an error too. So the rule is reversed: a
request that was sent may have been carried out, unless its error is in this table. Where nothing is
proven the request is repeated, which is safe because the coordinator recognizes the epoch. Until
there is an answer the transaction is undecided.

The other requests of a transaction need no proofs. After an error of AddPartitionsToTxn,
AddOffsetsToTxn or TxnOffsetCommit the same request is sent again, which adds nothing twice, or the
transaction is aborted, which undoes what was added. The transaction records before the first
attempt that it has to be ended.

The codes are those of Kafka's ``TransactionCoordinator``, versions 2.5 to 4.3, of ``KafkaApis`` in
front of it and of the append to ``__transaction_state`` behind it.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from ...error_codes import ErrorCode
from ...errors import TrikafkaError, UnsupportedVersionError


class Proof(Enum):
    """The facts that are certain after an error."""

    NOTHING = "the request may have been carried out"
    NOT_DONE = "this request was not carried out; an earlier attempt may have been"
    NOT_COMMITTED = "no attempt has committed the transaction, nor will one"


class Row(NamedTuple):
    """The proof of one error code, and how the coordinator arrives at that code."""

    proof: Proof
    why: str


_E = ErrorCode
_BEFORE_THE_STATE: dict[int, Row] = {
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Row(
        Proof.NOT_DONE, "checked before the coordinator sees the request"
    ),
    _E.CLUSTER_AUTHORIZATION_FAILED: Row(
        Proof.NOT_DONE, "checked before the coordinator sees the request"
    ),
    _E.INVALID_REQUEST: Row(
        Proof.NOT_DONE, "the request's fields are checked before the state is looked up"
    ),
    # Kafka 4.4 also answers so, before the append, if it cannot write the new state because
    # ``transaction.version`` has fallen to 0. It may then never end the transaction.
    _E.UNSUPPORTED_VERSION: Row(
        Proof.NOT_DONE, "the version is checked before the request is read"
    ),
    _E.COORDINATOR_LOAD_IN_PROGRESS: Row(
        Proof.NOT_DONE, "the state is not loaded yet, so nothing can be looked up"
    ),
    _E.CONCURRENT_TRANSACTIONS: Row(
        Proof.NOT_DONE, "another change of the state is under way; it may be an earlier attempt's"
    ),
    _E.INVALID_PRODUCER_EPOCH: Row(
        Proof.NOT_DONE, "the epoch is compared before the state changes"
    ),
    _E.PRODUCER_FENCED: Row(Proof.NOT_DONE, "the epoch is compared before the state changes"),
}
# A code that is missing here proves nothing. That is deliberate, among others, for
# UNKNOWN_SERVER_ERROR (any exception, also after the append, and an append that was refused as too
# large), COORDINATOR_NOT_AVAILABLE (the append timed out or had too few replicas: it may be
# replicated later), NOT_COORDINATOR (the coordinator moved, perhaps after the append),
# REQUEST_TIMED_OUT, and every code that trikafka does not know.
PROOFS: dict[str, dict[int, Row]] = {
    "EndTxn": {
        **_BEFORE_THE_STATE,
        _E.INVALID_PRODUCER_ID_MAPPING: Row(
            Proof.NOT_DONE, "the producer id is compared before the state changes"
        ),
        _E.UNKNOWN_PRODUCER_ID: Row(
            Proof.NOT_DONE, "old brokers: the producer id is looked up before the state changes"
        ),
        _E.INVALID_TXN_STATE: Row(
            Proof.NOT_COMMITTED,
            "the state is not a commit of this epoch: a repeated one would be NONE",
        ),
        _E.TRANSACTION_ABORTABLE: Row(
            Proof.NOT_COMMITTED, "the coordinator says that only an abort is possible (KIP-890)"
        ),
    },
    "InitProducerId": {
        **_BEFORE_THE_STATE,
        _E.INVALID_TRANSACTION_TIMEOUT: Row(
            Proof.NOT_DONE, "the request's fields are checked before the state is looked up"
        ),
    },
}


def proof_of(error: TrikafkaError, request: Literal["EndTxn", "InitProducerId"]) -> Proof:
    """Return the proof that ``error`` gives about a ``request`` handed to a connection.

    An error without a code comes from the connection: lost, damaged, silent, or refused when it had
    to authenticate again. None of these says what the broker did before.
    """
    if isinstance(error, UnsupportedVersionError):
        return Proof.NOT_DONE
    row = None if error.code is None else PROOFS[request].get(error.code)
    return Proof.NOTHING if row is None else row.proof
