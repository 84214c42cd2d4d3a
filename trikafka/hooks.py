"""The hooks that plugins implement; discovery and checks of plugins.

A hook is a synchronous *factory*. It is called once, when a client opens or an export begins. It
returns an object that meets a Protocol of :mod:`trikafka.interfaces`, or ``None`` if it has nothing
to offer. No hook is called per record or per receive. trikafka's own parts are registered as a
plugin of the same kind, behind all others.

Plugins come from the entry-point group ``trikafka`` and from the setting ``plugins=[...]``. A
faulty plugin is reported at opening by a :exc:`~trikafka.errors.PluginError` that names the plugin.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from .config import ClientConfig
from .errors import PluginError, TrikafkaError
from .interfaces import (
    ClientContext,
    CompressionCodec,
    ConnectionObserver,
    ExportFormat,
    ExportRunner,
    ManagerKind,
    MembershipNews,
    MembershipObserver,
    Observer,
    OfferedAssignor,
    ProduceManager,
    ProducerObserver,
    RebalanceListener,
    Sink,
    Subcommand,
)
from .types import Node

PROJECT = "trikafka"
ENTRY_POINT_GROUP = "trikafka"
_log = logging.getLogger("trikafka.plugins")
#: The name of trikafka's own plugin as it appears in errors.
BUILTIN = repr("trikafka")
#: The members of contracts that were renamed: the present name, and the name in the last release.
#: The old names work until the next release, in plugins' objects and in trikafka's.
_RENAMED: Mapping[type, Mapping[str, str]] = {
    ProduceManager: {
        "flush_batches": "hurry",
        "partitions_added": "admitted",
        "wait_none_in_flight": "landed",
    },
    MembershipNews: {"report": "tell"},
}

#: The contracts whose async methods must be `async def`.
_ASYNC = (RebalanceListener, ExportRunner, Sink)
#: The contracts of observers, which may have the methods of several.
_WATCHING = (ProducerObserver, ConnectionObserver, MembershipObserver)

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # By default `signature` evaluates the annotations, which fails for a name that only type
    # checkers import.
    _inspected = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _inspected = inspect.signature

hookspec = pluggy.HookspecMarker(PROJECT)
#: Marks a function or method as the implementation of a hook.
hookimpl = pluggy.HookimplMarker(PROJECT)


class SharedContext(ABC):
    """A client's context, of which each plugin gets its own view."""

    @abstractmethod
    def for_plugin(self, plugin: str) -> ClientContext:
        """Return the view for a plugin, given the plugin's name as errors show it."""


