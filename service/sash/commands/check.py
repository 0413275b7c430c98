"""The command ``sash admin check``: finds damaged values in a directory or in Redis, and salvages what is not damaged.

sash admin check DATA                      read-only; exit status 1 if something is damaged
sash admin check --salvage DATA NEWDATA    copies what is whole to a new place; exit status 1 if something is left
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from sash_cli import missing
from sash_cli.output import fail

_WHERE = "a directory, redis://… or rediss://…"


def check(
    data: Annotated[str, typer.Argument(metavar="DATA", help=f"What to look through: {_WHERE}, without a server.")],
    new: Annotated[
        str | None, typer.Argument(metavar="[NEWDATA]", help=f"Where to salvage to, with --salvage: {_WHERE}; empty.")
    ] = None,
    salvage: Annotated[bool, typer.Option("--salvage", help="Write what is whole to NEWDATA.")] = False,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Prefix of DATA, where it is in Redis. [SASH_REDIS_PREFIX, sash]"),
    ] = None,
    new_prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Prefix of NEWDATA, where it is in Redis. [as DATA's]")
    ] = None,
) -> None:
    """Say which stored values are damaged and whom that concerns; salvage what is whole. DATA is never changed."""
    # This command prints each damaged value and window once: the log of the recovery would repeat them.
    logging.getLogger("sash").setLevel(logging.CRITICAL + 1)
    if salvage != (new is not None):
        fail("give NEWDATA with --salvage" if salvage else "give --salvage with NEWDATA: nothing else is written")
    try:
        # Imported here, because all other commands are clients and should not wait for the engine.
        from sash.commands.salvaging import check_all
        from sash_engine.errors import SashError

        try:
            whole = check_all(data, prefix, new, new_prefix)
        except SashError as error:
            fail(error.message)
    except ModuleNotFoundError as error:
        fail(missing(error, "server"))
    if not whole:
        sys.exit(1)
