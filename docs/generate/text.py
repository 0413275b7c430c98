"""Markdown from tables and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):")
_ITEM = re.compile(r"(?P<name>[\w*, .`]+?):\s+(?P<text>.*)", re.DOTALL)
_HEADINGS = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Yields": "Yields"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; line breaks and bars within cells are kept from ending them."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: object) -> str:
    """Text between backticks."""
    return f"`{text}`"


def anchor(heading: str) -> str:
    """The anchor that Python-Markdown gives a heading."""
    plain = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def docstring(thing: object) -> str:
    """A docstring as Markdown: sections become lists, examples and drawings become code."""
    text = inspect.getdoc(thing) or ""
    return "\n\n".join(_blocks(text.replace("``", "`"))) + "\n"


def _blocks(text: str) -> list[str]:
    paragraphs = re.split(r"\n{2,}(?=\S)", text.strip())  # what is indented belongs to what is above it
    return [_paragraph(paragraph) for paragraph in paragraphs if paragraph.strip()]


def _paragraph(text: str) -> str:
    if (found := _SECTION.match(text)) and "\n" in text:
        return _section(found[1], textwrap.dedent(text.split("\n", 1)[1]))
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    head, _, rest = text.partition("\n")
    drawing = re.search(r"(?:\A|\n\n?)((?:    .*\n?|\n)+)\Z", "\n" + rest)
    if drawing is None or not drawing[1].strip():
        return text
    before = ("\n" + rest)[: drawing.start()].strip("\n")
    prose = f"{head}\n{before}".strip()
    drawn = textwrap.dedent(drawing[1]).strip("\n")
    language = "python" if re.match(r"(for|with|from|import) ", drawn) else "text"
    return f"{prose}\n\n```{language}\n{drawn}\n```"


def _section(name: str, body: str) -> str:
    items = [textwrap.dedent(item) for item in re.split(r"\n(?=\S)", body.strip("\n"))]
    if name in ("Returns", "Yields"):
        return f"**{_HEADINGS[name]}** {' '.join(body.split())}"
    lines = []
    for item in items:
        found = _ITEM.match(item)
        if found is None:
            lines.append(f"- {' '.join(item.split())}")
        else:
            names = ", ".join(code(each.strip("` ")) for each in found["name"].split(","))
            lines.append(f"- {names}: {' '.join(found['text'].split())}")
    return f"**{_HEADINGS.get(name, name)}**\n\n" + "\n".join(lines)
