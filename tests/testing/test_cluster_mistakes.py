"""Mistakes in tests that use a scripted cluster: named at the call that makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trikafka
from trikafka import BootstrapError, ErrorCode, IllegalStateError
from trikafka.testing import RecordState, ScriptedCluster


@pytest.mark.parametrize(
    ("mistake", "kind", "said"),
    [
        (lambda c: c.append("u", 0, [b"x"]), LookupError, "there is no topic 'u'; there are: t"),
        (lambda c: c.append("t", 7, [b"x"]), LookupError, "t has no partition 7"),
        (lambda c: c.records("u", 0), LookupError, "there is no topic 'u'"),
        (lambda c: c.delete_topic("u"), LookupError, "there is no topic 'u'"),
        (lambda c: c.add_partitions("u", 3), LookupError, "there is no topic 'u'"),
        (lambda c: c.create_topic("t", 3), ValueError, "there is a topic 't': delete it first"),
        (lambda c: c.create_topic("u", -1), ValueError, "'u' cannot have -1 partitions"),
        (lambda c: c.create_topic("a b"), ValueError, "a topic cannot be called 'a b': a name has"),
        (lambda c: c.create_topic(".."), ValueError, r"a topic cannot be called '\.\.'"),
        (
            lambda c: c.create_topic("u", config={"cleanup.polcy": "compact"}),
            ValueError,
            "topic 'u': Unknown topic config name: cleanup.polcy",
        ),
        (
            lambda c: c.create_topic("u", config={"max.message.bytes": 9}),
            TypeError,
            "a config's value must be text, not 9",
        ),
        (lambda c: c.stop(3), LookupError, "there is no node 3: there are 1, from 0"),
        (lambda c: c.stop(-1), LookupError, "there is no node -1"),
        (lambda c: c.freeze(1), LookupError, "there is no node 1"),
        (lambda c: c.start(1), LookupError, "there is no node 1"),
        (lambda c: c.refuse(1), LookupError, "there is no node 1"),
        (lambda c: c.disconnect(1), LookupError, "there is no node 1"),
        (lambda c: c.move_leader("t", 0, 1), LookupError, "there is no node 1"),
        (lambda c: c.move_coordinator(1), LookupError, "there is no node 1"),
        (lambda c: c.drop("Fetch", node=1), LookupError, "there is no node 1"),
        (lambda c: c.fail("Fetch", "CORRUPT_MESSAGE"), TypeError, r"ErrorCode\.CORRUPT_MESSAGE"),
        (lambda c: c.fail("Fetch", 0), ValueError, "code must be an error, and 0 is none"),
        (lambda c: c.fail("Fetch", 6, topic=("t", 0)), TypeError, "topic must be a name"),
        (lambda c: c.fail("Fetch", 6, partition="0"), TypeError, "partition must be a number"),
        (lambda c: c.leave_out("Fetch", ["t"]), TypeError, "topic must be a name"),
        (lambda c: c.delay("Fetch", -1), ValueError, "seconds must be at least 0, not -1"),
        (lambda c: c.drop("Fetch", times=-1), ValueError, "times must be at least 0, or None"),
        (lambda c: c.drop("Fetch", times="2"), TypeError, "times must be a number, or None"),
        (lambda c: c.create_topic("u", "3"), TypeError, "topic 'u' must be a number, not '3'"),
        (lambda c: c.append("t", 0, ["x"]), TypeError, "value must be bytes or None, not 'x'"),
        (lambda c: c.append("t", 0, b"xy"), TypeError, r"records must be a .*such as \[b'xy'\]"),
        (lambda c: c.append("t", 0, [("k", b"v")]), TypeError, "key must be bytes or None"),
        (lambda c: c.offer("Fetch", 5), TypeError, r"versions must be \(lowest, highest\)"),
        (lambda c: c.offer("Fetch", ("4", "12")), TypeError, r"versions must be \(lowest, high"),
        (lambda c: c.offer("Fetch", (4, 12), node=1), LookupError, "there is no node 1"),
        (lambda c: c.requests("Fetch", node=1), LookupError, "there is no node 1"),
        (lambda c: c.transferred("Fetch", node=1), LookupError, "there is no node 1"),
        (lambda c: c.connections(1), LookupError, "there is no node 1"),
        (lambda c: c.forget_fetch_sessions(1), LookupError, "there is no node 1"),
        (lambda c: c.lag("t", 0, 1, 0), LookupError, "there is no node 1"),
        (lambda c: c.committed("g", "t"), TypeError, r"a partition is \(topic, number\), not 't'"),
        (lambda c: c.committed("g", ("u", 0)), LookupError, "there is no topic 'u'"),
        (lambda c: c.committed("g", ("t", 7)), LookupError, "t has no partition 7"),
        (lambda c: c.shared("g", "t"), TypeError, r"a partition is \(topic, number\), not 't'"),
        (lambda c: c.shared("g", ("t", 7)), LookupError, "t has no partition 7"),
        (
            lambda c: c.add_partitions("t", 0),
            ValueError,
            "'t' has 1 partition, and cannot be cut to 0",
        ),
        (lambda c: c.delete_records("t", 0, 1), ValueError, "t-0 ends at 0: no offset 1 is there"),
        (lambda c: c.delete_records("t", 0, -1), ValueError, "t-0 ends at 0: no offset -1 is"),
        (lambda c: c.elect_uncleanly("t", 0, 0, 5), ValueError, "t-0 ends at 0: no offset 5"),
        (lambda c: c.lag("t", 0, 0, -1), ValueError, "end must be at least 0, not -1"),
        (lambda c: c.tier("t", 0, 5), ValueError, "t-0 ends at 0: no offset 5 is there"),
        (lambda c: c.requests("Fetch", where="t"), TypeError, "where is not a function: 't'"),
        (lambda c: c.fail(999, 6), ValueError, "no Kafka API is called 999; there are: "),
        (
            lambda c: c.requests("produce"),
            ValueError,
            r"called 'produce'; did you mean 'Produce'\?",
        ),
        (lambda c: c.fail("Fetch", 6, where="t"), TypeError, "where is not a function: 't'"),
        (
            lambda c: c.drop("Fetch", where=lambda: True),
            TypeError,
            "where cannot be called with one",
        ),
        (lambda c: c.damage("Fetch", change="cut"), TypeError, "change is not a function: 'cut'"),
        (lambda c: c.garbage("Fetch", "x"), TypeError, "data must be bytes, not 'x'"),
        (lambda c: c.want_metrics("a"), TypeError, r"a collection of prefixes: write \['a'\]"),
        (lambda c: c.on("Fetch", 5), TypeError, "the handler of 'Fetch' is not a function: 5"),
        (lambda c: c.on("Fetch", lambda a: a), TypeError, "cannot be called with 2 arguments"),
    ],
)
async def test_mistake_is_named(
    mistake: Callable[[ScriptedCluster], Any],
    kind: type[Exception],
    said: str,
    autojump_clock: MockClock,
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(kind, match=said):
            mistake(cluster)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"coordinator": 1}, "coordinator=1 is not a node: there are 1, from 0"),
        ({"racks": ["a", "b"]}, "there are 2 racks, but 1 nodes"),
        ({"topics": {"t": -1}}, "'t' cannot have -1 partitions"),
        ({"topics": {"": 1}}, "a topic cannot be called ''"),
        ({"transaction_version": 3}, "transaction_version must be 1 or 2, not 3"),
        ({"session_timeouts": (9, 6)}, r"session_timeouts must be \(least, most\), not \(9, 6\)"),
        ({"topics": ["t"]}, r"topics must be names with .* such as \{'t': 3\}, not \['t'\]"),
    ],
)
def test_impossible_cluster_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        ScriptedCluster(**given)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (lambda c: c.fail("Produce", 6, topic="u"), r"Produce \(Fail\(code=6, topic='u'"),
        (lambda c: c.fail("Produce", 6, partition=7), r"Produce \(Fail\(code=6, .*partition=7"),
        (lambda c: c.leave_out("Produce", "u"), r"Produce \(LeaveOut\(topic='u'"),
        (lambda c: c.leave_out("Produce", "t", 7), r"Produce \(LeaveOut\(.*partition=7"),
    ],
)
async def test_rule_that_concerns_nothing_is_named(
    script: Callable[[ScriptedCluster], Any], said: str, autojump_clock: MockClock
) -> None:
    async def program() -> None:
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            script(cluster)
            async with trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ) as producer:
                await producer.send("t", b"x")

    with pytest.raises(AssertionError, match=f"rules of the script had no effect.*{said}"):
        await program()


async def test_rule_that_concerns_one_response_is_right(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1, "u": 1}) as cluster:
        cluster.fail("Produce", 6, times=None, topic="u").remove()
        cluster.fail("Produce", 6, times=2, topic="u")
        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer:
            await producer.send("t", b"x")
            await producer.send("u", b"x")


async def test_rules_may_name_users_and_deleted_topics(
    autojump_clock: MockClock,
) -> None:
    """Each met another request first."""
    async with ScriptedCluster(topics={"t": 1, "gone": 1}) as cluster:
        cluster.delete_topic("gone")
        cluster.fail("DescribeUserScramCredentials", 58, topic="bob")
        cluster.fail("DescribeConfigs", 58, topic="0")
        cluster.fail("ListOffsets", 6, topic="gone")
        async with trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as admin:
            await admin.describe_user_scram_credentials()
            await admin.describe_configs([trikafka.ConfigResource("topic", "t")])
            await admin.list_offsets({trikafka.TopicPartition("t", 0): 0})
        assert all(cluster.requests(api) for api in ("DescribeConfigs", "ListOffsets"))


async def test_forgotten_dial_is_a_note(autojump_clock: MockClock) -> None:
    async def elsewhere(host: str, port: int) -> trio.abc.Stream:
        raise ConnectionRefusedError

    with pytest.raises(BootstrapError) as raised:
        async with (
            ScriptedCluster() as cluster,
            trikafka.open_producer(bootstrap_servers=cluster.bootstrap_servers, dial=elsewhere),
        ):
            pass
    assert raised.value.__notes__[-1].endswith("give it dial=cluster.dial")


async def test_cluster_without_its_block_says_so(autojump_clock: MockClock) -> None:
    cluster = ScriptedCluster()
    with pytest.raises(BootstrapError, match="answers in its 'async with' block only"):
        async with trikafka.open_admin(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ):
            pass
    async with cluster:
        with pytest.raises(IllegalStateError, match="is entered already"):
            async with cluster:
                pass


def handles_plainly(request: Any, default: Any) -> None: ...


async def returns_the_function(request: Any, default: Any) -> Any:
    return default


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (handles_plainly, "the handler of 'Metadata' is a plain function, and has to be async"),
        (returns_the_function, "the handler of 'Metadata' returned function; .*await default()"),
    ],
)
async def test_wrong_handler_is_named(handler: Any, said: str, autojump_clock: MockClock) -> None:
    async def program() -> None:
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            cluster.on("Metadata", handler)
            async with trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ):
                pass

    with pytest.raises(TypeError, match=said.replace("()", r"\(\)")):
        await program()


async def test_no_records_leave_the_log_as_it_is(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        assert cluster.append("t", 0, []) == 0
        assert cluster.append("t", 0, [b"x"]) == 0


async def test_wait_for_a_node_that_is_not_there_ends(autojump_clock: MockClock) -> None:
    async with ScriptedCluster() as cluster:
        with pytest.raises(LookupError, match="there is no node 1"):
            await cluster.seen("Fetch", node=1)


async def test_error_codes_may_be_named(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        async with trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
        ) as producer:
            await producer.send("t", b"x")
        assert len(cluster.requests("Produce")) == 2


async def test_records_of_a_share_group_are_seen(autojump_clock: MockClock) -> None:
    async def handle(delivery: trikafka.Delivery) -> None:
        if delivery.record.value == b"bad":
            raise ValueError
        nursery.cancel_scope.cancel()

    async with ScriptedCluster(topics={"jobs": 1}) as cluster:
        assert cluster.shared("q", ("jobs", 0)) == {}
        cluster.shares.times.auto_offset_reset = "earliest"
        cluster.append("jobs", 0, [b"bad", b"good", b"next"])
        async with trio.open_nursery() as nursery:
            await trikafka.run_queue(
                handle,
                "jobs",
                group_id="q",
                reject_after=1,
                bootstrap_servers=cluster.bootstrap_servers,
                dial=cluster.dial,
            )
        found = cluster.shared("q", ("jobs", 0))
        assert found[0].state is RecordState.ARCHIVED
        assert found[0].count == 1
        assert found[2].state is RecordState.AVAILABLE
