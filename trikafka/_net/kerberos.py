"""GSSAPI: kafka-python's mechanism, which needs the package ``gssapi``, behind the interface of :mod:`trikafka._wire.sasl`."""

from __future__ import annotations

from ..errors import HandshakeError


class Kerberos:
    """One authentication by Kerberos. All of it may block: it runs in a thread."""

    def __init__(self, service: str, host: str) -> None:
        from kafka.net.sasl.gssapi import SaslMechanismGSSAPI

        try:
            self._mechanism = SaslMechanismGSSAPI(sasl_kerberos_service_name=service, host=host)
        except RuntimeError as error:
            raise HandshakeError("sasl_mechanism='GSSAPI' needs the package gssapi: pip install 'trikafka[gssapi]'") from error

    def first(self) -> bytes:
        """See :class:`trikafka._wire.sasl.Mechanism`."""
        return bytes(self._mechanism.auth_bytes())

    def respond(self, challenge: bytes) -> bytes | None:
        """See :class:`trikafka._wire.sasl.Mechanism`."""
        self._mechanism.receive(challenge)
        return None if self._mechanism.is_done() else bytes(self._mechanism.auth_bytes())
