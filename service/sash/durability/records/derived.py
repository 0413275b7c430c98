"""Records of a window from which another one is derived, or is no more: one that it feeds, or a view."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sash_engine.steps import Steps
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

DROPS = ("drop_cascade", "drop_view")
"""The kinds of `Drop`."""


@dataclass(slots=True)
class Derive:
    """Feed another window from now on; or have a view, in the place of one of its name."""

    document: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return "add_view" if self.is_view else "add_cascade"

    @property
    def is_view(self) -> bool:
        """Whether it takes long: a view has the partials of what is there already."""
        return self.document.get("of") is not None

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """As of `BulkInsert`."""
        yield from window.derive_steps(WindowSpec.parse(self.document))
        return WriteResult()

    def fields(self) -> list[Any]:
        return [dict(self.document)]

    @property
    def size(self) -> int:
        return 200 + len(json.dumps(self.document))


@dataclass(slots=True)
class Drop:
    """Feed a window no more, and forget what it has; or have a view no more, nor the partials that only it has."""

    kind: str
    name: str

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        window.drop(self.name)
        return WriteResult()

    def fields(self) -> list[Any]:
        return [self.name]

    @property
    def size(self) -> int:
        return 200
