"""The Fetch request, whose bytes equal kafka-python's."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer.fetch import FetchRequest

from trikafka._wire import messages
from trikafka._wire.fetch import FetchMessage
from trikafka.errors import ConfigurationError, UnsupportedVersionError

names = st.text(max_size=200).filter(lambda name: len(name.encode()) < 2**15)
int32s = st.integers(-1, 2**31 - 1)
wanted = st.tuples(st.integers(0, 2**31 - 1), int32s, st.integers(0, 2**63 - 1))
wanted_with_epoch = st.tuples(st.integers(0, 2**31 - 1), int32s, st.integers(0, 2**63 - 1), int32s)
topics = st.dictionaries(names, st.lists(wanted | wanted_with_epoch, max_size=3), max_size=3)
forgotten = st.none() | st.dictionaries(
    names, st.lists(st.integers(0, 2**31 - 1), max_size=3), max_size=3
)
sizes = st.integers(0, 2**31 - 1)
sessions = st.tuples(sizes, int32s)
VERSIONS = st.integers(4, 17)


def message(topics: Any, **more: Any) -> Any:
    return FetchMessage(topics, max_wait_ms=1, min_bytes=1, max_bytes=1, partition_bytes=1, **more)


def ids_of(*names: str) -> dict[str, UUID]:
    return {name: UUID(int=hash(name) & 2**64 - 1) for name in names}


@given(
    topics,
    VERSIONS,
    sizes,
    sizes,
    sizes,
    sizes,
    st.integers(0, 1),
    names,
    names,
    sessions,
    forgotten,
)
def test_bytes_equal_kafka_pythons(
    given_topics: Any,
    version: int,
    wait: int,
    least: int,
    most: int,
    of_each: int,
    level: int,
    rack: str,
    client_id: str,
    session: tuple[int, int],
    gone: Any,
) -> None:
    ids = ids_of(*given_topics, *(gone or ()))
    message: Any = FetchMessage(
        given_topics,
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        partition_bytes=of_each,
        isolation_level=level,
        rack=rack,
        session=session,
        forgotten=gone,
        topic_ids=ids if version >= 13 else None,
    )
    make = FetchRequest.FetchTopic
    other = FetchRequest(
        replica_id=-1,
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        isolation_level=level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            make(
                topic=name,
                topic_id=ids[name],
                partitions=[
                    make.FetchPartition(
                        partition=part[0],
                        current_leader_epoch=part[1],
                        fetch_offset=part[2],
                        last_fetched_epoch=part[3] if len(part) > 3 else -1,
                        log_start_offset=-1,
                        partition_max_bytes=of_each,
                    )
                    for part in parts
                ],
            )
            for name, parts in given_topics.items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, topic_id=ids[name], partitions=parts)
            for name, parts in (gone or {}).items()
        ],
        rack_id=rack,
    )
    ours, theirs = (
        messages.encode_request(each, version, 77, client_id) for each in (message, other)
    )
    assert ours.frame == theirs.frame
    assert (ours.api, ours.version, ours.expects_response) == (
        theirs.api,
        theirs.version,
        theirs.expects_response,
    )
    flexible = (each.response_class.flexible_version_q(version) for each in (ours, theirs))
    assert len(set(flexible)) == 1


def chosen(request: Any, offered: tuple[int, int] = (4, 18)) -> int:
    return messages.choose_version(request, {int(ApiKey.Fetch): offered}, "b:1")


def test_ids_are_used_if_every_topic_has_one() -> None:
    """A version with topic ids is chosen only if every topic of the request has an id."""
    topics = {"a": [(0, 1, 2)], "b": [(0, 1, 2)]}
    assert chosen(message(topics)) == 12
    assert chosen(message(topics, topic_ids=ids_of("a"))) == 12
    assert chosen(message(topics, topic_ids=ids_of("a", "b"))) == 17
    assert chosen(message(topics, topic_ids=ids_of("a", "b", "c"))) == 17
    assert chosen(message(topics, topic_ids=ids_of("a", "b"), forgotten={"c": [1]})) == 12
    assert chosen(message(topics, topic_ids=ids_of("a", "b", "c"), forgotten={"c": [1]})) == 17
    assert chosen(message({}, topic_ids={})) == 17, (
        "a session in which nothing changes names nothing"
    )
    assert chosen(message(topics, topic_ids=ids_of("a", "b")), (4, 14)) == 14
    assert chosen(message(topics, topic_ids=ids_of("a", "b")), (4, 11)) == 11
    with pytest.raises(
        UnsupportedVersionError, match="speaks versions 13 to 18 of FetchRequest, trikafka 4 to 12"
    ):
        chosen(message(topics), (13, 18))


def test_missing_topic_id_is_refused() -> None:
    """A version with topic ids raises ``ConfigurationError`` for a topic without one."""
    with pytest.raises(ConfigurationError, match="FetchRequest v13 cannot carry what it was given"):
        messages.encode_request(message({"a": [(0, 1, 2)]}), 13, 1, "me")
