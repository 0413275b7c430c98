"""What mkdocs calls while it builds: lists take the place of their names, and drawings become part of their page."""

from __future__ import annotations

import re
import sys
from html import escape, unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from docs.generate.lists import LISTS  # noqa: E402

_NAME = re.compile(r"^\{\{ ([a-z_]+) \}\}$", re.MULTILINE)
_DRAWING = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*(images/[^"]+\.svg)"\s*/?>')


def filled(markdown: str) -> str:
    """A page with every `{{ name }}` that has a line of its own replaced by the list of that name."""
    return _NAME.sub(lambda found: LISTS[found[1]]().strip(), markdown)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the source of each page."""
    return filled(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with each page's HTML: a drawing within the page has the colours of its theme."""
    return _DRAWING.sub(_drawn, html)


def _drawn(found: re.Match[str]) -> str:
    svg = (ROOT / "docs" / found[2]).read_text()
    label = escape(unescape(found[1]), quote=True)
    svg = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)  # the site's stylesheet has the colours
    return re.sub(r"<svg ", f'<svg class="drawing" role="img" aria-label="{label}" ', svg, count=1)
