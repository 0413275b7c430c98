"""The parts of the key of an answer."""

from __future__ import annotations

from sash_engine.windows.spec import WindowSpec
from sash_wire.labels import split

__all__ = ["parts_of"]


def parts_of(spec: WindowSpec, key: str | None) -> dict[str, str] | None:
    """The parts of a key by name; None where the window's keys have none."""
    if spec.keys is None or key is None:
        return None
    return dict(zip(spec.keys, split(key, len(spec.keys)), strict=True))
