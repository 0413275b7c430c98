"""The page at ``/``: the windows, the current answers of one of them, and a chart of one of its aggregates.

There are four files, written by hand, with nothing to build. The Content-Security-Policy lets the page load from and
call this service only. The page writes answers as text, never as markup.
"""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["PATHS", "routes"]

_FILES = {
    "/": ("page.html", "text/html"),
    "/ui/page.css": ("page.css", "text/css"),
    "/ui/page.js": ("page.js", "text/javascript"),
    "/ui/chart.js": ("chart.js", "text/javascript"),
}
PATHS = tuple(_FILES)
"""The paths of the page's files."""

_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}


def routes() -> list[Route]:
    """The routes of the page and its files, read once."""
    return [_route(path, name, media_type) for path, (name, media_type) in _FILES.items()]


def _route(path: str, name: str, media_type: str) -> Route:
    content = files(__name__).joinpath(name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return Route(path, endpoint, include_in_schema=False)
