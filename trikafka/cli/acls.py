"""``trikafka acls``: list, set and delete access rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import changed, others
from .progress import warn
from .suggesting import Suggesting
from .tables import say, say_done, say_json, table

if TYPE_CHECKING:
    from .._api.admin.acls import AclBinding

#: The operations, as an option names them.
_OPERATIONS = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster-action"),
    *("describe-configs", "alter-configs", "idempotent-write", "create-tokens", "describe-tokens"),
    "two-phase-commit",
)
#: The parameters that name resources, with their types.
_RESOURCES = {
    "topics": "topic",
    "groups": "group",
    "transactional_ids": "transactional_id",
    "tokens": "delegation_token",
    "owners": "user",
}
#: Each type of resource in words, and the operations that brokers check on it (Kafka's
#: ``AclEntry.supportedOperations``), except "all". A broker accepts a rule about another operation,
#: but such a rule allows and denies nothing.
_CHECKED = {
    "topic": (
        "a topic",
        (
            *("read", "write", "create", "delete", "alter", "describe"),
            *("describe-configs", "alter-configs"),
        ),
    ),
    "group": ("a group", ("read", "delete", "describe", "describe-configs", "alter-configs")),
    "cluster": (
        "the cluster",
        (
            *("create", "alter", "describe", "cluster-action"),
            *("describe-configs", "alter-configs", "idempotent-write"),
        ),
    ),
    "transactional_id": ("a transactional id", ("write", "describe", "two-phase-commit")),
    "delegation_token": ("a delegation token", ("describe",)),
    "user": ("the owner of tokens", ("create-tokens", "describe-tokens")),
}


@click.group(
    cls=Suggesting,
    default="list",
    words={
        "set": "add create grant allow",
        "list": "show get describe",
        "delete": "remove rm revoke",
    },
)
@common_options
def command(common: Common) -> None:
    """List, set or delete access rules (ACLs).

    Without a subcommand they are listed.
    """


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name rules. The command receives their fields as ``rules``."""

    @click.option(
        "-u",
        "--user",
        "users",
        multiple=True,
        help="A user, such as alice or User:alice; '*': all.",
    )
    @click.option(
        "-O",
        "--operation",
        "operations",
        multiple=True,
        type=click.Choice(_OPERATIONS),
        metavar="NAME",
        help="read, write, describe, all ...; repeatable.",
    )
    @click.option("-t", "--topic", "topics", multiple=True, metavar="NAME", help="A topic.")
    @click.option("-G", "--group", "groups", multiple=True, metavar="NAME", help="A group.")
    @click.option("--transactional-id", "transactional_ids", multiple=True, metavar="NAME")
    @click.option(
        "--token", "tokens", multiple=True, metavar="ID", help="The id of a delegation token."
    )
    @click.option(
        "--token-owner",
        "owners",
        multiple=True,
        metavar="USER",
        help="A user for whom others create delegation tokens, or whose tokens they see.",
    )
    @click.option("--cluster", "cluster", is_flag=True, help="The cluster itself.")
    @click.option(
        "--prefix", is_flag=True, help="Match every name that begins with one of those given."
    )
    @click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="The client's address.")
    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        names = ("users", "operations", *_RESOURCES, "cluster", "prefix", "hosts")
        return command(rules={name: given.pop(name) for name in names}, **given)

    return wrapped


@command.command("list")
@_rule_options
@click.option("--deny", is_flag=True, help="Only rules that deny.")
@output_option
@common_options
def list_(common: Common, rules: dict[str, Any], deny: bool, output: str) -> None:
    """Show all access rules, or those for the users and resources that the options name.

    A resource is matched by the rules with its name, with a prefix of its name, and with '*'.
    """
    rules = {**rules, "hosts": _written(rules["hosts"])}
    filters = _filters(rules, deny, "prefixed" if rules["prefix"] else "match")

    async def work(admin: Any) -> list[AclBinding]:
        found = [rule for one in filters for rule in await admin.describe_acls(one)]
        return sorted(dict.fromkeys(found))

    _print(ask(common, work), output, "no rules")


@command.command("set")
@_rule_options
@click.option("--deny", is_flag=True, help="Deny; a rule that denies beats those that allow.")
@output_option
@common_options
def set_(common: Common, rules: dict[str, Any], deny: bool, output: str) -> None:
    """Add access rules: each user may do each operation on each resource.

    trikafka acls set -u alice -O read -O describe -t orders -G billing --prefix
    """
    from .._api.admin.acls import AclBinding

    resources = _resources(rules)
    for what, option in (("users", "-u"), ("operations", "-O")):
        if not rules[what]:
            raise click.UsageError(f"which {what}? give {option}")
    if not resources:
        raise click.UsageError(
            "on what? give -t, -G, --transactional-id, --token, --token-owner or --cluster"
        )
    _check_operations(rules["operations"], dict(resources))
    _check_asterisks(resources, prefix=rules["prefix"])
    hosts = [_address(host) for host in rules["hosts"]] or ["*"]
    bindings = [
        AclBinding(
            principal=_principal(user),
            operation=operation.replace("-", "_"),
            resource_type=kind,
            resource_name=name,
            pattern="prefixed" if rules["prefix"] and kind != "cluster" else "literal",
            permission="deny" if deny else "allow",
            host=host,
        )
        for user, operation, (kind, name), host in product(
            rules["users"], rules["operations"], resources, hosts
        )
    ]
    made = ask(common, lambda admin: changed(bindings, admin.create_acls(bindings)))
    say_done(
        output, "\n".join(f"set: {one}" for one in made), {"set": [_as_json(one) for one in made]}
    )


