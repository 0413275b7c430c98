"""The console script, also where only the Python client is installed."""

from __future__ import annotations

import sys

from sash_cli import missing

__all__ = ["run"]


def run() -> None:
    """Run the command that the command line names, or say what to install for it."""
    try:
        from sash import main
    except ModuleNotFoundError as error:
        sys.exit(f"sash: {missing(error, 'cli')}")
    main.run()
