"""Lines of code of each room: Python without blank lines, comments, docstrings and generated stubs.

python -m tests.support.code_lines [COMMIT]
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import PurePosixPath

PRODUCT = ("service", "clients", "proto")
GENERATED = "sash_proto"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """How many lines of a file have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):  # of a module, class, function or attribute
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def table(commit: str) -> str:
    """Lay out the rooms of a commit, a line each, then the product and its tests."""
    rooms: Counter[PurePosixPath] = Counter()
    for path in map(PurePosixPath, _git("ls-tree", "-r", "--name-only", commit).splitlines()):
        if path.suffix == ".py" and GENERATED not in path.parts:
            rooms[PurePosixPath(*path.parent.parts[:3])] += code_lines(_git("show", f"{commit}:{path}"))
    found = [f"{count:>7,}  {room}" for room, count in sorted(rooms.items())]
    for name, tops in (("product", PRODUCT), ("tests", ("tests",))):
        found.append(
            f"{sum(count for room, count in rooms.items() if room.parts[:1] and room.parts[0] in tops):>7,}  {name}"
        )
    return "\n".join(found)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    print(table(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))