# Hooks are called once, at open, and return objects. A hook per record would put pluggy's dispatch
# into the path of every record. A factory costs nothing later: the client calls methods of the
# returned object directly.
#
# What is checked, and when, so that a faulty plugin fails at opening and not in the middle of a
# stream:
#
# * At registration: the hook exists, its arguments are a subset of the spec's, it is a plain
#   function and no wrapper, and the plugin implements at least one hook. A plugin without a hook is
#   nearly always a forgotten @hookimpl. pluggy would ignore it in silence.
# * When a hook returns: the object has every member of its Protocol, and its methods can be called
#   with the Protocol's arguments. A method that the Protocol has as a plain function is not async,
#   since its coroutine would never be awaited. Listeners, sinks and runners must have `async def`
#   methods; a manager's plain method may return the awaitable of another object. An observer's
#   method with an almost correct name is logged.
# * Return values of methods are not checked here. A proxy around a replaced manager names the
#   plugin when a method fails, or returns what would fail elsewhere.
#
# pluggy calls the plugin that was registered last first. load_plugins() registers trikafka's own
# parts, then entry points, then the setting `plugins`. For hooks with a single result (firstresult)
# the setting therefore wins over installed packages, and both win over the built-in part. For hooks
# with many results the order is reversed, so listeners run in order of registration.
class HookSpecs:
    """All hooks with their arguments.

    An implementation may omit arguments that it does not use. An argument that has a default value
    may be unknown to this release; the implementation gets the default then.

    Where the first result counts, plugins are asked in this order: those of the setting ``plugins``
    from the last to the first, then installed ones, then trikafka's own. Plugins behind the one
    with a result are not asked.
    """

    @hookspec(firstresult=True)
    def trikafka_request_manager(self, kind: ManagerKind, context: ClientContext) -> object | None:
        """Replace a request manager of the client. The first result counts.

        Args:
            kind: The kind of manager.
            context: The client that opens.

        Returns:
            A manager that meets the Protocol of ``kind`` (:mod:`trikafka.interfaces`), or ``None``.
        """

    @hookspec
    def trikafka_rebalance_listener(self, context: ClientContext) -> RebalanceListener | None:
        """Add a rebalance listener to a consumer.

        All listeners are called: in order of registration on assignment, in reverse order on
        revocation.

        A plugin's listener has no consumer to seek with. It sets the position of an assigned
        partition by ``context.core.assignment.partitions[tp].located(offset)``.

        Args:
            context: The consumer that opens, a :class:`~trikafka.interfaces.ConsumerContext`.

        Returns:
            A listener, or ``None``.
        """

    @hookspec(firstresult=True)
    def trikafka_sink(
        self, scheme: str, options: Mapping[str, Any], plugins: Collection[object]
    ) -> Sink | None:
        """Create the destination for a URL scheme. The first result counts.

        Args:
            scheme: The scheme of the destination's URL.
            options: The options that the user gave, and the destination as ``destination``.
            plugins: The objects of the setting ``plugins``, for hooks that the sink calls.

        Returns:
            A ``Sink`` for exports, or ``None``.
        """

    @hookspec
    def trikafka_sink_options(self, scheme: str) -> Collection[str] | None:
        """Name the options that sinks for ``scheme``, or their runners, accept.

        A sink checks its options by these names, the command line shows them in its help, and an
        export that gets one of them as a setting explains where it belongs. The names of all
        plugins count.

        Args:
            scheme: The scheme of the destination's URL.

        Returns:
            The names of the options, or ``None``. A name that ends with a dot stands for all names
            that begin with it.
        """

    @hookspec(firstresult=True)
    def trikafka_export_format(self, name: str) -> ExportFormat | None:
        """Create the format with this name, in which a sink writes. The first result counts.

        Args:
            name: The option ``format`` of an export.

        Returns:
            The format, or ``None``.
        """

    @hookspec(firstresult=True)
    def trikafka_export_runner(self, name: str, options: Mapping[str, Any]) -> ExportRunner | None:
        """Create the runner with this name, which runs the ranges of an export.

        The first result counts.

        Args:
            name: ``"threads"``, or ``"large"`` for the runner of large plans.
            options: The options that plugins declare by ``trikafka_sink_options``, as the user gave
                them, and ``threads``.

        Returns:
            The runner, or ``None``.

        Raises:
            ConfigurationError: An option is not valid.
        """

    @hookspec
    def trikafka_command(self) -> Subcommand | None:
        """Add a subcommand to the command line.

        Only the command line calls this hook. It also calls the plugins of the entry-point group
        ``trikafka.commands``, which clients do not load.

        Returns:
            The subcommand, or ``None``.
        """

    @hookspec(firstresult=True)
    def trikafka_value_format(self, name: str) -> Callable[[bytes], object] | None:
        """Create the decoder for a format of ``trikafka consume --value-format NAME``.

        The first result counts. Only the command line calls this hook, also of the plugins of the
        entry-point group ``trikafka.commands``.

        Args:
            name: The argument of ``--value-format`` or ``--key-format``.

        Returns:
            A function, or ``None``. It gets the bytes of a key or value, and returns what JSON can
            hold, or text. It is called in a thread, so it may block, for each record. Where it
            raises, the bytes are printed as they are without the option.
        """

    @hookspec(firstresult=True)
    def trikafka_assignor(self, name: str) -> OfferedAssignor | None:
        """Create the assignor with this name. The first result counts.

        Args:
            name: A name in ``partition_assignment_strategy``.

        Returns:
            The assignor, or ``None``.
        """

    @hookspec(firstresult=True)
    def trikafka_compression(self, name: str) -> CompressionCodec | None:
        """Create an implementation of a compression codec. The first result counts.

        Producers request the codec of ``compression_type``, consumers every codec.

        Args:
            name: ``"gzip"``, ``"snappy"``, ``"lz4"`` or ``"zstd"``.

        Returns:
            The codec, or ``None``.
        """

    @hookspec(firstresult=True)
    def trikafka_partitioner(self, name: str) -> object | None:
        """Create the partitioner with this name. The first result counts.

        Args:
            name: The setting ``partitioner``.

        Returns:
            A function ``(topic, key, partition numbers) -> number``, or ``None``.
        """

    @hookspec(firstresult=True)
    def trikafka_sasl(
        self, mechanism: str, config: ClientConfig
    ) -> Callable[[Node], object] | None:
        """Create the client side of a SASL mechanism. The first result counts.

        Args:
            mechanism: The setting ``sasl_mechanism``.
            config: The client's settings.

        Returns:
            A function, async or not, called with the broker's node at each authentication; or
            ``None``. The function returns an object with ``first() -> bytes`` and
            ``respond(challenge: bytes) -> bytes | None``, async or not. ``None`` ends the exchange.
        """

    @hookspec
    def trikafka_observer(self, context: ClientContext) -> Observer | None:
        """Observe a client: its opening, its failed background tasks and its closing.

        An object with the methods of :class:`~trikafka.interfaces.ProducerObserver`,
        :class:`~trikafka.interfaces.ConnectionObserver` or
        :class:`~trikafka.interfaces.MembershipObserver` receives these events as well.

        Args:
            context: The client that opens.

        Returns:
            An observer, or ``None``.
        """


