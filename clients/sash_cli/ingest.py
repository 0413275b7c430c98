"""The command ``sash data ingest``: a connector into windows, until it is stopped."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, LOGIN, Target
from sash_cli.output import fail
from sash_wire.errors import WireError

if TYPE_CHECKING:  # as in `options`
    from sash_ingest.config import IngestConfig

_TIMEOUT_S = 5.0
"""A call that is not answered for so long is said, and made again."""


def ingest(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="kafka, or - for lines of standard input.")],
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Source, mapping and windows.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="End at the first record that does not fit, also where bad_records is set.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of standard input: a second run under it leaves out lines that are there."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the document is in order.")] = False,
    target: Target = LOCAL,
) -> None:
    """Write a stream into windows, each record once, until SIGTERM or the end of the input."""
    if source not in ("kafka", "-"):
        fail(f"{source}: write kafka, or - for lines of standard input")
    try:
        from sash_ingest.config import IngestConfig
        from sash_ingest.run import run
        from sash_wire.pipeline import loaded

        if source == "kafka":
            import confluent_kafka  # noqa: F401
    except ModuleNotFoundError as error:
        fail(missing(error, "kafka" if source == "kafka" else "ingest"))
    try:
        document = loaded(IngestConfig, config)
        if (document.source.format == "kafka") is not (source == "kafka"):
            fail(f"{config}: source.format: the document is not for {source}")
        if not check:
            _run(run, config, document, target, strict, name)
    except WireError as error:
        fail(f"{config}: {error.message}")


def _run(run: Any, config: Path, document: IngestConfig, target: str, strict: bool, name: str | None) -> None:
    from sash_client import Client, SashClientError
    from sash_ingest.connector import SourceError
    from sash_ingest.runner import RejectedError

    login = document.client_arguments() or LOGIN
    with Client(document.service or target, timeout_s=_TIMEOUT_S, **login) as client:
        try:
            run(client, document, strict, sys.stdin.buffer, name, _say, _stops)
        except (SourceError, RejectedError, OSError) as error:
            fail(str(error))
        except SashClientError as error:
            fail(f"{config}: {error.message}")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _stops(stop: Any) -> None:
    """Call a function at SIGTERM and SIGINT."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stop())
