"""The columnar engine; `Forest` is all that windows use of it, `Layout` what they say to it."""

from sash.forest.forest import Forest
from sash.forest.layout import BLOCK, Layout

__all__ = ["BLOCK", "Forest", "Layout"]
