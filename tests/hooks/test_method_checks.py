"""Methods of plugins' objects that cannot be called as their contract says: found at opening."""

from __future__ import annotations

import functools
import logging
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from offered_plugins import plugin, settings
from trio.testing import MockClock

import trikafka
from trikafka import PluginError, RebalanceListener, TopicPartition, hookimpl
from trikafka.hooks import (
    answers,
    async_methods,
    check_takes,
    first_answer,
    load_plugins,
    members_of,
    unfit_methods,
)
from trikafka.interfaces import (
    CommitManager,
    ExportFormat,
    ExportRunner,
    ManagerKind,
    Observer,
    Sink,
)
from trikafka.testing import ScriptedCluster


async def waits(*args: Any, **kwargs: Any) -> Any: ...


class Commits:
    """A manager of commits with the right methods."""

    async def commit(
        self, offsets: Any, *, timeout: Any = None, name: str = "commit", check: Any = None
    ) -> None: ...

    async def committed(self, partitions: Any, *, timeout: Any = None, name: str = "c") -> Any: ...

    async def fetch_once(self, call: Any, partitions: Any) -> Any: ...

    def recover(self, error: Exception) -> None: ...


# Managers.


class Short(Commits):
    async def commit(self, offsets: Any) -> None: ...  # type: ignore[override]


class Older(Commits):
    async def commit(self, offsets: Any, *, timeout: Any = None) -> None: ...  # type: ignore[override]


class Newer(Commits):
    async def commit(self, offsets: Any, *, reason: str, **more: Any) -> None: ...


class Waits(Commits):
    async def recover(self, error: Exception) -> None: ...  # type: ignore[override]


class Number(Commits):
    recover = 5  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (Short(), r"commit\(offsets\) has to be commit\(offsets, \*, timeout=\.\.\., .*timeout"),
        (Older(), r"commit\(offsets, \*, timeout=\.\.\.\) has to be .* argument 'name'"),
        (Newer(), r"commit\(offsets, \*, reason, \*\*more\) has to be .* argument: 'reason'"),
        (Waits(), "recover must be plain functions"),
        (Number(), "recover is int, and has to be a method"),
    ],
)
async def test_wrong_method_is_refused_at_opening(
    made: object, text: str, autojump_clock: MockClock
) -> None:
    def manager(kind: ManagerKind) -> object | None:
        return made if kind == "commit" else None

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, plugin(trikafka_request_manager=manager), group_id="g")
        with pytest.raises(
            PluginError,
            match=r"^plugin 'SimpleNamespace': trikafka_request_manager returned an object of "
            rf"{type(made).__name__}, of which {text}",
        ):
            async with trikafka.open_consumer("t", **given):
                pass
        assert not cluster.log


