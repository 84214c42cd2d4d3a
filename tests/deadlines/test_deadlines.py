"""Every call ends at its limit under every fault of the broker, alone and 2,000 at once.

The error names the root cause.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from deadline_table import (
    APIS,
    CALLS,
    CLOSINGS,
    FAULTS,
    GRACE,
    LIMIT,
    OPENERS,
    Fault,
    Row,
    afflict,
    begin,
    mend,
    opened,
)
from trio.testing import MockClock as Clock

import trikafka
from trikafka.errors import BootstrapError, DeliveryTimeoutError, KafkaTimeoutError, TrikafkaError
from trikafka.testing import ScriptedCluster

EPSILON = 1e-9
#: The number of calls at once, for one call of each client with every fault; for one call of each
#: API with one of the quick faults; and for the other pairs. With ``--at-once 2000`` pytest makes
#: as many for all: that takes seconds each.
MANY, SEVERAL, SOME = 2000, 400, 20
#: The most calls with a fault after which each call makes attempt after attempt: an error, or a
#: refused connection. Such a call takes ten times the processor time.
MANY_ATTEMPTS = 100
QUICK: tuple[Fault, ...] = ("frozen", "killed", "black hole")
#: The longest chain of causes: a call's limit, a step's, the failed connection, the system's error,
#: and as many again.
LINKS = 8
ALWAYS_MANY = ("consumer-committed", "producer-send", "admin-describe_cluster")


def root(error: BaseException) -> BaseException:
    """Return the end of the chain of causes.

    The chain is short, however many calls failed for the same cause.
    """
    first = error
    for _ in range(LINKS):
        if error.__cause__ is None:
            return error
        error = error.__cause__
    raise AssertionError(f"the chain of causes is a circle, or longer than {LINKS}: {first!s:.500}")


def cases(rows: list[Row], *, limited: bool = False) -> Any:
    """Return a parametrization by each row and each fault."""
    found = []
    for row in rows:
        for fault in FAULTS:
            if limited and not row.limited:
                continue
            found.append(pytest.param(row, fault, id=f"{row}-{fault}"))
    return pytest.mark.parametrize(("row", "fault"), found)


def check_time(fault: Fault, limit: float, took: float) -> None:
    if fault in ("frozen", "black hole"):
        assert took == pytest.approx(max(limit, GRACE), abs=EPSILON)
    else:
        assert limit - EPSILON <= took <= limit + GRACE + EPSILON


def check_error(row: Row, fault: Fault, error: KafkaTimeoutError, limit: float) -> None:
    """Check that the error names the call, the limit, the attempts and the root cause."""
    text, name = str(error), row.call or row.name
    assert (error.call, error.limit) == (name, limit)
    assert text.startswith(f"{name} did not finish within {limit:g} s (")
    assert error.attempts >= 1 or isinstance(error, DeliveryTimeoutError)
    assert f"{error.attempts or 'no'} attempt" in text
    if (
        error.last_error is None
        and getattr(error, "phase", "") == "waiting for the transaction's coordinator"
    ):
        return  # it is still being dialled: nothing has failed yet
    assert error.last_error is not None
    assert error.__cause__ is error.last_error
    cause = root(error)
    if fault == "killed":
        # A connection was refused, or was lost with a request under way.
        assert isinstance(cause, ConnectionError), text
        assert (
            "nothing listens at broker-0:9092" in text
            or "lost the connection to broker-0:9092" in text
        )
    elif fault == "error" and row.error is not None:
        assert getattr(cause, "code", None) == row.error, text
    elif fault == "error":
        assert "the broker closed it" in text
    else:
        assert "broker-0:9092" in text


async def attempt(
    row: Row, cluster: ScriptedCluster, client: Any, timeout: float | None
) -> tuple[Any, float]:
    """Make the call; return its result or error, and its duration."""
    before = trio.current_time()
    try:
        result = await row.run(cluster, client, {"timeout": timeout} if row.limited else {})
    except (KafkaTimeoutError, *row.refusals) as error:
        result = error
    return result, trio.current_time() - before


def check(row: Row, fault: Fault, limit: float, result: Any, took: float) -> None:
    if row.ends == "quiet":
        assert not isinstance(result, Exception)
        assert took == pytest.approx(limit, abs=EPSILON)
    else:
        assert isinstance(result, KafkaTimeoutError), result
        check_time(fault, limit, took)
        check_error(row, fault, result, limit)


async def get_ready(row: Row, client: Any) -> None:
    """Do what precedes the call, with a healthy broker."""
    for step in (row.before, row.then):
        if step is not None:
            await step(client)


async def works(row: Row, cluster: ScriptedCluster, client: Any) -> None:
    """Check that the same client's same call succeeds."""
    if row.client in ("producer", "transactions"):
        # The producer's limits are settings, not arguments of the call, and a hanging dial is
        # cancelled after 10 s.
        await trio.sleep(12)
    await get_ready(row, client)
    result, _ = await attempt(row, cluster, client, 30)
    assert not isinstance(result, KafkaTimeoutError), result