@command.command()
@_rule_options
@click.option("--deny", is_flag=True, help="Only rules that deny.")
@click.option("--execute", is_flag=True, help="Delete them; without it they are only shown.")
@output_option
@common_options
def delete(common: Common, rules: dict[str, Any], deny: bool, execute: bool, output: str) -> None:
    """Delete the access rules that the options name, exactly by these names.

    Hosts are compared as texts, too: --host ::1 deletes no rule about 0:0:0:0:0:0:0:1.

    Without --execute the command shows what it would delete.
    """
    if not any(rules[name] for name in rules if name != "prefix"):
        raise click.UsageError("which rules? give -u, -O, -t or other options")
    filters = _filters(rules, deny, "prefixed" if rules["prefix"] else "literal")

    async def work(admin: Any) -> list[AclBinding]:
        if execute:
            gone = await others(admin.delete_acls(filters))
            found = [rule for own in gone.values() for rule in own]
        else:
            found = [rule for one in filters for rule in await admin.describe_acls(one)]
        return sorted(dict.fromkeys(found))

    found = ask(common, work)
    _print(found, output, "no such rules")
    if output != "json" and found:
        say("\ndeleted" if execute else "\nnothing was changed; add --execute to delete these")


def _check_operations(operations: Iterable[str], kinds: Iterable[str]) -> None:
    """Raise :exc:`click.UsageError` if a rule would never apply."""
    for kind, operation in product(kinds, operations):
        words, known = _CHECKED[kind]
        if operation not in ("all", *known):
            raise click.UsageError(
                f"{words} has no operation {operation!r}; -O is one of all, {', '.join(known)}"
            )


def _check_asterisks(resources: Iterable[tuple[str, str]], *, prefix: bool) -> None:
    """Refuse or warn of names that are meant as patterns; brokers know none.

    Raises:
        click.UsageError: The rule would never apply: no topic has an asterisk in its name. Groups
            and transactional ids may have one.
    """
    for kind, name in resources:
        if kind not in ("topic", "group", "transactional_id") or "*" not in name:
            continue
        begins = name.rstrip("*")
        means = (
            f"for all names that begin with {begins!r} write {begins!r} with --prefix"
            if begins and "*" not in begins
            else "brokers know no other pattern than '*' alone and --prefix"
        )
        if kind == "topic" and prefix and name == "*":
            raise click.UsageError(
                "with --prefix, '*' means names that begin with an asterisk, which no topic has: "
                "leave --prefix out for all names"
            )
        if kind == "topic" and name != "*":
            raise click.UsageError(
                f"no topic has an asterisk in its name, so a rule about {name!r} never applies: "
                f"{means}"
            )
        if name != "*" and not prefix:
            warn(f"the rule is about the name {name!r} alone, with its asterisk: {means}")


def _address(host: str) -> str:
    """Return the host of a new rule as brokers write the addresses that they compare with it.

    Raises:
        click.UsageError: It is not an address, so that the rule would never apply.
    """
    from .._api.admin.acls import broker_address

    if host == "*" or "/" in host:  # networks: later releases of Kafka have them
        return host
    try:
        return broker_address(host)
    except ValueError:
        raise click.UsageError(
            f"--host {host!r} is not an address: brokers compare the client's address with it, and "
            "look up no names"
        ) from None


def _filters(rules: dict[str, Any], deny: bool, pattern: Any) -> list[Any]:
    from .._api.admin.acls import AclFilter

    return [
        AclFilter(
            principal=None if user is None else _principal(user),
            operation=None if operation is None else operation.replace("-", "_"),
            resource_type=kind,
            resource_name=name,
            pattern=None if name is None else "literal" if kind == "cluster" else pattern,
            permission="deny" if deny else None,
            host=host,
        )
        for user, operation, (kind, name), host in product(
            rules["users"] or (None,),
            rules["operations"] or (None,),
            _resources(rules) or ((None, None),),
            rules["hosts"] or (None,),
        )
    ]


def _written(hosts: Iterable[str]) -> list[str]:
    """Return hosts as they were given, and also as brokers write them: rules may have both."""
    from .._api.admin.acls import broker_address

    found = list(hosts)
    for host in hosts:
        with suppress(ValueError):
            found.append(broker_address(host))
    return list(dict.fromkeys(found))


def _resources(rules: dict[str, Any]) -> list[tuple[Any, str]]:
    from .._api.admin.acls import CLUSTER_NAME

    named = [
        (kind, _principal(name) if kind == "user" else name)
        for option, kind in _RESOURCES.items()
        for name in rules[option]
    ]
    return [*named, *([("cluster", CLUSTER_NAME)] if rules["cluster"] else [])]


def _principal(user: str) -> str:
    return user if ":" in user else f"User:{user}"


def _print(found: list[AclBinding], output: str, none: str) -> None:
    if output == "json":
        say_json([_as_json(one) for one in found])
    elif not found:
        say(none)
    else:
        rows = [
            (
                one.principal,
                one.permission,
                one.operation,
                one.resource_type,
                one.resource_name + ("..." if one.pattern == "prefixed" else ""),
                one.host,
            )
            for one in found
        ]
        say(table(("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "HOST"), rows))


def _as_json(one: AclBinding) -> dict[str, str]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}
