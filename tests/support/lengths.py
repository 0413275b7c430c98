"""Check that no Python file has more lines than `[tool.sash.file-length]` in pyproject.toml allows.

python -m tests.support.lengths [ROOT]     prints each file that is too long, and each exception that is not needed
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["problems"]

ROOMS = ("service", "clients", "proto/sash_wire", "tests", "bench", "loadtest", "docs")
"""Directories with files that people write; the stubs beside sash_wire are generated."""


def problems(root: Path, longest: int, exceptions: Mapping[str, str]) -> Iterator[str]:
    """Find files below `root` that are too long, and exceptions that are not needed.

    Args:
        longest: lines that a file may have.
        exceptions: path -> why the file may be longer.
    """
    counted = {
        path.relative_to(root).as_posix(): path.read_bytes().count(b"\n")
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
    }
    for name, lines in counted.items():
        if lines > longest and name not in exceptions:
            yield f"{name} has {lines} lines, and {longest} are allowed: split it, or give a reason in pyproject.toml"
    for name, reason in exceptions.items():
        if not reason.strip():
            yield f"{name} has an exception without a reason in pyproject.toml"
        if name not in counted:
            yield f"{name} does not exist: remove its exception from pyproject.toml"
        elif counted[name] <= longest:
            yield f"{name} has {counted[name]} lines: remove its exception from pyproject.toml"


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["sash"]["file-length"]
    if found := list(problems(root, settings["longest"], settings["exceptions"])):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
