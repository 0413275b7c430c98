"""Records of a window that begins to feed another one, or ends to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sash_engine.windows.answers import WriteResult
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.window import Window

__all__ = ["AddCascade", "DropCascade"]


@dataclass(slots=True)
class AddCascade:
    """Feed another window from now on."""

    kind: ClassVar[str] = "add_cascade"
    document: Mapping[str, Any]

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        window.add_cascade(WindowSpec.parse(self.document))
        return WriteResult()

    def fields(self) -> list[Any]:
        return [dict(self.document)]

    @property
    def size(self) -> int:
        return 4000


@dataclass(slots=True)
class DropCascade:
    """Feed a window no more, and forget what it has."""

    kind: ClassVar[str] = "drop_cascade"
    name: str

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        window.cascades.drop(self.name)
        return WriteResult()

    def fields(self) -> list[Any]:
        return [self.name]

    @property
    def size(self) -> int:
        return 200
