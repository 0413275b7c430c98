"""The command ``sash serve``, which starts without the other commands: they take a tenth of a second."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from sash_cli import command, missing
from sash_cli.command import STYLE, Command
from sash_cli.output import fail

_app = typer.Typer(add_completion=False, **STYLE)

MORE = """All settings are variables: `sash serve` without options reads SASH_DATA, SASH_TOKENS and so on.

\b
Who may call   SASH_TOKENS=tokens.yaml, a file of tokens; `sash admin token new` makes one
Encryption     SASH_TLS_CERT and SASH_TLS_KEY; SASH_TLS_CLIENT_CA for certificates of clients
Every setting  docs/reference/settings.md
"""


@_app.command(cls=Command, epilog=MORE)
def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on. [SASH_HOST, 127.0.0.1]")
    ] = None,
    grpc_port: Annotated[int | None, typer.Option(metavar="PORT", help="Port of gRPC. [SASH_GRPC_PORT, 7070]")] = None,
    rest_port: Annotated[int | None, typer.Option(metavar="PORT", help="Port of REST. [SASH_REST_PORT, 7071]")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Where windows are kept: a directory, redis://…, or memory. [SASH_DATA, ./sash-data]"
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(metavar="N", help="How many processes serve, or auto: one for each core. [SASH_PROCESSES, 1]"),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", help="Over how many shards a new store spreads its keys. [SASH_SHARDS]")
    ] = None,
    shards_owned: Annotated[
        str | None,
        typer.Option(
            metavar="SHARDS", help="The only shards that this process takes, such as 0-15. [SASH_SHARDS_OWNED]"
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Least severe messages to log. [SASH_LOG_LEVEL]")
    ] = None,
) -> None:
    """Serve windows over gRPC and REST until told to stop (SIGINT, SIGTERM)."""
    # gRPC's core, which reads this when it is imported, writes a line for each handshake that fails. It does so by
    # itself, and waits where nobody reads them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Pydantic looks through all packages that are installed for plug-ins of its own, which Sash has no use for.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")
    # Here, as all other commands are clients, which need nothing of it and should not wait for it. And without the
    # collector: what is imported stays, and to look through it again and again takes a fifth of a start.
    gc.disable()
    try:
        from sash import service
        from sash.processes import supervisor
        from sash.settings import load_settings
        from sash_engine.errors import SashError
    except ModuleNotFoundError as error:
        fail(missing(error, "server"))
    finally:
        gc.freeze()
        gc.enable()
    try:
        settings = load_settings(
            host=host,
            grpc_port=grpc_port,
            rest_port=rest_port,
            data=data,
            processes=processes,
            shards=shards,
            shards_owned=shards_owned,
            log_level=log_level,
        )
        (supervisor if settings.processes > 1 else service).serve(settings)
    except SashError as error:
        fail(error.message)


def run() -> None:
    """Run the command, which the command line names first."""
    command.run(_app, "sash serve", sys.argv[2:])
