"""The page at ``/``: an overview, a view of each window, charts, and forms to create windows and to send entries.

    page.html ──▶ page.js ──▶ views/*.js ──▶ core/*.js ──▶ packages/uPlot.esm.js

The files are served as they are, but that page.html is sent with page.css and page.js in it: there is nothing to build.
The first view takes three round trips: the page; the modules, beside who calls; and the answers. A browser asks for six
files at once, so these modules are five. uPlot is not in the repository; `deploy/page/hook.py` puts
it into `packages/` when the wheel is built or `make setup` runs. The Content-Security-Policy lets the page load from
and call this service only. The page writes answers as text, never as markup.
"""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sash.access.caller import calling
from sash_engine.monoids import catalogue

__all__ = ["PATHS", "routes"]

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'"
_INLINE = re.compile(r"<(script|style)(?: type=\"module\")?>(.*?)</\1>", re.DOTALL)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


def _files_of(folder: Traversable, path: str) -> dict[str, Traversable]:
    """Return the files below a folder, by their paths."""
    found: dict[str, Traversable] = {}
    for each in folder.iterdir():
        if each.is_dir():
            found |= _files_of(each, f"{path}{each.name}/")
        elif _kind(each.name) is not None:
            found[f"{path}{each.name}"] = each
    return found


def _kind(name: str) -> str | None:
    return _KINDS.get(name[name.rfind(".") :])


_FILES = _files_of(files(__name__), "/ui/")
_FILES["/"] = _FILES.pop("/ui/page.html")
PATHS = tuple(_FILES)
"""The paths of the page's files."""


def routes(grpc_port: Callable[[], int]) -> list[Route]:
    """The routes of the page: its files, read once, and what the caller may do.

    Args:
        grpc_port: tells where gRPC is served, once it is; the page writes it into programs that somebody copies.
    """

    async def caller(request: Request) -> Response:
        """Say who calls, so that the page offers only what it may do. The service checks each call in any case."""
        found = calling()
        functions = sorted(catalogue())
        ordered = [each for each in functions if not catalogue()[each].commutative]
        name, role = (None, "admin") if found is None else (found.name, str(found.role))
        about = {"grpc_port": grpc_port(), "functions": functions, "ordered": ordered}
        return JSONResponse({"name": name, "role": role, **about})

    return [*(_route(path, file) for path, file in _FILES.items()), Route("/ui/caller", caller)]


def _route(path: str, file: Traversable) -> Route:
    content, kind, headers = file.read_bytes(), _kind(file.name), _HEADERS
    if path == "/":
        content, policy = _whole(content.decode())
        headers = _HEADERS | {"content-security-policy": policy}

    @cache
    def small() -> bytes:
        return gzip.compress(content, mtime=0)  # all files take 20 ms, for which no start should wait

    async def endpoint(request: Request) -> Response:
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(small(), media_type=kind, headers=headers | {"content-encoding": "gzip"})
        return Response(content, media_type=kind, headers=headers)

    return Route(path, endpoint, include_in_schema=False)


def _whole(page: str) -> tuple[bytes, str]:
    """The page with its style and its script in it, and the policy that allows these by their digests."""
    css, script = (_FILES[f"/ui/page.{kind}"].read_text() for kind in ("css", "js"))
    page = page.replace('<link rel="stylesheet" href="/ui/page.css">', f"<style>{css}</style>")
    page = page.replace(' src="/ui/page.js"></script>', f">{script}</script>")
    allowed: dict[str, str] = {"script": "", "style": ""}
    for tag, text in _INLINE.findall(page):
        allowed[tag] += f" 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    policy = "".join(f"; {tag}-src 'self'{digests}" for tag, digests in allowed.items())
    return page.encode(), _POLICY + policy
