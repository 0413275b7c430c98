"""The command ``sash admin token``: makes tokens for the file that SASH_TOKENS names."""

from __future__ import annotations

from typing import Annotated

import typer

from sash_cli import missing
from sash_cli.command import Command
from sash_cli.options import one_of
from sash_cli.output import fail

app = typer.Typer(name="token", no_args_is_help=True, help="Make tokens for the file that SASH_TOKENS names.")


@app.callback()
def token() -> None:
    """Make tokens for the file that SASH_TOKENS names."""


@app.command(cls=Command)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will have it; the audit log shows this name.")],
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="read, write or admin; each may do what those before it may.",
            autocompletion=one_of("read", "write", "admin"),
        ),
    ],
    windows: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="Windows that it may see: a name, or a pattern (flights-*); repeatable."),
    ],
    calls_per_s: Annotated[
        float | None, typer.Option(metavar="N", help="How many calls it may make in a second. [any]")
    ] = None,
    entries_per_s: Annotated[
        float | None, typer.Option(metavar="N", help="How many entries it may insert in a second. [any]")
    ] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="2027-01-01T00:00:00Z. [never]")] = None,
) -> None:
    """Print a new token, which is shown only now, and the lines for the token file."""
    # Here, as clients need nothing of it.
    try:
        from pydantic import ValidationError

        from sash.access.tokens import TokenEntry, digest_of, new_token, yaml_line
        from sash_engine.words import first_wrong
    except ModuleNotFoundError as error:
        fail(missing(error, "server"))
    made = new_token()
    given = {"calls_per_s": calls_per_s, "entries_per_s": entries_per_s, "expires": expires}
    try:
        entry = TokenEntry.model_validate(
            {"name": name, "sha256": digest_of(made), "role": role, "windows": windows}
            | {option: value for option, value in given.items() if value is not None}
        )
    except ValidationError as error:
        option, wrong = first_wrong(error)
        fail(f"{option.partition('.')[0]} {wrong}")
    typer.echo(made)
    typer.echo(f"# add to the file that SASH_TOKENS names, below `tokens:`\n{yaml_line(entry)}", err=True)
