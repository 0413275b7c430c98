"""Runs the code of README and docs, block by block, as a reader would, and reads their tables.

    ```sh                      a block that runs: sh, python, or a spec in yaml
    sash query requests
    ```

    ```text                    right behind it, what it prints: text or json; … stands for anything
    lookback  entries  mean
    ```

A page's blocks run in order. The service may have the windows of other pages; its addresses take the place of the
default ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import yaml

from docs.generate.hook import filled
from sash_client import Client
from sash_ingest.config import IngestConfig
from sash_wire.pipeline import parsed
from tests.support.forked import command

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

LEFT_OUT = re.compile(
    r"\s*(make|git|cd|docker|npm|python3? -m|\S*pip|sash serve|sash watch|sash data ingest kafka|systemctl|kubectl|helm"
    r"|cp|spark-submit)\b"
)
"""Lines of shell that set a machine up, or run until they are stopped: they have tests of their own."""

OTHER_ROWS = re.compile("^…\n", re.MULTILINE)
"""Stands for any lines, or none: the rows of other windows, which the service has or has not."""

SHOWN = {"", "text", "json", "toml", "yaml", "ini", "proto", "promql", "pycon", "js"}
"""Languages of blocks that do not run; those that can be read are read."""


@dataclass
class Block:
    language: str
    code: str
    line: int
    prints: str | None = None
    """What the block behind it says that it prints; None where there is none."""
    prints_json: bool = False


def pages():
    """README and every page of docs, in the order in which the site lists them."""
    listed = [DOCS / name for name in _listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])]
    return [README, *listed, *sorted(set(DOCS.glob("**/*.md")) - set(listed))]


def _listed(nav):
    """The pages of a navigation: texts, mappings and lists of them."""
    if isinstance(nav, str):
        return [nav]
    return [name for each in (nav.values() if isinstance(nav, dict) else nav) for name in _listed(each)]


def blocks_of(text):
    """The blocks of a page; one that shows what the block before it prints is part of that."""
    found = list(FENCE.finditer(text))
    blocks = []
    for i, each in enumerate(found):
        before = found[i - 1] if i else None
        follows = before is not None and not text[before.end() : each.start()].strip()
        if follows and each[1] in ("text", "json") and blocks and blocks[-1].language in ("sh", "python"):
            blocks[-1].prints, blocks[-1].prints_json = each[2], each[1] == "json"
        else:
            blocks.append(Block(each[1], each[2], text.count("\n", 0, each.start()) + 1))
    return blocks


def needs_spark(block):
    return block.language == "python" and "spark" in block.code


class Reader:
    """Runs blocks in a directory of their own, against a service of their own.

    Args:
        page: where the blocks are from, for messages.
        service: a `LocalService`.
        directory: where they run.
    """

    def __init__(self, page, service, directory):
        self.page = page
        self.service = service
        self.directory = directory
        commands = directory / ".commands"
        commands.mkdir(exist_ok=True)
        self.daemon = command(commands)
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "SASH_TARGET": service.target, "no_proxy": "127.0.0.1"}
        self.session = {}
        self.ran = set()

    def run(self, block):
        rest = self.service.address.removeprefix("http://")
        code = re.sub(r"\b(localhost|127\.0\.0\.1):7071\b", rest, block.code)
        code = re.sub(r"\b(localhost|127\.0\.0\.1):7070\b", self.service.target, code)
        run = {"sh": self._sh, "python": self._python, "yaml": self._yaml, "toml": self._toml, "json": self._json}
        assert block.language in run or block.language in SHOWN, self._at(block, f"nobody runs {block.language}")
        if block.language in run and run[block.language](block, code):
            self.ran.add(block.language)

    def _sh(self, block, code):
        lines = re.sub(r"\\\n\s*", "", code).splitlines()
        script = "\n".join(map(_ended, (line for line in lines if not LEFT_OUT.match(line))))
        if posted := re.search(r"/v1/windows (?:-d|--json) '(.*?)'", script, re.DOTALL):
            (self.directory / "SPEC.yaml").write_text(posted[1])  # JSON is YAML
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            pass_fds=[self.daemon],
        )
        said = self._at(block, done.stdout + done.stderr)
        assert done.returncode == 0, said
        if block.prints is not None:
            self._compare(block, done.stdout)
        else:
            # curl takes a refusal for a success, but a problem document has a status.
            assert not re.search(r'"status":\s*[45]\d\d', said), said
        return bool(script.strip())

    def _python(self, block, code):
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.chdir(self.directory):
            exec(compile("\n" * block.line + code, str(self.page), "exec"), self.session)
        if block.prints is None:
            assert not printed.getvalue(), self._at(block, "it prints, and the page does not show what")
        else:
            self._compare(block, printed.getvalue())
        return True

    def _yaml(self, block, code):
        document = yaml.safe_load(code)
        if isinstance(document, dict) and "source" in document:
            if "checkpoint" in document:
                from sash_spark.config import parse

                parse(document)
            else:
                parsed(IngestConfig, document)
            return True
        if isinstance(document, dict) and "aggregates" in document:
            with Client(self.service.target) as client:
                client.create_window(code)
            return True
        return False

    def _toml(self, block, code):
        tomllib.loads(code)
        return False

    def _json(self, block, code):
        assert _documents(code), self._at(block, "it is no JSON")
        return False

    def _compare(self, block, printed):
        if block.prints_json:
            wanted, found = _documents(block.prints), _documents(printed)
            same = len(wanted) == len(found) and all(map(_alike, wanted, found))
        else:
            rows = OTHER_ROWS.search(block.prints) is not None
            wanted, found = _plain(block.prints, rows), _plain(printed, rows)
            same = re.fullmatch(_pattern(wanted), found, re.DOTALL)
        assert same, self._at(block, f"it prints\n{printed}\nand not\n{block.prints}")

    def _at(self, block, what):
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{block.line}: {what}"


def _ended(line):
    """A stream that goes on for ever, ended after a while."""
    return f"{{ {line} --max-time 2 || [ $? = 28 ]; }}" if re.match(r"curl -sN\b", line) else line


def _plain(text, may_have_others=False):
    """Lines without spaces at their ends; if other rows may stand between, without the width of columns, too."""
    text = "".join(f"{line.rstrip()}\n" for line in text.strip().splitlines())
    return re.sub(" +", " ", text) if may_have_others else text


def _pattern(text):
    parts = re.split(f"({OTHER_ROWS.pattern}|…)", text, flags=re.MULTILINE)
    return "".join(".*" if part == "…" else "(?:.*\n)?" if part.startswith("…") else re.escape(part) for part in parts)


def _documents(text):
    """JSON documents, one after the other."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


def _alike(wanted, found):
    """Whether documents are equal; "…" stands for any value, and a member "…" for any others."""
    if wanted == "…":
        return True
    if isinstance(wanted, dict) and isinstance(found, dict):
        others = "…" in wanted
        names = {name for name in wanted if name != "…"}
        return (names <= set(found) if others else names == set(found)) and all(
            _alike(wanted[name], found[name]) for name in names
        )
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_alike, wanted, found))
    return wanted == found


def text_of(page):
    """A page as it is published: with the lists that are made from the code."""
    return filled(page.read_text())


def tables_of(text, *header):
    """Every table whose header begins with these cells: its rows, each as a list of cells."""
    lines = [_cells(line) if line.startswith("|") else [] for line in text.splitlines()]
    starts = [i for i, cells in enumerate(lines) if cells[: len(header)] == list(header)]
    return [list(takewhile(bool, lines[start + 2 :])) for start in starts]


def table_of(text, *header):
    """The one table whose header begins so."""
    (found,) = tables_of(text, *header)
    return found


def names_in(cell):
    """What a cell has between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
