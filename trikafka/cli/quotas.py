"""``trikafka quotas``: list, set and delete quotas of users, client ids and addresses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .admin import ask
from .options import Common, common_options, different, output_option, pairs
from .resetting import execute_option
from .suggesting import Suggesting
from .tables import say, say_done, say_json, table

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.quotas import QuotaEntity


@click.group(
    cls=Suggesting,
    default="list",
    words={"set": "add create alter", "list": "show get describe", "delete": "remove rm"},
)
@common_options
def command(common: Common) -> None:
    """List, set or delete quotas of users, client ids and addresses.

    Without a subcommand they are listed.
    """


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name an entity. The command receives them as ``who``."""

    @click.option("-u", "--user", metavar="NAME", help="A user; '' stands for the default.")
    @click.option("-c", "--client-id", metavar="NAME", help="A client id; '': the default.")
    @click.option("-i", "--ip", metavar="ADDRESS", help="An address; '': the default.")
    @functools.wraps(command)
    def wrapped(user: str | None, client_id: str | None, ip: str | None, **others: Any) -> Any:
        return command(who={"user": user, "client_id": client_id, "ip": ip}, **others)

    return wrapped


@command.command("list")
@_entity_options
@output_option
@common_options
def list_(common: Common, who: dict[str, str | None], output: str) -> None:
    """Show quotas: all of them, or those of a user, a client id or an address."""
    from .._api.admin.quotas import QuotaFilter

    wanted = QuotaFilter(**_named(who))
    found = ask(common, lambda admin: admin.describe_client_quotas(wanted))
    if output == "json":
        say_json([{**_as_json(entity), "quotas": own} for entity, own in found.items()])
    elif not found:
        say("no quotas")
    else:
        rows = [
            (
                _cell(entity.user) if not entity.others else str(entity),
                _cell(entity.client_id),
                _cell(entity.ip),
                name,
                f"{value:.12g}",
            )
            for entity, own in found.items()
            for name, value in own.items()
        ]
        say(table(("USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"), rows))


@command.command("set")
@_entity_options
@click.argument("values", nargs=-1, metavar="NAME=VALUE...", callback=pairs)
@click.option("--dry-run", is_flag=True, help="Let the brokers check the values, and set none.")
@output_option
@common_options
def set_(
    common: Common,
    who: dict[str, str | None],
    values: tuple[tuple[str, str], ...],
    dry_run: bool,
    output: str,
) -> None:
    """Set quotas of a user, a client id, both together, or an address; leave all others.

    producer_byte_rate and consumer_byte_rate are bytes a second; request_percentage,
    controller_mutation_rate, and connection_creation_rate of an address.
    """
    if not values:
        raise click.UsageError("give NAME=VALUE")
    wanted: dict[str, float | None] = {}
    for name, text in different(values).items():
        try:
            wanted[name] = float(text)
        except ValueError:
            raise click.UsageError(f"the value of {name} must be a number, not {text!r}") from None
    entity = _entity(who)
    ask(common, lambda admin: admin.alter_client_quotas({entity: wanted}, validate_only=dry_run))
    done = "valid; nothing was changed" if dry_run else "set"
    say_done(
        output,
        f"{entity}: {', '.join(sorted(wanted))}: {done}",
        {**_as_json(entity), "set": wanted, "dry_run": dry_run},
    )


@command.command()
@_entity_options
@click.argument("names", nargs=-1, metavar="[NAME]...")
@execute_option
@output_option
@common_options
def delete(
    common: Common, who: dict[str, str | None], names: tuple[str, ...], execute: bool, output: str
) -> None:
    """Delete quotas of a user, a client id, both together, or an address: all, or those named.

    Without --execute nothing is deleted: the command shows which would be.
    """
    from .._api.admin.quotas import QuotaFilter

    entity = _entity(who)
    wanted = QuotaFilter(**_named(who), strict=True)

    async def work(admin: Admin) -> list[str]:
        found = (await admin.describe_client_quotas(wanted)).get(entity, {})
        gone = sorted(names or found)
        if missing := [name for name in gone if name not in found]:
            raise click.ClickException(f"{entity} has no quota {missing[0]!r}")
        if not gone:
            raise click.ClickException(f"{entity} has no quotas")
        if execute:
            await admin.alter_client_quotas({entity: dict.fromkeys(gone)})
        return gone

    gone = ask(common, work)
    said = "deleted" if execute else "nothing was deleted; add --execute to delete"
    say_done(
        output,
        f"{entity}: {said}: {', '.join(gone)}",
        {**_as_json(entity), "executed": execute, "deleted" if execute else "found": gone},
    )


def _named(who: dict[str, str | None]) -> dict[str, Any]:
    """Return the names for an entity or a filter; '' stands for the default."""
    from .._api.admin.quotas import QuotaName

    return {
        kind: QuotaName.DEFAULT if name == "" else name
        for kind, name in who.items()
        if name is not None
    }


def _entity(who: dict[str, str | None]) -> QuotaEntity:
    from .._api.admin.quotas import QuotaEntity
    from ..errors import ConfigurationError

    try:
        return QuotaEntity(**_named(who))
    except ConfigurationError as error:
        raise click.UsageError(f"{error}; give -u, -c or -i") from None


def _cell(name: Any) -> str | None:
    return name if name is None or isinstance(name, str) else "(default)"


def _as_json(entity: QuotaEntity) -> dict[str, Any]:
    """Return the fields of an entity; the default is the empty text, as in the options."""
    return {
        kind: value if isinstance(value, str) else ""
        for kind, value in (
            ("user", entity.user),
            ("client_id", entity.client_id),
            ("ip", entity.ip),
            *entity.others,
        )
        if value is not None
    }