def with_extra(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method with one argument less."""

    @functools.wraps(method)
    async def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await method(self, "extra", *args, **kwargs)

    return wrapped


def test_right_methods_are_accepted() -> None:
    class Decorated(Commits):
        @with_extra
        async def commit(self, extra: str, offsets: Any, **more: Any) -> None: ...  # type: ignore[override]

    class Open(Commits):
        async def commit(self, *args: Any, **kwargs: Any) -> None: ...

    class Delegates:
        def __getattr__(self, name: str) -> Any:
            return getattr(Commits(), name)

    class Hands(Commits):
        """A plain method may return the awaitable of another object."""

        def commit(self, *args: Any, **kwargs: Any) -> Any:
            return Commits().commit(*args, **kwargs)

    for made in (Commits(), Decorated(), Open(), Delegates(), Hands()):
        assert unfit_methods(made, CommitManager) == []
        assert async_methods(made, CommitManager) == []


def test_broken_property_is_left_to_its_use() -> None:
    class Broken(Commits):
        @property
        def recover(self) -> Any:
            raise KeyError("x")

    assert unfit_methods(Broken(), CommitManager) == []


def test_unreadable_signature_is_not_checked() -> None:
    class Odd:
        @property
        def __signature__(self) -> Any:
            raise NameError("name 'Data' is not defined")

        def __call__(self, *args: Any) -> None: ...

    class Odder(Commits):
        recover = Odd()  # type: ignore[assignment]

    assert unfit_methods(Odder(), CommitManager) == []
    check_takes(Odd(), (b"",), ValueError, "odd")


def test_names_for_type_checkers_are_no_fault() -> None:
    """An annotation may have a name that does not exist at run time.

    Before Python 3.14 it is a text then; from 3.14 on it is evaluated at the first look.
    """
    source = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    source += (
        "async def assigned(self, partitions: Missing) -> Missing: ...\n"
        "async def wrong(self) -> Missing: ...\n"
        "def hook(scheme: Missing, colour: Missing) -> Missing: ...\n"
    )
    names: dict[str, Any] = {}
    exec(compile(source, "source", "exec", dont_inherit=True), names)
    text = "on_partitions_assigned() has to be on_partitions_assigned(partitions)"
    for method, found in (("assigned", []), ("wrong", [text])):
        made = type("L", (RebalanceListener,), {"on_partitions_assigned": names[method]})()
        assert [each.partition(":")[0] for each in unfit_methods(made, RebalanceListener)] == found
    with pytest.raises(PluginError, match="trikafka_sink has no argument 'colour'; it has scheme"):
        load_plugins([plugin(trikafka_sink=names["hook"])])


# Listeners and observers.


class NoArgument(RebalanceListener):
    async def on_partitions_assigned(self) -> None: ...  # type: ignore[override]


async def test_listener_without_argument_is_refused(autojump_clock: MockClock) -> None:
    text = r"on_partitions_assigned\(\) has to be on_partitions_assigned\(partitions\)"
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        offered = plugin(trikafka_rebalance_listener=lambda: NoArgument())
        with pytest.raises(PluginError, match=f"NoArgument, of which {text}"):
            async with trikafka.open_consumer(**settings(cluster, offered, group_id="g")):
                pass
        assert not cluster.log
        async with trikafka.open_consumer(**settings(cluster, group_id="g")) as consumer:
            with pytest.raises(trikafka.ConfigurationError, match=text):
                consumer.subscribe(["t"], NoArgument())


def observer(**methods: Any) -> object:
    made = types.SimpleNamespace(opened=lambda context: None, failed=waits, closed=lambda: None)
    made.failed = lambda error: None
    vars(made).update(methods)
    return plugin(trikafka_observer=lambda: made)


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ({"batch_sent": lambda: None}, r"batch_sent\(\) has to be batch_sent\(event\)"),
        ({"membership_changed": 5}, "membership_changed is int, and has to be a method"),
        (
            {"opened": waits, "connection_changed": waits},
            "connection_changed, opened must be plain",
        ),
    ],
)
def test_wrong_observer_is_refused(methods: dict[str, Any], text: str) -> None:
    with pytest.raises(PluginError, match=f"of which {text}"):
        answers(load_plugins([observer(**methods)]), "trikafka_observer", Observer, context=None)


async def test_hidden_coroutine_of_an_observer_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """A lambda is no coroutine function, but may return a coroutine, which nothing would await."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, observer(batch_sent=lambda event: waits()))
        async with trikafka.open_producer(**given) as producer:
            await producer.send("t", b"x")
            await producer.send("t", b"x")
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.startswith("plugin 'SimpleNamespace': observer.batch_sent failed: TypeError('the ")
    assert "is async, and has to be a plain function" in line


# Exports.


class Runner:
    above = 0

    def check(self) -> None: ...
    async def start(self, settings: object) -> None: ...
    async def run(self, tasks: object, report: object) -> Any: ...
    async def close(self, limit: float) -> None: ...


class Format:
    name = "toy"
    option_names = ()

    def files(self, options: object) -> Any: ...
    def table(self, options: object) -> Any: ...


SINK = types.SimpleNamespace(**dict.fromkeys(members_of(Sink), waits))


@pytest.mark.parametrize(
    ("hook", "shape", "made", "text"),
    [
        ("runner", ExportRunner, type("A", (Runner,), {"check": waits})(), "check must be plain"),
        ("runner", ExportRunner, type("A", (Runner,), {"close": lambda s: s})(), "close must be `"),
        ("runner", ExportRunner, type("A", (Runner,), {"run": NoArgument.on_partitions_assigned})(),
         r"run\(\) has to be run\(tasks, report\)"),
        ("format", ExportFormat, type("A", (Format,), {"files": waits})(), "files must be plain"),
        ("format", ExportFormat, type("A", (Format,), {"files": lambda s: s})(), r"files\(\) has"),
    ],
)  # fmt: skip
def test_wrong_part_of_an_export_is_refused(
    hook: str, shape: type, made: object, text: str
) -> None:
    manager = load_plugins([plugin(**{f"trikafka_export_{hook}": lambda: made})])
    with pytest.raises(PluginError, match=f"returned an object of A, of which {text}"):
        first_answer(manager, f"trikafka_export_{hook}", shape, name="toy", options={})


def test_sink_with_plain_methods_is_refused() -> None:
    """A sink is entered before all else, so what enters it is part of the contract."""
    arguments = {"scheme": "toy", "options": {}, "plugins": ()}
    made = types.SimpleNamespace(**vars(SINK))
    manager = load_plugins([plugin(trikafka_sink=lambda: made)])
    found = first_answer(manager, "trikafka_sink", Sink, **arguments)
    assert found is not None
    assert found[1] is made
    made.load = lambda: None
    with pytest.raises(PluginError, match="of which load must be `async def`"):
        first_answer(manager, "trikafka_sink", Sink, **arguments)
    del made.__aexit__
    with pytest.raises(PluginError, match=r"which is no Sink: it has no __aexit__$"):
        first_answer(manager, "trikafka_sink", Sink, **arguments)


# Assignors and partitioners.


class Assignor:
    name = "toy"
    cooperative = False

    def assign(self, members: Any, partitions: Any) -> Any:
        return {member: [] for member in members}


@pytest.mark.parametrize(
    ("user_data", "text"),
    [
        (lambda self: b"", r"of which user_data\(\) has to be user_data\(topics, last\)"),
        (waits, "of which user_data must be plain functions"),
        (b"bytes", "of which user_data is bytes, and has to be a method"),
        (lambda self, topics, last: "text", "user_data returned 'text', which is neither bytes"),
    ],
)
async def test_wrong_user_data_is_named(
    user_data: Any, text: str, autojump_clock: MockClock
) -> None:
    made = type("Made", (Assignor,), {"user_data": user_data})()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(
            cluster,
            plugin(trikafka_assignor=lambda name: made if name == "toy" else None),
            group_id="g",
            group_protocol="classic",
            partition_assignment_strategy=("toy",),
        )
        with pytest.raises(PluginError, match=f"^plugin 'SimpleNamespace': .*{text}"):
            async with trikafka.open_consumer("t", **given) as consumer:
                await consumer.receive_batch(timeout=1)


async def test_hidden_coroutine_of_a_partitioner_is_named(autojump_clock: MockClock) -> None:
    offered = plugin(trikafka_partitioner=lambda name: lambda *given: waits())
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, offered, partitioner="toy")
        async with trikafka.open_producer(**given) as producer:
            with pytest.raises(PluginError, match=r"partitioner 'toy' is async, and has to be a p"):
                await producer.send("t", b"x")


