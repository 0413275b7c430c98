"""Runs the README's code, block by block, as a reader would, and reads its tables.

One service stands for the one that the README starts; its addresses take the place of the default ones.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from sash_client import Client

README = Path(__file__).parents[2] / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What sets a machine up, or runs until it is stopped, has tests of its own.
LEFT_OUT = re.compile(r"\s*(make|git|cd|docker|pip|sash serve|sash watch)\b")


@dataclass
class Block:
    language: str
    code: str
    line: int
    prints: str
    """What the text after the block says that it prints."""


def blocks_of(text):
    return [
        Block(
            found[1],
            found[2],
            text.count("\n", 0, found.start()) + 1,
            "".join(re.findall(r"\A\s*prints `([^`]*)`", text[found.end() :])),
        )
        for found in FENCE.finditer(text)
    ]


class Reader:
    """Runs blocks in a directory of their own, against a service of their own."""

    def __init__(self, service, directory):
        self.service = service
        self.directory = directory
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "SASH_TARGET": service.target, "no_proxy": "127.0.0.1"}
        self.session = {}
        self.ran = set()

    def run(self, block):
        rest = self.service.address.removeprefix("http://")
        code = re.sub(r"\b(localhost|127\.0\.0\.1):7071\b", rest, block.code)
        code = re.sub(r"\b(localhost|127\.0\.0\.1):7070\b", self.service.target, code)
        run = {"sh": self._sh, "python": self._python, "yaml": self._yaml}
        assert block.language in run, f"README line {block.line}: nobody knows how to run {block.language}"
        if run[block.language](block, code):
            self.ran.add(block.language)

    def _sh(self, block, code):
        script = "\n".join(line for line in code.splitlines() if not LEFT_OUT.match(line))
        if posted := re.search(r"/v1/windows (?:-d|--json) '(.*?)'", script, re.DOTALL):
            (self.directory / "SPEC.yaml").write_text(posted[1])  # JSON is YAML
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = f"README line {block.line}: {done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        # curl takes a refusal for a success, but a problem document has a status.
        assert not re.search(r'"status":\s*[45]\d\d', said), said
        return bool(script.strip())

    def _python(self, block, code):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("\n" * block.line + code, str(README), "exec"), self.session)
        assert printed.getvalue().strip() == block.prints, f"README line {block.line}"
        return True

    def _yaml(self, block, code):
        with Client(self.service.target) as client:
            client.create_window(code)
        return True


def readme_blocks():
    return blocks_of(README.read_text())


def needs_spark(block):
    return "sash_spark" in block.code


def table_of(text, *header):
    """The rows of the table whose header begins with these cells, each as a list of cells."""
    lines = [_cells(line) if line.startswith("|") else [] for line in text.splitlines()]
    (start,) = (i for i, cells in enumerate(lines) if cells[: len(header)] == list(header))
    return list(takewhile(bool, lines[start + 2 :]))


def names_in(cell):
    """What a cell has between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
