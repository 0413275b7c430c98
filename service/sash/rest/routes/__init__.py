"""The routes of REST, each declared once, on its handler."""

from __future__ import annotations

from sash.rest.routes.reads import READS
from sash.rest.routes.service import SERVICE
from sash.rest.routes.windows import WINDOWS
from sash.rest.routes.writes import WRITES

__all__ = ["GROUPS", "ROUTES"]

GROUPS = (WINDOWS, WRITES, READS, SERVICE)
"""In the order of the documentation."""

ROUTES = tuple(route for group in GROUPS for route in group.routes)
