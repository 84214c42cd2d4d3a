"""Mutated responses, and clients that must survive them.

A run opens one client on a scripted cluster and uses it while the responses to some requests are
changed. Then the changes stop, and the client must recover without help. Changes know the structure
of the messages: items are dropped, duplicated, swapped and renamed, numbers become negative or
huge, values become null, lists grow. In one of four cases bytes are changed instead.

``python tests/net/mutating.py 100000`` makes that many changes and prints its findings.
"""

from __future__ import annotations

import copy
import gc
import logging
import math
import random
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio
from damaged_apis import (
    ADMIN,
    GROUP,
    HANGING,
    MEMBERS,
    OPERATOR,
    PRODUCER,
    SHARE,
    T0,
    T1,
    TRANSACTIONS,
    Steps,
    admin_calls,
    cluster_of,
    each,
    hanging_calls,
    leave_transactions,
    operator_calls,
)
from trio.testing import MockClock

import trikafka
from trikafka import (
    OffsetSpec,
    TrikafkaError,
)
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster
from trikafka.testing.messages import encode_response

#: Retriable codes, the unknown error, and codes that no broker has.
_CODES = (3, 5, 6, 7, 14, 15, 16, 27, 56, 75, 78, -1, 9_999, -32_768, 100)
_NUMBERS = (-1, -2, 0, 1, 2, 3, 1_000, 2**31 - 1, -(2**31))
_LARGE_NUMBERS = (2**63 - 1, -(2**63), 2**53 + 1)
_SMALL_NUMBERS = (-1, 0, 1, 7, 127, -128)
_TEXTS = ("", "u", "t", "g", "x", "m\n\x1b[31m", "\N{SNOWMAN}" * 50, "a" * 3_000)
_BYTES = (0x00, 0xFF, 0x7F, 0x80, 0x01)
#: The longest step of a client (seconds of its thread's processor time) that is no fault.
LONGEST = 0.5


