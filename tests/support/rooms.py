"""Line and branch coverage of each room: a table of what `coverage json` wrote.

python -m tests.support.rooms FILE
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")
LOW = 90.0
"""Percent; rooms with less are marked."""


def table(files: Mapping[str, Any]) -> str:
    """Lay out the rooms, a line each, and all together.

    Args:
        files: path -> what `coverage json` says of a file. Its room is its directory below `service` or `clients`.
    """
    rooms: dict[str, Counter[str]] = {}
    for path, file in files.items():
        room = "/".join(PurePosixPath(path).parts[1:-1])
        rooms.setdefault(room, Counter()).update({count: file["summary"][count] for count in COUNTS})
    whole = sum(rooms.values(), Counter())
    lines = [f"{'room':<23} {'lines':>7} {'line %':>7} {'branches':>9} {'branch %':>9}"]
    for room, counts in [*sorted(rooms.items()), ("all", whole)]:
        of_lines = _percent(counts["covered_lines"], counts["num_statements"])
        of_branches = _percent(counts["covered_branches"], counts["num_branches"])
        numbers = f"{counts['num_statements']:>7,} {of_lines:>7.1f} {counts['num_branches']:>9,} {of_branches:>9.1f}"
        lines.append(f"{room:<23} {numbers}" + (f"  below {LOW:g} %" if min(of_lines, of_branches) < LOW else ""))
    return "\n".join(lines)


def _percent(covered: int, there: int) -> float:
    return 100.0 * covered / there if there else 100.0


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())["files"]))
