"""The columnar engine; `Forest` is what windows use of it, `Layout` what they say to it.

Where blocks are kept in a tier: `Cold` is a window's side of that, `Cache` what is in memory of all windows.
"""

from sash_engine.forest.block import RowSlice
from sash_engine.forest.cold import Cache, Cold, Load, PendingBlock
from sash_engine.forest.forest import Forest
from sash_engine.forest.image import ForestImage
from sash_engine.forest.layout import BLOCK, Layout
from sash_engine.forest.pane_layout import PaneLayout
from sash_engine.forest.ranges import RangeAnswers, RangePartials, combined_steps

__all__ = [
    "BLOCK",
    "Cache",
    "Cold",
    "Forest",
    "ForestImage",
    "Layout",
    "Load",
    "PaneLayout",
    "PendingBlock",
    "RangeAnswers",
    "RangePartials",
    "RowSlice",
    "combined_steps",
]
