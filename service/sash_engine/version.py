"""Which Sash this is, and how its engine runs. `pyproject.toml` says the version, and nothing else does."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from os.path import dirname, isfile, join


def version() -> str:
    """The version of the installed package, such as "0.1.0"; "unknown" where the sources run uninstalled."""
    from importlib.metadata import PackageNotFoundError, version  # only few commands ask, and it takes a while

    try:
        return version("sash")
    except PackageNotFoundError:
        return "unknown"


def compiled() -> bool:
    """Return whether the engine runs as compiled code; false where Python interprets it."""
    return any(isfile(join(dirname(__file__), "forest", f"forest{suffix}")) for suffix in EXTENSION_SUFFIXES)


def engine() -> str:
    """How the engine runs: "compiled", or "pure Python"."""
    return "compiled" if compiled() else "pure Python"