class _PluginManager(pluggy.PluginManager):
    """pluggy's manager, without a look at what every object has.

    It looks at each name of a plugin and of the specifications. Most of these begin with ``__``,
    and cost a seventh of the processor's time of opening a client.
    """

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Return the options of a hook implementation; ``None`` if it is none."""
        return None if name.startswith("__") else super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> pluggy.HookspecOpts | None:
        """Return the options of a specification; ``None`` if it is none."""
        return None if name.startswith("__") else super().parse_hookspec_opts(module_or_class, name)


def load_plugins(
    extra: Iterable[object] = (), builtin: object | None = None
) -> pluggy.PluginManager:
    """Find, check and register all plugins.

    Args:
        extra: The objects of the setting ``plugins``.
        builtin: trikafka's own plugin.

    Returns:
        The plugin manager.

    Raises:
        PluginError: A plugin is faulty. The message names the plugin.
    """
    manager = _PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    if builtin is not None:
        _register(manager, builtin, PROJECT)
    # A program may pass an installed plugin, for its hooks to be called first, and a package may
    # have one object under two names: it is one plugin. The authors of two packages may choose the
    # same name: an error is to name one of them.
    extra = tuple(extra)
    known = list(extra)
    taken = {PROJECT}
    for point in _entry_points():
        plugin = _load(point)
        if any(plugin is other for other in known):
            continue
        known.append(plugin)
        name = f"{point.name} ({point.value})" if point.name in taken else point.name
        taken.add(name)
        _register(manager, plugin, name)
    for plugin in extra:
        _register(manager, plugin, None)
    _check_hooks_exist(manager)
    return manager


def first_answer(
    manager: pluggy.PluginManager, hook: str, shape: type | None = None, **arguments: object
) -> tuple[str, Any] | None:
    """Call a hook whose first result counts; check that result.

    Args:
        manager: The registered plugins.
        hook: The name of the hook.
        shape: The Protocol that the result must meet.
        arguments: The arguments of the hook.

    Returns:
        The plugin's name and the result; ``None`` if no plugin has one.

    Raises:
        PluginError: A plugin failed, or its result does not meet ``shape``.
    """
    found = _answers(manager, hook, arguments, first=True)
    return (found[0][0], _checked(found[0], hook, shape)) if found else None


def answers(
    manager: pluggy.PluginManager, hook: str, shape: type, **arguments: object
) -> list[tuple[str, Any]]:
    """Call a hook whose results all count; check the results.

    Args:
        manager: The registered plugins.
        hook: The name of the hook.
        shape: The Protocol that the results must meet.
        arguments: The arguments of the hook.

    Returns:
        Pairs of plugin name and result, in order of registration.

    Raises:
        PluginError: A plugin failed, or a result does not meet ``shape``.
    """
    return [
        (found[0], _checked(found, hook, shape))
        for found in _answers(manager, hook, arguments, first=False)
    ]


def missing_members(thing: object, shape: type) -> list[str]:
    """Return the members of ``shape`` that ``thing`` lacks.

    ``shape`` is a Protocol, or a class of methods.
    """
    return sorted(name for name in members_of(shape) if not _has(thing, name, shape))


def plain_methods(thing: object, shape: type) -> list[str]:
    """Return the plain methods of ``thing`` that ``shape`` declares as ``async def``.

    Such a method would fail only at its first call.
    """
    names = [
        name
        for name in members_of(shape)
        if inspect.iscoroutinefunction(getattr(shape, name, None))
    ]
    found = {name: getattr(thing, name, None) for name in names}
    plain = {
        name
        for name, method in found.items()
        if inspect.isfunction(method) or inspect.ismethod(method)
    }
    return sorted(
        name
        for name in plain
        if not inspect.iscoroutinefunction(inspect.unwrap(found[name]))  # type: ignore[arg-type]
    )


def async_methods(thing: object, shape: type) -> list[str]:
    """Return the async methods of ``thing`` that ``shape`` declares as plain functions.

    The coroutine of such a method would never be awaited.
    """
    return [
        name
        for name, promised, method in _methods(thing, shape)
        if not inspect.iscoroutinefunction(promised) and inspect.iscoroutinefunction(method)
    ]


def unfit_methods(thing: object, shape: type) -> list[str]:
    """Return a sentence for each method of ``thing`` that ``shape``'s arguments do not fit.

    Such a method would fail only at its first call. A function written in C may have no signature,
    and is not checked.
    """
    found = []
    for name, promised, method in _methods(thing, shape):
        if not callable(method):
            found.append(f"{name} is {type(method).__name__}, and has to be a method")
            continue
        if (signature := signature_of(method)) is None:
            continue
        try:
            for positional, named in _calls_of(promised):
                signature.bind(*positional, **named)
        except TypeError as wrong:
            found.append(
                f"{name}{_shown(signature)} has to be {name}{_shown(_signature_of(promised))}: "
                f"{wrong}"
            )
    return found


def _methods(thing: object, shape: type) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Yield name, promised function and present value of the methods of ``shape``.

    Methods that ``thing`` lacks are left out, and so are those that cannot be looked at.
    """
    for name in sorted(members_of(shape)):
        promised = inspect.getattr_static(shape, name, None)
        if not inspect.isfunction(promised):
            continue
        try:
            method = getattr(thing, name, None)
        except Exception:  # the failure is reported when the member is used
            continue
        if method is not None:
            yield name, promised, method


