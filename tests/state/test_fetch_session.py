"""Fetch sessions (KIP-227): the contents of requests.

A model of the broker checks that it always knows which partitions are wanted.
"""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._state.consumer.assignment import Assignment
from trikafka._state.consumer.fetch_session import FetchSession, SessionRequest, Wanted

TPS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(3)]
IDS = {"a": UUID(int=1), "b": UUID(int=2)}


class Table:
    """Partitions at their offsets."""

    def __init__(self) -> None:
        self.assignment = Assignment()
        self.assignment.assign(TPS)

    def wanted(self, tp: TopicPartition, offset: int, topic_id: UUID | None) -> Wanted:
        partition = self.assignment.get(tp)
        partition.seek(offset)
        return Wanted(partition.fetch_begun(), 7, -1, topic_id)


def full(request: SessionRequest) -> set[tuple[str, int, int]]:
    return {
        (topic, number, offset)
        for topic, parts in request.topics.items()
        for number, _, offset, _ in parts
    }


def test_later_requests_name_only_changes() -> None:
    table, session = Table(), FetchSession()
    for tp in TPS:
        session.fetch(tp, table.wanted(tp, 0, IDS[tp.topic]))
    first = session.next_request()
    assert (first.session, first.full, first.topic_ids) == ((0, 0), True, IDS)
    assert full(first) == {(*tp, 0) for tp in TPS}
    session.responded(99)
    nothing = session.next_request()
    assert (nothing.session, nothing.full, nothing.topics, nothing.forgotten) == (
        (99, 1),
        False,
        {},
        {},
    )
    session.responded(99)
    session.fetch(TPS[0], table.wanted(TPS[0], 5, IDS["a"]))
    session.forget(TPS[4])
    third = session.next_request()
    assert third.session == (99, 2)
    assert full(third) == {("a", 0, 5)}
    assert (third.forgotten, third.topic_ids) == ({"b": [1]}, IDS)


def test_brief_absence_forgets_nothing() -> None:
    """A partition that leaves and returns between two requests is not in the forgotten list."""
    table, session = Table(), FetchSession()
    wanted = table.wanted(TPS[0], 0, None)
    session.fetch(TPS[0], wanted)
    session.next_request()
    session.responded(99)
    session.forget(TPS[0])
    session.fetch(TPS[0], wanted)
    assert (full(again := session.next_request()), again.forgotten) == ({("a", 0, 0)}, {})


def test_requests_without_session_take_turns() -> None:
    """Without a session every request names all partitions, in rotated order."""
    table, session = Table(), FetchSession()
    for tp in TPS[:3]:
        session.fetch(tp, table.wanted(tp, 0, None))
    firsts = []
    for _ in range(3):
        request = session.next_request()
        assert request.session == (0, 0)
        firsts.append(request.topics["a"][0][0])
        session.responded(0)
    assert sorted(firsts) == [0, 1, 2]


def test_failed_session_is_ended_and_replaced() -> None:
    table, session = Table(), FetchSession()
    session.fetch(TPS[0], table.wanted(TPS[0], 0, None))
    session.next_request()
    session.responded(99)
    session.next_request()
    session.lost()
    assert session.next_request()[:2] == ((99, 0), True)
    session.responded(100)
    session.next_request()
    assert session.refused(), "at once"
    assert session.next_request()[:2] == ((100, 0), True)
    assert not session.refused(), "not twice at once"


def test_epochs_wrap_to_one() -> None:
    table, session = Table(), FetchSession()
    session.fetch(TPS[0], table.wanted(TPS[0], 0, None))
    session.next_request()
    session.responded(99)
    session._epoch = 2**31 - 1
    session.next_request()
    session.responded(99)
    assert session.next_request().session == (99, 1)


def test_session_by_ids_ends_on_another_id() -> None:
    """A topic without an id, or with another id, ends a session that uses topic ids."""
    for topic_id in (None, UUID(int=9)):
        table, session = Table(), FetchSession()
        session.fetch(TPS[0], table.wanted(TPS[0], 0, IDS["a"]))
        assert session.next_request().topic_ids == {"a": IDS["a"]}
        session.responded(99)
        session.fetch(TPS[0], table.wanted(TPS[0], 1, topic_id))
        request = session.next_request()
        assert (request.session, request.full) == ((99, 0), True)
        assert request.topic_ids == (None if topic_id is None else {"a": topic_id})


class Broker:
    """The broker's knowledge of the session."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.known = dict[tuple[str, int], int]()
        self.made = 0

    def take(self, request: SessionRequest, room: bool) -> int | None:
        """Return the session's id for the response, or ``None`` if the session is unknown."""
        session_id, epoch = request.session
        named = {
            (topic, number): offset
            for topic, parts in request.topics.items()
            for number, _, offset, _ in parts
        }
        if epoch == 0:
            self.known = named
            self.made += 1
            self.id, self.epoch = (self.made, 1) if room else (0, 0)
            return self.id
        if (session_id, epoch) != (self.id, self.epoch):
            return None
        for topic, numbers in request.forgotten.items():
            for number in numbers:
                assert (topic, number) in self.known, "forgotten though it is not known"
                del self.known[topic, number]
        self.known |= named
        self.epoch += 1
        return self.id


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("fetch"),
            st.sampled_from(TPS),
            st.integers(0, 3),
            st.sampled_from([None, "id", "new"]),
        ),
        st.tuples(st.just("forget"), st.sampled_from(TPS)),
        st.tuples(
            st.just("request"),
            st.sampled_from(["fine", "no room", "lost", "lost response", "forgotten"]),
        ),
    ),
    max_size=40,
)


@given(STEPS)
def test_broker_always_knows_what_is_wanted(steps: list[tuple[object, ...]]) -> None:
    table, session, broker = Table(), FetchSession(), Broker()
    for step in steps:
        match step:
            case ("fetch", tp, offset, kind):
                topic_id = None if kind is None else IDS[tp.topic] if kind == "id" else UUID(int=50)
                session.fetch(tp, table.wanted(tp, offset, topic_id))
            case ("forget", tp):
                session.forget(tp)
            case ("request", "lost"):
                session.next_request()
                session.lost()
            case ("request", how):
                if how == "forgotten":
                    broker.id = -1
                request = session.next_request()
                if request.topic_ids is not None:
                    assert {*request.topics, *request.forgotten} == set(request.topic_ids)
                session_id = broker.take(request, room=how != "no room")
                if how == "lost response":
                    session.lost()
                elif session_id is None:
                    session.refused()
                else:
                    session.responded(session_id)
                    assert broker.known == {
                        tuple(tp): wanted.ticket.offset for tp, wanted in session.wanted.items()
                    }
