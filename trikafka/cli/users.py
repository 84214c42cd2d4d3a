"""``trikafka users``: list, set and delete the passwords of SCRAM users."""

from __future__ import annotations

import os
import signal
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from .admin import ask
from .options import Common, common_options, output_option
from .partly import others, whole
from .resetting import execute_option
from .running import Signalled, signals_raised
from .suggesting import Suggesting
from .tables import say_done, say_rows
from .terminal import echo_off_while_running

if TYPE_CHECKING:
    from .._api.admin.admin import Admin

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_mechanism = click.option(
    "-m",
    "--mechanism",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    default="SCRAM-SHA-512",
    show_default=True,
)


@click.group(
    cls=Suggesting,
    default="list",
    words={
        "set": "add create alter passwd password",
        "list": "show get describe",
        "delete": "remove rm",
    },
)
@common_options
def command(common: Common) -> None:
    """List, set or delete passwords of SCRAM users.

    Without a subcommand the users are listed.
    """


@command.command("list")
@click.argument("names", nargs=-1, metavar="[USER]...")
@output_option
@common_options
def list_(common: Common, names: tuple[str, ...], output: str) -> None:
    """Show the users with SCRAM passwords, and by which mechanisms they authenticate."""
    found = ask(common, lambda admin: others(admin.describe_user_scram_credentials(names or None)))
    rows = [(user, one.mechanism, one.iterations) for user, own in found.items() for one in own]
    columns = {"user": "USER", "mechanism": "MECHANISM", "iterations": "ITERATIONS"}
    say_rows(output, columns, rows, "no users")


# click's error for a second argument would show it, and it may be a password.
@command.command("set", context_settings={"allow_extra_args": True})
@click.argument("user")
@_mechanism
@click.option(
    "-n", "--iterations", type=click.IntRange(4_096, 16_384), default=8_192, show_default=True
)
@click.option(
    "--password-file",
    type=click.Path(allow_dash=True, dir_okay=False),
    metavar="FILE",
    help="A file whose first line is the password; -: the standard input.",
)
@click.option(
    "--password-env", metavar="NAME", help="The variable of the environment with the password."
)
@output_option
@common_options
def set_(
    common: Common,
    user: str,
    mechanism: str,
    iterations: int,
    password_file: str | None,
    password_env: str | None,
    output: str,
) -> None:
    """Set the password of a user. A user without a password gets one.

    Without --password-file and --password-env the command asks for it. An argument cannot be the
    password: other users of this machine see the arguments of commands.
    """
    from .._api.admin.users import ScramPassword

    if click.get_current_context().args:
        raise click.UsageError(
            "give one user, and no password: other users of this machine see arguments; give "
            "--password-file or --password-env"
        )
    password = _password(password_file, password_env)
    change = ScramPassword(password, mechanism, iterations)  # type: ignore[arg-type]
    ask(common, lambda admin: admin.alter_user_scram_credentials({user: change}))
    say_done(
        output,
        f"{user}: password set for {mechanism}",
        {"user": user, "mechanism": mechanism, "iterations": iterations},
    )


@command.command()
@click.argument("user")
@_mechanism
@execute_option
@output_option
@common_options
def delete(common: Common, user: str, mechanism: str, execute: bool, output: str) -> None:
    """Delete the password of a user for one mechanism.

    Without --execute nothing is deleted: the command only looks for the password.
    """
    from .._api.admin.users import ScramRemoval

    change = ScramRemoval(mechanism)  # type: ignore[arg-type]

    async def work(admin: Admin) -> None:
        if execute:
            await admin.alter_user_scram_credentials({user: change})
            return
        found = await whole(admin.describe_user_scram_credentials())
        if not any(one.mechanism == mechanism for one in found.get(user, ())):
            near = get_close_matches(user, found, n=1)
            hint = f"; did you mean {near[0]!r}?" if near and near[0] != user else ""
            raise click.ClickException(f"user {user!r} has no password for {mechanism}{hint}")

    ask(common, work)
    done = "deleted" if execute else "was not deleted; add --execute"
    say_done(
        output,
        f"{user}: password for {mechanism} {done}",
        {"user": user, "mechanism": mechanism, "executed": execute},
    )


def _password(file: str | None, variable: str | None) -> str:
    """Return the password from a file, the environment or the terminal.

    Raises:
        click.UsageError: There is none. No error shows the password.
    """
    if file is not None and variable is not None:
        raise click.UsageError("give only one of --password-file and --password-env")
    if variable is not None:
        password = os.environ.get(variable, "")
        if not password:
            raise click.UsageError(f"the environment has no variable {variable!r}")
        return password
    if file is not None:
        if file == "-" and sys.stdin is None:
            raise click.UsageError("the standard input is closed")
        try:
            with click.open_file(file, encoding="utf-8") as lines:
                password = str(lines.readline()).rstrip("\r\n")
        except OSError as error:
            raise click.UsageError(f"cannot read {file!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise click.UsageError(f"{file!r} is not text in UTF-8") from None
        if not password:
            raise click.UsageError(f"the first line of {file!r} is empty")
        return password
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            "no terminal to ask for the password: give --password-file or --password-env"
        )
    # The default action of a signal would leave the terminal without an echo of what is typed.
    try:
        with signals_raised(), echo_off_while_running():
            return str(
                click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
            )
    except Signalled as signalled:
        if signalled.number not in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):  # a key
            click.echo(err=True)  # the shell's prompt gets a line of its own
        raise
