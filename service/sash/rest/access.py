"""Which paths of the HTTP port need a token, and how REST refuses a request that has none."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import Receive, Scope, Send

from sash.access.http import Refuse
from sash.rest.problems import of_error
from sash.runtime.metrics import Metrics
from sash_engine.errors import SashError

__all__ = ["METRICS", "open_paths", "refusal"]

METRICS = "/metrics"
_HEALTH = ("/healthz", "/readyz")
_DOCS = ("/docs", "/openapi.json")
_DOCS_FILES = "/static-offline-docs/"


def open_paths(public: Collection[str], page: Collection[str]) -> Callable[[str], bool]:
    """Return whether a path needs no token.

    Args:
        public: what the settings make public: "metrics", "docs".
        page: the paths of the page's own files, which are the same in every service. The page asks for a token.
    """
    paths = frozenset(
        (*_HEALTH, *page, *([METRICS] if "metrics" in public else []), *(_DOCS if "docs" in public else []))
    )
    docs = "docs" in public
    return lambda path: path in paths or (docs and path.startswith(_DOCS_FILES))


def refusal(metrics: Metrics) -> Refuse:
    """Return what answers a refused request: a problem document."""

    async def refuse(scope: Scope, receive: Receive, send: Send, error: SashError) -> None:
        response = of_error(error, scope["method"], scope["path"])
        metrics.count_rejected("rest", str(int(response.status_code)))
        await response(scope, receive, send)

    return refuse
