"""``trikafka configs``: show and change settings of topics, brokers and groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from .admin import ask
from .options import Common, common_options, different, output_option, pairs
from .suggesting import Suggesting
from .tables import say, say_done, say_json, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.configs import ConfigResource

#: The resource types, as an argument names them.
_TYPES = ("topic", "broker", "broker-logger", "client-metrics", "group")
_SECRET = "(secret)"
#: How a setting begins that stands where the name of its resource is missing. Names of groups and
#: of metrics subscriptions may have a "=", and one of a wrong name would be made in silence. So
#: only settings that these kinds have are refused; no other kind has such names.
_SETTINGS = {
    "group": r"(consumer|share|streams)(\.[a-z]+)+=",
    "client-metrics": r"(interval\.ms|match|metrics)=",
}
#: Words in the names of secrets. A broker does not list a listener's own settings before they are
#: set, so their names decide.
_SECRET_NAMES = ("password", "secret", "jaas", "keystore.key")


class _Kind(click.Choice):  # type: ignore[type-arg]
    """A resource type. The error for another word suggests a type, or a topic of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            verb = ctx.info_name if ctx is not None else "get"
            near = get_close_matches(value, self.choices, n=1)
            meant = near[0] if near else f"trikafka configs {verb} topic {value}"
            self.fail(f"{value!r} is none of these; did you mean {meant!r}?", param, ctx)
        return super().convert(value, param, ctx)


_kind = click.argument("kind", type=_Kind(_TYPES), metavar="|".join(_TYPES))
_name = click.argument("name", required=False)


@click.group(
    cls=Suggesting,
    words={
        "get": "show list describe",
        "set": "alter",
        "trikafka configs set topic NAME --delete SETTING": "delete unset remove",
    },
)
@common_options
def command(common: Common) -> None:
    """Show or change settings of topics, brokers and groups."""


@command.command()
@_kind
@_name
@click.option("--all", "everything", is_flag=True, help="Show those with Kafka's own default, too.")
@click.option("--docs", is_flag=True, help="Show the brokers' text about each setting, too.")
@output_option
@common_options
def get(
    common: Common, kind: str, name: str | None, everything: bool, docs: bool, output: str
) -> None:
    """Show the settings of a topic, a broker or a group.

    The name of a broker is its number. Without a name, the settings that all brokers share are
    shown. SOURCE says where the value comes from.
    """
    resource = _resource(kind, name)

    async def work(admin: Admin) -> list[Any]:
        found = await admin.describe_configs([resource], documentation=docs)
        entries = sorted(found[resource].values(), key=lambda entry: entry.name)
        return [entry for entry in entries if everything or not entry.is_default]

    entries = ask(common, work)
    if output == "json":
        say_json(
            [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source,
                    "read_only": entry.read_only,
                    "sensitive": entry.sensitive,
                    "type": entry.type,
                    **({"documentation": entry.documentation} if docs else {}),
                }
                for entry in entries
            ]
        )
    elif not entries:
        say(f"{resource} has only defaults; --all shows them")
    elif docs:
        for entry in entries:
            say(f"{entry.name}={_shown(entry)}  ({entry.source})\n    {entry.documentation or ''}")
    else:
        rows = [(entry.name, _shown(entry), entry.source) for entry in entries]
        say(table(("NAME", "VALUE", "SOURCE"), rows))


@command.command("set")
@_kind
@_name
@click.argument("changes", nargs=-1, metavar="NAME=VALUE...", callback=pairs)
@click.option(
    "--delete",
    "gone",
    multiple=True,
    metavar="NAME",
    help="Remove a setting, with --execute; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Let the brokers check the changes, and change none.")
@click.option(
    "--execute",
    is_flag=True,
    help="Carry out the changes with --delete. Without --delete they are made at once.",
)
@output_option
@common_options
def set_(
    common: Common,
    kind: str,
    name: str | None,
    changes: tuple[tuple[str, str], ...],
    gone: tuple[str, ...],
    dry_run: bool,
    execute: bool,
    output: str,
) -> None:
    """Change settings of a topic, a broker or a group; leave all others.

    For settings that all brokers share, write '' as the name. Settings are changed at once. With
    --delete and without --execute nothing is changed: the brokers check the changes, and a table
    shows the values after them.
    """
    if name is not None and re.match(_SETTINGS.get(kind, r"[a-z.]+="), name):
        raise click.UsageError(f"which {kind}? {name!r} is a setting: its {kind} comes before it")
    resource = _resource(kind, name)
    wanted: dict[str, str | None] = {**different(changes)}
    if both := [each for each in gone if each in wanted]:
        raise click.UsageError(f"{both[0]} is to be set and deleted: choose one")
    wanted.update(dict.fromkeys(gone))
    if not wanted:
        raise click.UsageError("give NAME=VALUE, or --delete NAME")
    if dry_run and execute:
        raise click.UsageError("give only one of --dry-run and --execute")
    if gone and not execute:
        rows = ask(common, lambda admin: planned(admin, resource, wanted))
        _say_planned(resource, rows, output)
        return
    ask(common, lambda admin: admin.alter_configs({resource: wanted}, validate_only=dry_run))
    done = "valid; nothing was changed" if dry_run else "changed"
    say_done(
        output,
        f"{resource}: {', '.join(sorted(wanted))}: {done}",
        {"resource": [resource.type, resource.name], "names": sorted(wanted), "dry_run": dry_run},
    )


async def planned(
    admin: Admin, resource: ConfigResource, wanted: Mapping[str, str | None]
) -> list[tuple[str, str | None, str | None]]:
    """Let the brokers check changes; return the name of each setting, its value now and after.

    A deleted setting gets the value that it hides, such as that of all brokers. Secrets are not
    shown.
    """
    found = (await admin.describe_configs([resource]))[resource]
    await admin.alter_configs({resource: wanted}, validate_only=True)
    own = resource.type if resource.name or resource.type != "broker" else "brokers"
    rows = []
    for name, value in sorted(wanted.items()):
        entry = found.get(name)
        now = None if entry is None else _shown(entry)
        after = value
        if value is None and entry is not None:
            hidden = [text for _, text, source in entry.synonyms if source != own]
            after = hidden[0] if hidden else None
        secret = any(word in name for word in _SECRET_NAMES) if entry is None else entry.sensitive
        if secret and after is not None:
            after = _SECRET
        rows.append((name, now, after))
    return rows


def _say_planned(
    resource: ConfigResource, rows: list[tuple[str, str | None, str | None]], output: str
) -> None:
    if output == "json":
        settings = [{"name": name, "now": now, "after": after} for name, now, after in rows]
        say_json(
            {
                "resource": [resource.type, resource.name],
                "names": [name for name, _, _ in rows],
                "dry_run": True,
                "settings": settings,
            }
        )
        return
    # A broker does not say what a few settings are by default.
    cells = [(name, now, "(default)" if after is None else after) for name, now, after in rows]
    say(table(("NAME", "NOW", "AFTER"), cells))
    say("nothing was changed; add --execute")


def _resource(kind: str, name: str | None) -> ConfigResource:
    from .._api.admin.configs import ConfigResource
    from ..errors import ConfigurationError

    if name is None and kind != "broker":
        raise click.UsageError(f"which {kind}?")
    kind = kind.replace("-", "_")
    try:
        return ConfigResource(kind, name or "")  # type: ignore[arg-type]
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None


def _shown(entry: Any) -> str | None:
    return _SECRET if entry.sensitive else entry.value