# Hooks.


def test_hook_gets_arguments_with_defaults() -> None:
    """pluggy would leave out an argument that has a default value."""
    newer = plugin(trikafka_partitioner=lambda name="none", colour="red": (name, colour))
    found = first_answer(load_plugins([newer]), "trikafka_partitioner", name="toy")
    assert found is not None
    assert found[1] == ("toy", "red")


def test_unknown_argument_is_explained() -> None:
    """The text has the hook's arguments, and what a plugin for several releases writes."""
    for wrong, text in (
        (
            plugin(trikafka_sink=lambda scheme, colour: None),
            "trikafka_sink has no argument 'colour'; it has scheme, options, plugins. If another "
            "release has 'colour', write colour=None",
        ),
        (
            plugin(trikafka_command=lambda colour: None),
            "trikafka_command has no argument 'colour'; it has none. If another release has "
            "'colour', write colour=None",
        ),
    ):
        with pytest.raises(PluginError) as caught:
            load_plugins([wrong])
        assert str(caught.value) == f"plugin 'SimpleNamespace' is wrong: {text}"


def test_last_plugin_of_the_list_is_asked_first() -> None:
    one, two = (plugin(trikafka_partitioner=lambda name, n=n: n) for n in (1, 2))
    found = first_answer(load_plugins([one, two]), "trikafka_partitioner", name="toy")
    assert found is not None
    assert found[1] == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (waits, r"not the coroutine waits\(\.\.\.\): write start_soon\(waits, \.\.\.\)"),
        (5, "takes an async function, not int"),
    ],
)
async def test_start_soon_explains_what_it_takes(
    given: Any, text: str, autojump_clock: MockClock
) -> None:
    def manager(kind: ManagerKind, context: Any) -> None:
        context.start_soon(given() if callable(given) else given)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        offered = plugin(trikafka_request_manager=manager)
        with pytest.raises(PluginError, match=f"'SimpleNamespace': context.start_soon .*{text}"):
            async with trikafka.open_producer(**settings(cluster, offered)):
                pass
        assert not cluster.log