def _signature_of(promised: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a contract's function without ``self``."""
    signature = inspect.signature(promised)
    return signature.replace(parameters=[*signature.parameters.values()][1:])


@cache
def _calls_of(promised: Callable[..., Any]) -> tuple[tuple[list[None], dict[str, None]], ...]:
    """Return the calls that a contract's function allows: with all arguments, and with the fewest.

    The arguments are placeholders.
    """
    named = [
        parameter
        for parameter in _signature_of(promised).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    positional = [
        parameter
        for parameter in _signature_of(promised).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]

    def is_needed(parameter: inspect.Parameter) -> bool:
        return parameter.default is parameter.empty

    return (
        ([None] * len(positional), {each.name: None for each in named}),
        (
            [None for each in positional if is_needed(each)],
            {each.name: None for each in named if is_needed(each)},
        ),
    )


def _shown(signature: inspect.Signature) -> str:
    """Return a signature without annotations and default values, which may be long or secret."""
    parameters = [
        parameter.replace(
            annotation=parameter.empty,
            default=parameter.empty if parameter.default is parameter.empty else ...,
        )
        for parameter in signature.parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return text.replace("=Ellipsis", "=...")


def check_takes(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    error: Callable[[str], Exception],
    name: str,
    *,
    may_wait: bool = False,
) -> None:
    """Raise ``error`` if ``function`` cannot be called with ``arguments``.

    An async function is an error, too, unless it ``may_wait``. A function written in C may have no
    signature, and is not checked then.
    """
    if not may_wait and (
        inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(type(function).__call__)
    ):
        raise error(f"{name} is async, and has to be a plain function")
    if (signature := signature_of(function)) is None:
        return
    try:
        signature.bind(*arguments)
    except TypeError as wrong:
        count = "one argument" if len(arguments) == 1 else f"{len(arguments)} arguments"
        raise error(
            f"{name} cannot be called with {count}, it is {name_of(function)}{_shown(signature)}: "
            f"{wrong}"
        ) from wrong


def signature_of(
    function: Callable[..., object], *, follow_wrapped: bool = False
) -> inspect.Signature | None:
    """Return the signature of a function.

    Args:
        function: The function, or another object that can be called.
        follow_wrapped: Whether the signature is that of the function that a decorator has wrapped.
            The decorator may add arguments, so by default it is that of the decorator's function.

    Returns:
        The signature; ``None`` if it is not known. A function written in C may have none, and an
        object with a ``__getattr__`` of its own may fail when it is looked at.
    """
    try:
        return _inspected(function, follow_wrapped=follow_wrapped)
    except Exception:
        return None


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function."""
    return str(getattr(function, "__name__", type(function).__name__))


def _answers(
    manager: pluggy.PluginManager, hook: str, arguments: dict[str, object], *, first: bool
) -> list[tuple[str, object]]:
    """Call a hook; return the results with the names of their plugins.

    pluggy would make the same calls, but it does not say which plugin returned which result.
    Implementations are called in reverse order of registration. The list is in order of
    registration.
    """
    found: list[tuple[str, object]] = []
    for implementation in reversed(getattr(manager.hook, hook).get_hookimpls()):
        name = _name(implementation.plugin, implementation.plugin_name)
        given = arguments
        if name != BUILTIN and isinstance(context := arguments.get("context"), SharedContext):
            given = {**arguments, "context": context.for_plugin(name)}
        try:
            # pluggy passes no argument that has a default value in the implementation.
            answer = implementation.function(
                *(given[argument] for argument in implementation.argnames),
                **{each: given[each] for each in implementation.kwargnames if each in given},
            )
        except TrikafkaError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(f"plugin {name}: {hook} failed: {error!r}") from error
        if answer is not None:
            found.append((name, answer))
            if first:
                break
    return found[::-1]


def _checked(given: tuple[str, object], hook: str, shape: type | None) -> Any:
    name, answer = given
    who = f"plugin {name}: {hook}"
    if inspect.iscoroutine(answer):
        answer.close()
        raise PluginError(f"{who} is async; a hook is a plain function that returns an object")
    if shape is None:
        return answer
    if shape in _RENAMED:
        answer = _under_present_names(name, answer, shape)
    check_shape(who, answer, shape, methods=name != BUILTIN)
    # A text is a collection of letters.
    if shape is Collection and (
        not isinstance(answer, Collection)
        or isinstance(answer, str | bytes)
        or not all(isinstance(each, str) for each in answer)
    ):
        raise PluginError(f"{who} returned {answer!r}, which is not a collection of names")
    if shape is Observer:
        _warn_of_strange_methods(name, answer, frozenset().union(*map(members_of, _WATCHING)))
    return answer


def check_shape(who: str, answer: object, shape: type, *, methods: bool = True) -> None:
    """Raise :exc:`PluginError` if a plugin's object does not meet a contract.

    Args:
        who: The plugin, and the function that returned the object.
        answer: The object.
        shape: The contract.
        methods: Whether to check how methods can be called.
    """
    if _is_class_of_such_objects(answer, shape):
        made: str = answer.__name__  # type: ignore[attr-defined]
        raise PluginError(
            f"{who} returned the class {made}; it must return an object, such as {made}()"
        )
    if type(answer) is not shape and (missing := missing_members(answer, shape)):
        raise PluginError(
            f"{who} returned {type(answer).__name__}, which is no {shape.__name__}: it has no "
            f"{', '.join(missing)}"
        )
    if methods:
        _check_methods(who, answer, shape)


def _check_methods(who: str, answer: object, shape: type) -> None:
    """Raise :exc:`PluginError` for methods that cannot be called as the contract says."""
    what = f"{who} returned an object of {type(answer).__name__}, of which"
    if shape in _ASYNC and (plain := plain_methods(answer, shape)):
        raise PluginError(f"{what} {', '.join(plain)} must be `async def`")
    contracts = _WATCHING if shape is Observer else (shape,)
    if waits := {name for each in contracts for name in async_methods(answer, each)}:
        raise PluginError(f"{what} {', '.join(sorted(waits))} must be plain functions")
    if unfit := [text for each in contracts for text in unfit_methods(answer, each)]:
        raise PluginError(f"{what} {unfit[0]}")


def _is_class_of_such_objects(answer: object, shape: type) -> bool:
    """Return whether ``answer`` is a class, and a member of ``shape`` a method of its objects."""
    return isinstance(answer, type) and any(
        inspect.isfunction(inspect.getattr_static(answer, name, None)) for name in members_of(shape)
    )


class _PresentNames:
    """A plugin's object whose members have the names of the last release."""

    def __init__(self, thing: object, names: Mapping[str, str]) -> None:
        self._thing = thing
        self._names = names

    def __repr__(self) -> str:
        return repr(self._thing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, self._names.get(name, name))


def _under_present_names(plugin: str, answer: object, shape: type) -> object:
    """Return the answer with the present names of a contract's members.

    Warns of each member that has only its name of the last release.
    """
    old = {
        now: before
        for now, before in _RENAMED[shape].items()
        if not _has(answer, now, shape) and hasattr(answer, before)
    }
    for now, before in old.items():
        warnings.warn(
            f"plugin {plugin}: {_renamed(shape, now, before)}", DeprecationWarning, stacklevel=2
        )
    return _PresentNames(answer, old) if old else answer


def renamed_member(thing: object, shape: type, name: str) -> Any:
    """Return the member of ``thing`` that was called ``name`` in the last release, with a warning.

    Raises :exc:`AttributeError` if the contract ``shape`` never had such a member.
    """
    for now, before in _RENAMED.get(shape, {}).items():
        if name == before:
            warnings.warn(_renamed(shape, now, before), DeprecationWarning, stacklevel=3)
            return getattr(thing, now)
    raise AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}")


def _renamed(shape: type, now: str, before: str) -> str:
    return f"{shape.__name__}.{before} is called {now}; the old name goes with the next release"


def _warn_of_strange_methods(plugin: str, observer: object, points: Collection[str]) -> None:
    """Log an observer's methods that look like misspelt methods of a Protocol.

    An observer may have methods of its own. Only a name that is close to a Protocol's method, or
    begins with the same word as one, is logged.
    """
    words = {point.partition("_")[0] for point in points if "_" in point}
    for method in dir(type(observer)):
        if (
            method.startswith("_")
            or method in points
            or not callable(getattr(type(observer), method))
        ):
            continue
        close = get_close_matches(method, points, n=1, cutoff=0.75)
        if close or method.partition("_")[0] in words:
            meant = f"; {close[0]} is one" if close else f"; these are: {', '.join(sorted(points))}"
            _log.warning(
                "plugin %s: observer.%s is never called: observers have no such method%s",
                plugin,
                method,
                meant,
            )


def _has(thing: object, name: str, shape: type) -> bool:
    try:
        value = getattr(thing, name)
    except AttributeError:
        return False
    except Exception:  # the member exists; the failure is reported when the member is used
        return True
    return value is not None or _may_be_none(shape, name)


def _may_be_none(shape: type, name: str) -> bool:
    getter = getattr(inspect.getattr_static(shape, name, None), "fget", None)
    # A method has no annotation in its class, so `None` in its place counts as missing.
    return "None" in str(
        _annotations(shape).get(name, "")
        if getter is None
        else getter.__annotations__.get("return")
    )


@cache
def members_of(shape: type) -> frozenset[str]:
    """Return the names of the public members of a contract, and those that enter and leave it."""
    names = {
        name
        for base in shape.__mro__
        if base.__module__ != "typing"
        for name in (*vars(base), *_annotations(base))
    }
    return frozenset(
        name for name in names if not name.startswith("_") or name in ("__aenter__", "__aexit__")
    )


def _annotations(base: type) -> dict[str, object]:
    return dict(vars(base).get("__annotations__", {}))


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _load(point: EntryPoint) -> object:
    # A module that exits, such as a script without a guard, would end the program without a word.
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"plugin {point.name!r} ({point.value}) failed to load: {error!r}"
        ) from error


def _register(manager: pluggy.PluginManager, plugin: object, name: str | None) -> None:
    # pluggy refuses a plugin that is known, or equals a known one, with a text that has the
    # representations of all plugins.
    for other, known in manager.list_name_plugin():
        try:
            same = known is plugin or bool(known == plugin)
        except Exception as error:
            raise PluginError(
                f"plugin {_name(plugin, name)} cannot be compared with plugin "
                f"{_name(known, other)}: {error!r}"
            ) from error
        if same:
            how = "the same as" if known is plugin else "equal to"
            raise PluginError(
                f"plugin {_name(plugin, name)} is wrong: it is {how} plugin "
                f"{_name(known, other)}, so its hooks would be called twice; give it once"
            )
    try:
        manager.register(plugin, name)
    # NameError: pluggy's text has the annotations, which may have names for type checkers alone.
    except (pluggy.PluginValidationError, ValueError, NameError) as error:
        why = _unknown_argument(manager, plugin) or error
        raise PluginError(f"plugin {_name(plugin, name)} is wrong: {why}") from error
    except Exception as error:  # of a `__getattr__` or `__dir__` of the plugin's own
        raise PluginError(
            f"plugin {_name(plugin, name)} is wrong: it cannot be searched for hooks: {error!r}"
        ) from error
    callers = manager.get_hookcallers(plugin)
    if not callers:
        raise PluginError(
            f"plugin {_name(plugin, name)} is wrong: it implements no hook; is @trikafka.hookimpl "
            "missing?"
        )
    for caller in callers:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            if _is_method_of(plugin, implementation.function):
                raise PluginError(
                    f"plugin {_name(plugin, name)} is wrong: it is a class; give an object, such "
                    f"as {plugin.__name__}()"  # type: ignore[attr-defined]
                )
            if inspect.iscoroutinefunction(implementation.function):
                raise PluginError(
                    f"plugin {_name(plugin, name)} is wrong: {caller.name} is async, a hook is a "
                    "plain function"
                )
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginError(
                    f"plugin {_name(plugin, name)} is wrong: {caller.name} is a wrapper, a hook "
                    "is a plain function"
                )


def _unknown_argument(manager: pluggy.PluginManager, plugin: object) -> str | None:
    """Return a sentence about an argument that a hook does not have, if a plugin's has one."""
    for name in dir(plugin):
        if (options := manager.parse_hookimpl_opts(plugin, name)) is None:
            continue
        hook = options.get("specname") or name
        if (spec := vars(HookSpecs).get(hook)) is None:
            continue
        known = [*_signature_of(spec).parameters]
        if (signature := signature_of(getattr(plugin, name))) is None:
            continue
        for parameter in signature.parameters.values():
            needed = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_ONLY,
                parameter.POSITIONAL_OR_KEYWORD,
            )
            if needed and parameter.name not in (*known, "self"):
                return (
                    f"{hook} has no argument {parameter.name!r}; it has "
                    f"{', '.join(known) or 'none'}. If another release has {parameter.name!r}, "
                    f"write {parameter.name}=None"
                )
    return None


