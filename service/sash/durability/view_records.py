"""Records of a window that gets a view, or loses one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.window import Window

__all__ = ["AddView", "DropView"]


@dataclass(slots=True)
class AddView:
    """Have a view, with the partials of what is there already; one of its name is replaced."""

    kind: ClassVar[str] = "add_view"
    document: Mapping[str, Any]

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return finished(self.steps(window, now_ns))

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """As `apply`, in steps."""
        yield from window.add_view_steps(WindowSpec.parse(self.document))
        return WriteResult()

    def fields(self) -> list[Any]:
        return [dict(self.document)]

    @property
    def size(self) -> int:
        return 200 + len(json.dumps(self.document))


@dataclass(slots=True)
class DropView:
    """Have a view no more, nor the partials that only it has."""

    kind: ClassVar[str] = "drop_view"
    name: str

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        window.drop_view(self.name)
        return WriteResult()

    def fields(self) -> list[Any]:
        return [self.name]

    @property
    def size(self) -> int:
        return 200
