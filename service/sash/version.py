"""Which Sash this is: the version of the installed package, which `pyproject.toml` says and nothing else does."""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """The version, such as "0.1.0"; "unknown" where the sources run without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # only few commands ask, and it takes a while

    try:
        return version("sash")
    except PackageNotFoundError:
        return "unknown"