def _check_hooks_exist(manager: pluggy.PluginManager) -> None:
    """Raise :exc:`PluginError` for an implementation of a hook that does not exist.

    An implementation marked with ``optionalhook=True`` is for another release of trikafka.
    """
    for name, caller in vars(manager.hook).items():
        if name.startswith("_") or caller.has_spec():
            continue
        for implementation in caller.get_hookimpls():
            if implementation.optionalhook:
                continue
            hooks = [hook for hook in vars(HookSpecs) if not hook.startswith("_")]
            near = get_close_matches(name, hooks, n=1, cutoff=0.85)
            meant = (
                f"did you mean {near[0]!r}?"
                if near
                else "if it is a hook of another release, mark it with hookimpl(optionalhook=True)"
            )
            raise PluginError(
                f"plugin {_name(implementation.plugin, implementation.plugin_name)} is wrong: "
                f"there is no hook {name!r}; {meant}"
            )


def _is_method_of(plugin: object, function: object) -> bool:
    """Return whether the plugin is a class, and the function a method of its objects."""
    return isinstance(plugin, type) and any(
        value is function for base in plugin.__mro__ for value in vars(base).values()
    )


def _name(plugin: object, registered: str | None = None) -> str:
    """Return the name of a plugin for errors.

    That is the name of its entry point. Plugins given as objects are registered under a number, so
    the name of their class or module is used.
    """
    if registered is not None and not registered.isdigit():
        return repr(registered)
    try:
        return repr(getattr(plugin, "__name__", type(plugin).__name__))
    except Exception:  # of a `__getattr__` of the plugin's own
        return repr(type(plugin).__name__)
