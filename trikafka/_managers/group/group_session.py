"""The session timeout of a group of the consumer protocol (KIP-848).

After that time a coordinator removes a silent member. The heartbeats of KIP-848 do not carry the
timeout: it is a configuration of the group (``consumer.session.timeout.ms``). The coordinator
returns its value to a principal that may describe the group's configuration.
"""

from __future__ import annotations

import logging
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from ..._net.brokers import Purpose
from ...config import ConsumerConfig
from ...errors import AuthenticationError, TrikafkaError, from_code
from .membership_base import GroupRequests

#: The default of Kafka's brokers (seconds), used if the coordinator does not return the group's
#: configuration.
BROKER_DEFAULT = 45.0
#: The time limit of a request for the configuration (seconds), and its number of attempts before a
#: member joins without.
_LIMIT, _ATTEMPTS = 2.0, 2
_GROUP_RESOURCE, _CONFIG = 32, "consumer.session.timeout.ms"
_PURPOSE: Purpose = "coordinator"
_log = logging.getLogger("trikafka.membership")


class GroupSession:
    """The session timeout that one member uses."""

    def __init__(self, config: ConsumerConfig, group: str, requests: GroupRequests) -> None:
        self._config = config
        self._group = group
        self._requests = requests
        self._given = (
            config.session_timeout_ms / 1000 if "session_timeout_ms" in config.explicit else None
        )
        self._found: float | None = None  # seconds, as the coordinator returned it
        # Requests that failed in a row; ``None``: no more are made before the next join.
        self._failures: int | None = None
        self._unknown_because: TrikafkaError | None = None
        self._logged = False

    def forget(self) -> None:
        """Ask again before the next heartbeat: the group's configuration may have changed."""
        self._failures = 0

    @property
    def at_coordinator(self) -> float:
        """The seconds after which the coordinator removes a silent member, as far as is known."""
        return BROKER_DEFAULT if self._found is None else self._found

    @property
    def limit(self) -> float:
        """The seconds without a heartbeat's response after which this member stops.

        That is ``session_timeout_ms`` if it was given and is shorter than the coordinator's. With a
        longer one, two members could deliver the same records.
        """
        if self._given is None:
            return self.at_coordinator
        return self._given if self._found is None else min(self._given, self._found)

    async def learn(self) -> None:
        """Ask the coordinator for the timeout, once for each time that the member joins.

        If the coordinator refuses, or fails twice, the default is assumed.

        Raises:
            AuthenticationError: The error concerns more than this request.
            TrikafkaError: The first failure, if another attempt may succeed.
        """
        if self._failures is None:
            return
        try:
            self._found = await self._ask()
            self._unknown_because = None
        except AuthenticationError:
            raise
        except TrikafkaError as error:
            self._failures += 1
            if error.retriable and self._failures < _ATTEMPTS:
                raise
            self._found = None
            self._unknown_because = error
        self._failures = None

    def joined(self) -> None:
        """Log, once, that a default is assumed.

        In a group with a shorter session a partition could have two owners for a while.
        """
        if self._unknown_because is not None and self._given is None and not self._logged:
            self._logged = True
            _log.info(
                "group %s: its session timeout is assumed to be %g s, the default of brokers, "
                "because reading %s failed: %s; if the group has a shorter one, allow "
                "DescribeConfigs on the group, or set session_timeout_ms with "
                "group_protocol='consumer'",
                self._group,
                BROKER_DEFAULT,
                _CONFIG,
                self._unknown_because,
            )

    async def _ask(self) -> float | None:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_GROUP_RESOURCE, resource_name=self._group, configuration_keys=[_CONFIG]
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=False, include_documentation=False
        )
        return self._read(
            await self._requests.ask(request, min(_LIMIT, self._config.request_timeout), _PURPOSE)
        )

    def _read(self, response: Any) -> float | None:
        for result in response.results or ():
            if result.resource_name != self._group:
                continue
            if result.error_code:
                raise from_code(
                    result.error_code,
                    f"configuration of group {self._group!r}",
                    operation="DescribeConfigs",
                )
            for entry in result.configs or ():
                if (
                    entry.name == _CONFIG
                    and entry.value
                    and entry.value.isdecimal()
                    and int(entry.value) > 0
                ):
                    return int(entry.value) / 1000
        raise TrikafkaError(f"the response has no {_CONFIG} of group {self._group!r}")
