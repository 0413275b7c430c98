"""Which paths of the HTTP port need a token, and how REST refuses a request that has none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from starlette.types import Receive, Scope, Send

from sash.access.rights import Right
from sash.admission import Admission
from sash.rest.entrance import Refuse
from sash.rest.problems import of_error
from sash.runtime.metrics import Metrics
from sash_engine.errors import SashError

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


def rights_of(admission: Admission, is_open: Callable[[str], bool]) -> Callable[[Scope, Any, str | None], None]:
    """Return what checks a right of a request's caller on a window, before the body is read.

    Args:
        is_open: whether a path needs no token.
    """
    rights = {str(right): right for right in Right}

    def require(scope: Scope, right: str, window: str | None) -> None:
        if not is_open(scope["path"]):
            admission.require(f"{scope['method']} {scope['path']}", rights[right], window)

    return require