@cases(CALLS)
async def test_single_call_ends_at_its_limit(autojump_clock: Clock, row: Row, fault: Fault) -> None:
    async with opened(row) as (cluster, client):
        await afflict(fault, cluster, row, client)
        result, took = await attempt(row, cluster, client, LIMIT)
        check(row, fault, LIMIT, result, took)
        mend(fault, cluster)
        await works(row, cluster, client)


def how_many(row: Row, fault: Fault) -> int:
    first = [row.needs for row in CALLS].index(row.needs)
    several = CALLS[first] is row and QUICK[first % len(QUICK)] == fault
    many = MANY if str(row) in ALWAYS_MANY else SEVERAL if several else SOME
    return min(many, MANY_ATTEMPTS) if fault in ("error", "killed") else many


@cases([row for row in CALLS if not row.alone])
async def test_many_calls_end_at_their_limit(
    autojump_clock: Clock, row: Row, fault: Fault, pytestconfig: pytest.Config
) -> None:
    async with opened(row) as (cluster, client):
        ends: list[tuple[Any, float]] = []
        many = max(how_many(row, fault), pytestconfig.getoption("--at-once"))

        async def one() -> None:
            ends.append(await attempt(row, cluster, client, LIMIT))

        if not row.remembered:
            await works(row, cluster, client)
        await afflict(fault, cluster, row, client)
        async with trio.open_nursery() as nursery:
            for _ in range(many):
                nursery.start_soon(one)
        assert len(ends) == many
        for result, took in ends:
            check(row, fault, LIMIT, result, took)
        assert row.shared or len({id(result) for result, _ in ends}) == many
        mend(fault, cluster)
        await works(row, cluster, client)


@pytest.mark.parametrize("row", [row for row in CALLS if row.limited], ids=str)
async def test_zero_timeout_takes_a_quick_response(autojump_clock: Clock, row: Row) -> None:
    async with opened(row) as (cluster, client):
        await works(row, cluster, client)
        await get_ready(row, client)
        before = trio.current_time()
        result, _ = await attempt(row, cluster, client, 0)
        assert not isinstance(result, KafkaTimeoutError), result
        assert trio.current_time() == before


@cases([row for row in CALLS if row.ends == "timeout"], limited=True)
async def test_zero_timeout_is_one_attempt(autojump_clock: Clock, row: Row, fault: Fault) -> None:
    async with opened(row) as (cluster, client):
        await afflict(fault, cluster, row, client)
        result, took = await attempt(row, cluster, client, 0)
        check(row, fault, 0, result, took)
        assert result.attempts == 1


@pytest.mark.parametrize("row", [row for row in CALLS if row.name != "receive_batch"], ids=str)
async def test_slow_responses_are_waited_for(autojump_clock: Clock, row: Row) -> None:
    async with opened(row) as (cluster, client):
        if row.before is not None:
            await row.before(client)
        for api in APIS:
            cluster.delay(api, 0.1)
        if row.then is not None:
            await row.then(client)
        result, took = await attempt(row, cluster, client, 5)
        assert not isinstance(result, KafkaTimeoutError), result
        assert 0.1 <= took <= 0.5