async def test_listener_sets_a_position_by_its_context(autojump_clock: MockClock) -> None:
    """A plugin's listener has no consumer; docs/plugins.md says what it has."""

    class Starts(RebalanceListener):
        def __init__(self, context: Any) -> None:
            self._assignment = context.core.assignment

        async def on_partitions_assigned(self, partitions: Any) -> None:
            for tp in partitions:
                self._assignment.partitions[tp].located(2)

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"0", b"1", b"2", b"3"])
        offered = plugin(trikafka_rebalance_listener=lambda context: Starts(context))
        async with trikafka.open_consumer("t", **settings(cluster, offered, group_id="g")) as read:
            assert [record.offset for record in await read.receive_batch(timeout=9)] == [2, 3]
            assert await read.position(TopicPartition("t", 0)) == 4


@pytest.mark.parametrize("own", [True, False])
async def test_context_names_a_plugin_that_is_early(own: bool, autojump_clock: MockClock) -> None:
    """A plugin for one seat that forgets to look at the kind is a usual case."""

    def manager(kind: ManagerKind, context: Any) -> object:
        return context.builtin("commit") if own else context.manager("commit")

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, plugin(trikafka_request_manager=manager), group_id="g")
        with pytest.raises(
            trikafka.IllegalStateError,
            match=r"^plugin 'SimpleNamespace': this client has no manager for '(commit|coord\w+)' "
            r"\(yet\); it has none so far$",
        ):
            async with trikafka.open_consumer("t", **given):
                pass


async def test_context_has_the_contract_alone(autojump_clock: MockClock) -> None:
    """A plugin cannot come to rely on what the next release may lack."""
    offered = plugin(trikafka_rebalance_listener=lambda context: context.observers)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(PluginError, match="'observers' is not part of the contract"):
            async with trikafka.open_consumer(**settings(cluster, offered)):
                pass


async def test_context_says_what_is_made_later(autojump_clock: MockClock) -> None:
    """Observers are made first. The text denied that ``core`` is part of the contract."""
    given: list[Any] = []
    early = plugin(trikafka_observer=lambda context: context.core)
    later = plugin(trikafka_observer=lambda context: given.append(context))
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(PluginError, match="'core' does not exist yet, as the client is being"):
            async with trikafka.open_consumer(**settings(cluster, early)):
                pass
        async with trikafka.open_consumer(**settings(cluster, later)):
            assert given[0].core.assignment.partitions == {}


async def test_task_that_does_not_end_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """A plugin's task can shield itself from the end of the client, which waits for it."""

    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    class Stuck:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def run(self) -> None:
            await shielded()

    def manager(kind: ManagerKind, context: Any) -> object | None:
        if kind != "metadata":
            return None
        context.start_soon(shielded)
        return Stuck(context.builtin(kind))

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        began = trio.current_time()
        given = settings(cluster, plugin(trikafka_request_manager=manager))
        async with trikafka.open_producer(**given) as producer:
            await producer.send("t", b"x")
        assert trio.current_time() - began == pytest.approx(60)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.startswith(
        "the client is closed, and waits for tasks that have not ended 5 s after"
    )
    assert "plugin 'SimpleNamespace': metadata.run" in line
    assert "plugin 'SimpleNamespace': test_task_that_does_not_end_is_logged.<locals>.shiel" in line


async def test_example_of_the_documentation_works(
    capsys: pytest.CaptureFixture[str], autojump_clock: MockClock
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
    (source,) = [
        each for each in re.findall(r"```python\n(.*?)```", page, re.S) if "Logged" in each
    ]
    names: dict[str, Any] = {"hookimpl": hookimpl}
    exec(source, names)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"x"])
        given = settings(
            cluster, names["LogsCommits"](), group_id="g", auto_offset_reset="earliest"
        )
        async with trikafka.open_consumer("t", **given) as consumer:
            await consumer.receive()
    assert "commits {TopicPartition(topic='t', partition=0): " in capsys.readouterr().out
