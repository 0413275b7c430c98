"""The command line of Sash: what it asks a service by `sash_client`. `sash.main` adds the commands of the service."""

from __future__ import annotations

__all__ = ["missing"]


def missing(error: ModuleNotFoundError, extra: str) -> str:
    """Say which extra of Sash brings the module that is not there; raises the error where it is Sash's own."""
    if error.name is None or error.name.startswith("sash"):
        raise error
    return f"{error.name} is not installed, which this command needs: pip install 'sash[{extra}]'"
