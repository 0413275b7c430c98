"""One command, and how a command line runs: what `sash_cli.app` and `sash serve`, which starts without it, share."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
import typer.core

from sash_cli.output import drop_output, fail

STYLE: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""What applications of Typer have in common here."""

_TYPE = re.compile(r" <[a-z ]+(\[[a-z ]+\])?>")
_BRACES = re.compile(r"\{([A-Z][^}\n]*)\}")


class Command(typer.core.TyperCommand):
    """Shows arguments without their types, which mean nothing to people who do not write Python."""

    def get_help(self, ctx: Any) -> str:
        """Return the help as it is printed."""
        usage, end, rest = super().get_help(ctx).partition("\n\n")
        return _BRACES.sub(r"\1", usage) + end + _TYPE.sub(lambda found: " " * len(found[0]), rest)


def run(app: typer.Typer, name: str, words: list[str]) -> None:
    """Run a command line. An error of the service is one line on standard error.

    Args:
        app: the commands.
        name: what the words follow, as usage lines show it.
        words: the options and arguments.
    """
    try:
        app(words, prog_name=name)
    except OSError as error:  # such as a full disk behind standard output
        drop_output()
        fail(error.strerror or str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from sash_client import SashClientError

        if not isinstance(error, SashClientError):
            raise
        if getattr(error, "missing", False):
            fail("the service asks for a token: set SASH_TOKEN or SASH_TOKEN_FILE, or give --token-file FILE")
        limit = f" (limit: {error.limit})" if error.limit else ""
        fail(f"{error.message}{limit}")
