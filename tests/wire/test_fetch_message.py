"""The Fetch request, byte for byte as kafka-python writes it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest

from trikafka._wire import messages
from trikafka._wire.fetch import FetchMessage

names = st.text(max_size=200).filter(lambda name: len(name.encode()) < 2**15)
wanted = st.tuples(st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1))
topics = st.dictionaries(names, st.lists(wanted, max_size=3), max_size=3)
sizes = st.integers(0, 2**31 - 1)


@given(topics, st.integers(4, 12), sizes, sizes, sizes, sizes, st.integers(0, 1), names, names)
def test_requests(
    given_topics: Any, version: int, wait: int, least: int, most: int, of_each: int, level: int, rack: str, client_id: str
) -> None:
    message: Any = FetchMessage(
        given_topics,
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        partition_bytes=of_each,
        isolation_level=level,
        rack=rack,
    )
    make = FetchRequest.FetchTopic
    other = FetchRequest(
        replica_id=-1,
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        isolation_level=level,
        session_id=0,
        session_epoch=-1,
        topics=[
            make(
                topic=name,
                partitions=[
                    make.FetchPartition(
                        partition=number,
                        current_leader_epoch=epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=of_each,
                    )
                    for number, epoch, offset in parts
                ],
            )
            for name, parts in given_topics.items()
        ],
        forgotten_topics_data=[],
        rack_id=rack,
    )
    ours, theirs = (messages.encode_request(each, version, 77, client_id) for each in (message, other))
    assert ours.frame == theirs.frame
    assert (ours.api, ours.version, ours.expects_response) == (theirs.api, theirs.version, theirs.expects_response)
    flexible = (each.response_class.flexible_version_q(version) for each in (ours, theirs))
    assert len(set(flexible)) == 1
