"""The command ``sash``, also where only the Python client is installed."""

from __future__ import annotations

import sys

from sash_cli import missing


def run() -> None:
    """Run the command that the command line names, or say what to install for it."""
    try:
        if sys.argv[1:2] == ["serve"]:
            from sash.serve import run as run_command
        else:
            from sash.commands import run as run_command
    except ModuleNotFoundError as error:
        sys.exit(f"sash: {missing(error, 'cli')}")
    run_command()


if __name__ == "__main__":
    run()