def _structs(message: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield each field of a message and of its nested structures, with its holder."""
    for name, kind in message.fields.items():
        value = getattr(message, name, None)
        yield message, name, kind
        if kind.is_struct_array():
            for item in value or ():
                yield from _structs(item)
        elif kind.is_struct() and value is not None:
            yield from _structs(value)


def mutate(message: Any, chosen: random.Random) -> None:
    """Change one thing in a message."""
    places = [place for place in _structs(message) if place[1] != "throttle_time_ms"]
    lists = [
        place
        for place in places
        if place[2].is_struct_array() and getattr(place[0], place[1], None)
    ]
    if lists and chosen.random() < 0.5:
        _mutate_list(*chosen.choice(lists), lists, chosen)
    else:
        _mutate_value(*chosen.choice(places), chosen)


def _mutate_list(
    holder: Any, name: str, kind: Any, lists: list[Any], chosen: random.Random
) -> None:
    items = list(getattr(holder, name))
    item = chosen.choice(items)
    match chosen.randrange(6):
        case 0:
            items.remove(item)
        case 1:
            items.append(copy.deepcopy(item))
        case 2:
            items.append(_renamed(copy.deepcopy(item), chosen))
        case 3:
            items[items.index(item)] = _renamed(copy.deepcopy(item), chosen)
        case 4:
            items += [
                _renamed(copy.deepcopy(item), chosen)
                for _ in range(chosen.choice((10, 10, 10, 300)))
            ]
        case _:
            # Swap the items of two lists of the same kind.
            other = chosen.choice(lists)
            if other[2] is kind:
                theirs = list(getattr(other[0], name))
                setattr(other[0], name, items)
                items = theirs
            else:
                items = []
    setattr(holder, name, items)


def _renamed(item: Any, chosen: random.Random) -> Any:
    """Return the item with another name, number or id."""
    for name, kind in item.fields.items():
        if name in (
            "name",
            "topic",
            "group_id",
            "key",
            "transactional_id",
            "resource_name",
            "member_id",
        ):
            setattr(item, name, chosen.choice(_TEXTS) + str(chosen.randrange(1_000)))
        elif name in ("partition_index", "partition", "index", "node_id", "producer_id"):
            setattr(item, name, chosen.choice((-1, 0, 1, 2, 7, 1_000, 2**31 - 1)))
        elif kind.type_str == "uuid":
            setattr(item, name, uuid.UUID(int=chosen.choice((0, 1, chosen.getrandbits(128)))))
    return item


def _mutate_value(holder: Any, name: str, kind: Any, chosen: random.Random) -> None:
    value = getattr(holder, name, None)
    if kind.is_struct_array() or kind.is_struct() or kind.is_array():
        changed: Any = None if kind.is_struct() or chosen.random() < 0.7 else []
        if kind.is_array() and not kind.is_struct_array() and value and chosen.random() < 0.5:
            changed = list(value) * chosen.choice((0, 2, 50))
    elif name.endswith("error_code"):
        changed = chosen.choice(_CODES)
    elif kind.type_str in ("string", "bytes", "records"):
        texts: tuple[Any, ...] = (
            _TEXTS if kind.type_str == "string" else (b"", b"\x00", b"\xff" * 40, bytes(200))
        )
        changed = chosen.choice((None, *texts))
    elif kind.type_str == "uuid":
        changed = uuid.UUID(int=chosen.choice((0, 1, chosen.getrandbits(128))))
    elif kind.type_str == "bool":
        changed = not value
    else:
        numbers = {
            "int8": _SMALL_NUMBERS,
            "int16": (*_SMALL_NUMBERS, 32_767),
            "int64": (*_NUMBERS, *_LARGE_NUMBERS),
        }
        changed = chosen.choice(numbers.get(kind.type_str, _NUMBERS))
    setattr(holder, name, changed)


def change_bytes(frame: bytes, chosen: random.Random) -> bytes:
    """Change one to four neighbouring bytes behind the correlation id."""
    if len(frame) <= 9:
        return frame
    place = chosen.randrange(8, len(frame))
    width = min(chosen.choice((1, 1, 2, 4)), len(frame) - place)
    return frame[:place] + bytes([chosen.choice(_BYTES)]) * width + frame[place + width :]


def mutate_bytes(frame: bytes, chosen: random.Random) -> bytes:
    """Change bytes, or cut the message."""
    if len(frame) > 9 and chosen.random() < 0.1:
        body = frame[4 : chosen.randrange(8, len(frame))]
        return len(body).to_bytes(4, "big") + body
    return change_bytes(frame, chosen)


@dataclass
class Mutations:
    """Changes of one cluster's responses, up to a maximum or until they are stopped."""

    chosen: random.Random
    most: int
    made: int = 0
    on: bool = True
    _last: list[str] = field(default_factory=list)

    def attack(self, cluster: ScriptedCluster, api: str, rate: float) -> None:
        """Change the given share of the responses to these requests."""
        chosen = self.chosen

        def change(frame: bytes) -> bytes:
            return mutate_bytes(frame, chosen) if self._hit(rate, api) else frame

        async def handle(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
            changed = await default()
            if changed is None or not self._hit(rate, api):
                return changed
            for _ in range(10):
                for _ in range(chosen.choice((1, 1, 2))):
                    mutate(changed, chosen)
                try:
                    encode_response(changed, request.API_VERSION, 0)
                    return changed
                except Exception:  # some changed messages cannot be encoded
                    changed = await default()
            return changed

        if chosen.random() < 0.25:
            cluster.damage(api, times=None, change=change)
        else:
            cluster.on(api, handle)

    def end(self, cluster: ScriptedCluster) -> None:
        """Stop the changes and cut all connections.

        A changed byte may have throttled a connection for weeks.
        """
        self.on = False
        cluster.disconnect()

    def _hit(self, rate: float, api: str) -> bool:
        hit = self.on and self.made < self.most and self.chosen.random() < rate
        self.made += hit
        if hit:
            self._last.append(api)
        return hit

    @property
    def last(self) -> list[str]:
        """The APIs of the last changed responses."""
        return self._last[-10:]


@dataclass
class Found:
    """The result of one run."""

    made: int
    fault: str = ""
    refused: str = ""  # a final error in a changed response, after which every client stops
    longest: float = 0.0
    whose: str = ""


Use = Callable[[ScriptedCluster, dict[str, Any], Mutations], Awaitable[None]]


async def _again(
    call: Callable[[], Awaitable[Any]], done: Callable[[Any], bool] = lambda result: True
) -> None:
    """Call until it succeeds, for ten minutes of virtual time; then raise the last error."""
    last: BaseException | None = None
    with trio.move_on_after(600):
        while True:
            try:
                if done(await call()):
                    return
            except TrikafkaError as error:
                last = error
                await trio.sleep(1)
    raise last or AssertionError("the client does not work any more, and says nothing")


async def consumer(
    cluster: ScriptedCluster, settings: dict[str, Any], mutations: Mutations
) -> None:
    """Use a member of a group, of either protocol."""
    async with trikafka.open_consumer(
        "t", group_id="g", auto_offset_reset="earliest", metadata_max_age_ms=20_000, **settings
    ) as client:
        with suppress(TrikafkaError):
            await client.receive_batch(timeout=5)
        calls = [
            lambda: client.receive_batch(timeout=5),
            lambda: client.commit(timeout=5),
            lambda: client.committed([T0, T1], timeout=5),
            lambda: client.end_offsets([T0, T1], timeout=5),
            lambda: client.list_topics(timeout=5),
            lambda: client.receive_batch(timeout=5),
        ]
        for number in range(12):
            cluster.append("t", number % 2, [b"x"])
            cluster.move_leader("t", 0, number % 2)
            if number % 4 == 3:
                client.enforce_rebalance()
            if number == 4:
                with suppress(TrikafkaError):
                    client.seek_to_beginning()
            await each(calls)
            client.health()
            client.statistics()
        mutations.end(cluster)
        cluster.append("t", 1, [b"last"])

        def last(batch: Any) -> bool:
            return batch is not None and any(record.value == b"last" for record in batch)

        again = trio.current_time() + 100

        async def receive() -> Any:
            nonlocal again
            # No client can recognise a wrong assignment, nor a wrong offset of its group: from an
            # offset past the log's end it goes on at the end, where this record may have been.
            if trio.current_time() > again:
                again = trio.current_time() + 100
                client.enforce_rebalance()
                cluster.append("t", 1, [b"last"])
            return await client.receive_batch(timeout=5)

        await _again(receive, last)


async def admin(cluster: ScriptedCluster, settings: dict[str, Any], mutations: Mutations) -> None:
    """Use all calls of an admin client, with a transaction that hangs."""
    cluster.offer("GetTelemetrySubscriptions", (0, 0))
    cluster.offer("DescribeTopicPartitions", (0, 0))
    leave_transactions(cluster)
    member = trikafka.open_consumer("t", group_id="g", **settings)
    async with trikafka.open_admin(**settings) as client, member as joined:
        with suppress(TrikafkaError):
            await joined.receive_batch(timeout=2)
        await each(admin_calls(client, 5) + hanging_calls(client, cluster, 5))
        mutations.end(cluster)
        await _again(lambda: client.list_offsets({T0: OffsetSpec.LATEST}, timeout=5))
        await _again(lambda: client.describe_groups(["g"], timeout=5))


async def operator(
    cluster: ScriptedCluster, settings: dict[str, Any], mutations: Mutations
) -> None:
    """Use the calls about rules, quotas, users, tokens, features and controllers."""
    async with trikafka.open_admin(**settings) as client:
        await each(operator_calls(client, 5))
        mutations.end(cluster)
        await _again(lambda: client.describe_acls(timeout=5))
        await _again(lambda: client.describe_metadata_quorum(timeout=5))


async def producer(
    cluster: ScriptedCluster, settings: dict[str, Any], mutations: Mutations
) -> None:
    """Use an idempotent producer."""
    cluster.offer("DescribeTopicPartitions", (0, 0))
    limits = {
        "delivery_timeout_ms": 20_000,
        "request_timeout_ms": 5_000,
        "max_block_ms": 5_000,
        "metadata_max_age_ms": 20_000,
    }
    async with trikafka.open_producer(**{**settings, **limits}) as client:
        for number in range(24):
            cluster.move_leader("t", 0, number % 2)
            await each(
                [
                    lambda: client.send("t", b"x", partition=0),
                    lambda: client.send("t", b"x"),
                    lambda: client.send(f"missing{chosen_topic}", b"x"),
                ]
                if (chosen_topic := number) < 2
                else [lambda: client.send("t", b"x", partition=0), lambda: client.send("t", b"x")]
            )
            client.health()
        mutations.end(cluster)
        await _again(lambda: client.send("t", b"last", partition=0))


async def share(cluster: ScriptedCluster, settings: dict[str, Any], mutations: Mutations) -> None:
    """Use a member of a share group, with blocks, batches and plain acknowledgements."""
    cluster.shares.times.auto_offset_reset = "earliest"
    cluster.shares.times.delivery_limit = 1_000_000
    async with trikafka.open_share_consumer(
        "t", group_id="q", max_in_flight=4, metadata_max_age_ms=20_000, **settings
    ) as client:

        async def in_a_block() -> None:
            with trio.move_on_after(5):
                async with await client.receive():
                    await trio.sleep(0.2)

        async def longer_than_half_a_lock() -> None:
            with trio.move_on_after(5):
                delivery = await client.receive()
                with trio.move_on_after(20):
                    async with delivery:
                        await trio.sleep(16)

        async def whole_batch() -> None:
            with trio.move_on_after(5):
                (await client.receive_batch()).release()

        async def plainly() -> None:
            with trio.move_on_after(5):
                delivery = await client.receive()
                delivery.accept()
                await delivery.acknowledged()

        async def flush() -> None:
            with trio.move_on_after(5):
                await client.flush()

        for number in range(12):
            cluster.append("t", number % 2, [b"x", b"y"])
            cluster.move_leader("t", 0, number % 2)
            await each([in_a_block, plainly, whole_batch, flush])
            if number % 4 == 3:
                await each([longer_than_half_a_lock])
            client.health()
            client.statistics()
            repr(client.assignment)
        mutations.end(cluster)
        cluster.append("t", 1, [b"last"])

        again = trio.current_time() + 100

        async def receive() -> Any:
            nonlocal again
            if trio.current_time() > again:  # no client can recognise a wrong assignment
                again = trio.current_time() + 100
                cluster.shares.fence("q")
            with trio.move_on_after(5):
                delivery = await client.receive()
                delivery.accept()
                await delivery.acknowledged()
                return delivery.record.value
            return None

        await _again(receive, lambda value: value == b"last")


async def transactions(
    cluster: ScriptedCluster, settings: dict[str, Any], mutations: Mutations
) -> None:
    """Use a transactional producer of either version, which sends offsets, too."""
    given = {
        "transactional_id": "x",
        "delivery_timeout_ms": 20_000,
        "max_block_ms": 10_000,
        "metadata_max_age_ms": 20_000,
    }

    async def work(client: Any, number: int) -> None:
        async with client.transaction() as transaction:
            await client.send("t", b"x", partition=number % 2)
            await transaction.send_offsets({T1: number}, trikafka.GroupMetadata("g"), timeout=10)

    async with trikafka.open_producer(**{**settings, **given}) as client:
        for number in range(16):
            with suppress(TrikafkaError):
                await work(client, number)
        mutations.end(cluster)
        await _again(lambda: work(client, 7))


#: The APIs that are attacked in each use, beside metadata and the negotiation of versions.
USES: dict[Use, tuple[str, ...]] = {
    consumer: (*GROUP, "FindCoordinator"),
    admin: tuple(dict.fromkeys((*ADMIN, *MEMBERS, *HANGING))),
    operator: OPERATOR,
    producer: PRODUCER,
    transactions: TRANSACTIONS,
    share: (*SHARE, "FindCoordinator"),
}
#: The most responses that are changed in one run.
_MOST = 250


async def _run(use: Use, seed: int, found: Found) -> None:
    chosen = random.Random(f"{use.__name__} {seed}")
    cluster = cluster_of(seed)
    steps = Steps()
    mutations = Mutations(chosen, _MOST)
    trio.lowlevel.add_instrument(steps)
    try:
        async with cluster:
            apis = [*USES[use], "Metadata", *(["ApiVersions"] if seed % 10 == 0 else ())]
            for api in chosen.sample(
                apis, min(len(apis), chosen.choice((2, 4, len(apis), len(apis))))
            ):
                mutations.attack(cluster, api, chosen.choice((0.4, 0.7, 1.0)))
            settings = {
                "bootstrap_servers": cluster.bootstrap_servers,
                "dial": cluster.dial,
                "request_timeout_ms": 3_000,
            }
            try:
                with trio.fail_after(20_000):
                    await use(cluster, settings, mutations)
            except TrikafkaError as error:
                _judge(error, found, ended=mutations.on)
            except trio.TooSlowError:
                found.fault = "it took hours"
            if found.fault:
                found.fault += f" (changed at last: {mutations.last})"
    except Exception as error:
        found.fault = f"untyped: {error!r}"
        raise
    finally:
        trio.lowlevel.remove_instrument(steps)
        found.made = mutations.made
        found.longest = steps.longest
        found.whose = steps.whose


# What counts as a fault: a client may refuse to open, and it may stop after an error that the
# protocol calls final, even if only a changed byte said so. It must not raise an untyped error, end
# with a failed internal task, hang, block the loop, or stay broken after the changes have ended.


def _judge(error: TrikafkaError, found: Found, *, ended: bool) -> None:
    """Record whether the error is a legitimate refusal or a fault."""
    code = None
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, trikafka.ClientFailedError):
            found.fault = f"the client ended: {each.__cause__!r}"
            return
        if isinstance(each, TrikafkaError) and each.code is not None and not each.retriable:
            code = each.code
        each = each.__cause__
    if ended or isinstance(error, trikafka.BootstrapError):
        found.refused = f"while it opened: {type(error).__name__}"
    elif code is not None or getattr(error, "fatal", False):
        found.refused = (
            f"{type(error).__name__}: {ErrorCode(code).name if code in set(ErrorCode) else code}"
        )
    else:
        found.fault = f"it does not work again: {error!r}"


def run(use: Use, seed: int) -> Found:
    """Make one run in its own Trio loop and virtual time."""
    found = Found(0)
    # A garbage collection of the whole process would be a long step of the task in which it starts.
    gc.disable()
    state = random.getstate()
    random.seed(seed)
    try:
        trio.run(_run, use, seed, found, clock=MockClock(autojump_threshold=0))
    except Exception as error:
        found.fault = found.fault or f"untyped: {error!r}"
    finally:
        random.setstate(state)
        gc.enable()
    return found


class Kept(logging.Handler):
    """A handler that keeps the last lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=60)

    def emit(self, record: logging.LogRecord) -> None:
        at = trio.current_time() if trio.lowlevel.in_trio_task() else math.nan
        self.lines.append(f"    {at:8.2f} {record.name} {record.getMessage():.300}")


def main(count: int, first: int = 0, verbose: int = 0) -> int:
    """Make ``count`` changes and print the findings.

    With ``verbose`` the last lines of the log are printed with each fault.

    Returns:
        The number of faults.
    """
    root, kept = logging.getLogger(), Kept()
    root.handlers[:] = [kept]
    root.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    for use in USES:
        run(use, first)  # late imports happen now and not in a measured step
    gc.collect()
    gc.freeze()
    made = faults = 0
    seed, longest, refused, began = first, (0.0, ""), Counter[str](), time.monotonic()
    by_use: Counter[str] = Counter()
    while made < count:
        for use in USES:
            kept.lines.clear()
            if seed % 10 == 0:
                gc.collect()
            found = run(use, seed)
            made += found.made
            by_use[use.__name__] += found.made
            refused[found.refused] += 1
            if found.longest > longest[0]:
                longest = (found.longest, f"{use.__name__} {seed}: {found.whose}")
            if found.fault or found.longest > LONGEST:
                faults += 1
                print(
                    f"{use.__name__} {seed}: "
                    f"{found.fault or f'a step of {found.longest:.3f} s: {found.whose}'}",
                    flush=True,
                )
                print("\n".join(kept.lines), flush=True)
        seed += 1
        if seed % 20 == 0:
            print(f"... {made} changes, {faults} faults", flush=True)
    print(
        f"{made} changes ({dict(by_use)}) in {time.monotonic() - began:.0f} s: {faults} faults; "
        f"longest step {longest}"
    )
    for what, times in refused.most_common():
        print(f"  {times:6} {what or 'works again'}")
    return faults


if __name__ == "__main__":
    sys.exit(1 if main(*map(int, sys.argv[1:])) else 0)
