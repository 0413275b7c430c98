"""Files stay short enough to read at once: no Python file has more lines than `pyproject.toml` allows.

python -m tests.support.lengths     prints each file that is too long, and each exception that is none any more
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["problems"]

ROOMS = ("service", "clients", "tests", "bench", "loadtest", "docs")


def problems(root: Path, longest: int, exceptions: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the files below `root`."""
    counted = {
        str(path.relative_to(root)): path.read_bytes().count(b"\n")
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
    }
    for name, lines in counted.items():
        if lines > longest and name not in exceptions:
            yield f"{name} has {lines} lines, more than {longest}: split it, or give a reason in pyproject.toml"
    for name in exceptions:
        if counted.get(name, 0) <= longest:
            yield f"{name} needs no exception in pyproject.toml: it has {counted.get(name, 'no')} lines"


def main() -> None:
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["sash"]["file-length"]
    if found := list(problems(root, settings["longest"], settings["exceptions"])):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