@pytest.mark.parametrize(
    "row", [row for row in CALLS if row.limited and row.ends == "timeout"], ids=str
)
async def test_responses_after_the_limit_are_dropped(autojump_clock: Clock, row: Row) -> None:
    async with opened(row) as (cluster, client):
        if row.before is not None:
            await row.before(client)
        for api in APIS:
            cluster.delay(api, 2)
        if row.then is not None:
            await row.then(client)
        result, took = await attempt(row, cluster, client, LIMIT)
        assert isinstance(result, KafkaTimeoutError), result
        check_time("frozen", LIMIT, took)
        cluster._script._rules.clear()
        dials = len(cluster.dials)
        await trio.sleep(5)
        await works(row, cluster, client)
        assert len(cluster.dials) <= dials + 2, "the connections stay usable"


@cases(CLOSINGS)
async def test_closing_ends_at_its_limit(autojump_clock: Clock, row: Row, fault: Fault) -> None:
    async with opened(row, close_timeout_ms=LIMIT * 1000) as (cluster, client):
        if row.client == "consumer":
            client.subscribe(["t"])
            while not client.assignment():
                await client.receive_batch(timeout=0.1)
        elif row.client == "producer":
            client.send_nowait("t", b"v")
        await afflict(fault, cluster, row, client)
        result, took = await attempt(row, cluster, client, LIMIT)
        assert not isinstance(result, Exception)
        assert took <= LIMIT + 2 * GRACE + EPSILON


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
async def test_failed_opening_names_each_address(
    autojump_clock: Clock, kind: str, fault: Fault
) -> None:
    """If no bootstrap address works, the error names each with its root cause in time."""
    bootstrap = next(row for row in CALLS if (row.needs, row.error) == ("Metadata", None))
    async with ScriptedCluster(nodes=2) as cluster:
        for node in (0, 1):
            begin(fault, cluster, bootstrap, node)
        limit = {"socket_connection_setup_timeout_ms": LIMIT * 1000}
        with pytest.raises(BootstrapError) as caught:
            async with OPENERS[kind](
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, **limit
            ):
                raise AssertionError("it opened")
        slow = fault in ("frozen", "black hole")
        assert trio.current_time() == (2 * LIMIT if slow else 0)
        text, cause = str(caught.value), root(caught.value)
        assert "broker-0:9092" in text
        assert "broker-1:9092" in text
        assert isinstance(cause, TrikafkaError if slow else ConnectionError), cause


@pytest.mark.parametrize("fault", FAULTS)
async def test_opening_with_transactions_is_bounded(autojump_clock: Clock, fault: Fault) -> None:
    """The brokers respond, except for the coordinator of its transactions."""
    row = Row("transactions", "open", "InitProducerId", 15, CALLS[0].run)
    async with ScriptedCluster(nodes=2) as cluster:
        cluster.move_coordinator(1)
        begin(fault, cluster, row, 1)
        given = {
            "bootstrap_servers": cluster.bootstrap_servers.split(",")[0],
            "dial": cluster.dial,
            "transactional_id": "x",
        }
        with pytest.raises(KafkaTimeoutError) as caught:
            async with OPENERS["transactions"](**given, default_api_timeout_ms=LIMIT * 1000):
                raise AssertionError("it opened")
        check_time(fault, LIMIT, trio.current_time())
        assert str(caught.value).startswith(f"open did not finish within {LIMIT:g} s (")
        if fault == "error":
            assert getattr(root(caught.value), "code", None) == 15
        else:
            assert "broker-1:9092" in str(caught.value)


async def test_negative_transaction_limit_is_refused(autojump_clock: Clock) -> None:
    commit = next(row for row in CALLS if str(row) == "transactions-commit")
    async with opened(commit) as (_, client):
        await client.filled()
        for call in (client.txn.commit, client.txn.abort, client.txn.prepare):
            with pytest.raises(ValueError, match="timeout"):
                await call(timeout=-1)
        with pytest.raises(ValueError, match="timeout"):
            await client.txn.send_offsets({}, trikafka.GroupMetadata("g"), timeout=-1)
        with pytest.raises(ValueError, match="timeout"):
            client.producer.transaction(timeout=-1)
