"""The routes of REST, each declared once, on its handler."""

from __future__ import annotations

from typing import cast

from sash.rest.route import Route
from sash.rest.routes import reads, service, windows, writes

__all__ = ["QUICK", "ROUTES", "TAGS"]

TAGS = [
    {"name": "windows", "description": "Create, show and delete windows."},
    {"name": "writes", "description": "Put entries into a window, and remove the oldest."},
    {"name": "reads", "description": "Ask for aggregates."},
    {"name": "service", "description": "Health and metrics."},
]
"""The headings of the documentation, in its order."""

ROUTES = [cast(Route, each) for module in (windows, writes, reads, service) for each in module.ROUTER.routes]

QUICK = [route for route in ROUTES if route.endpoint in (writes.insert, writes.admit, reads.query, reads.range_query)]
"""Routes whose small requests are answered while they are read. Their handlers need no task of their own until they
wait for the first time.
"""
