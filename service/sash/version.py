"""Which Sash this is: the version of the installed package, which `pyproject.toml` says and nothing else does."""

from __future__ import annotations

__all__ = ["engine", "version"]


def version() -> str:
    """The version, such as "0.1.0"; "unknown" where the sources run without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # only few commands ask, and it takes a while

    try:
        return version("sash")
    except PackageNotFoundError:
        return "unknown"


def engine() -> str:
    """How the engine runs: "compiled", or "pure Python"."""
    from sash_engine import compiled  # who only asks a service needs no engine

    return "compiled" if compiled() else "pure Python"
