"""How much memory a write, or a new view, may add, and what a window has, estimated from above.

    plain      3 bytes for each that is written         the window's column, the record, and a copy
    keyed      + 400 bytes for each key that may be new
    panes      + 1,300 bytes for each sketch and 100 for each number of each pane that may be new
    rollups    all of it once more for each
    views      8 KiB for each sketch, 66 bytes for each number and all entries for each list, of each block and node;
               60 bytes for each key
    held       twice the bytes of all rows, 400 for each key, 3,000 for a large one, nodes as for a view; a pane for
               each entry

Measured on one bulk of 50,000 new keys: 100 to 360 bytes a key without panes; 2,500 bytes a pane with two sketches.
"""

from __future__ import annotations

from collections.abc import Sequence

from sash_engine.monoids import Monoid
from sash_engine.windows.batches.batch import AnyBatch
from sash_engine.windows.keys.pages import PAGES
from sash_engine.windows.sliding.adaptive import layout_of
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

COPIES = 3
KEY_BYTES = 400
SKETCH_BYTES = 1300
NUMBER_BYTES = 100

NODE_SKETCH_BYTES, NODE_NUMBER_BYTES = 8192, 66
TOTALS_BYTES = 60
"""Of totals that are kept of a key from question to question."""
LISTED_BYTES = 40
"""Of an entry in a list: the value, and a reference. Each further node that lists it has a reference."""

TEXT_BYTES = 100
"""Of a text in a row, with its reference."""

STORE_BYTES = 3000
"""Of a forest that a large key has, before its first entry."""

ROW_BYTES = 64
"""Of an entry of a staged part whose size is not known: it was staged before the service was started."""


def footprint(spec: WindowSpec, batches: Sequence[AnyBatch], written: int) -> int:
    """About how many bytes of memory a write adds to a window, at most.

    Args:
        batches: its parts, whose keys have one dictionary.
        written: its size when it is written.
    """
    size, batches = COPIES * written, [batch for batch in batches if len(batch.times)]
    if not batches:
        return size
    rows, keyed = sum(len(batch.times) for batch in batches), batches[0].keys
    keys = 1 if keyed is None else min(rows, len(keyed.dictionary))
    if spec.keyed:
        size += KEY_BYTES * keys
    granule = spec.granularity_ticks
    if granule is not None:
        span = max(int(each.times.max()) for each in batches) - min(int(each.times.min()) for each in batches)
        panes = min(rows, keys * (span // granule + 2))
        monoids = [monoid for monoid, _ in spec.monoids().values()]
        large = sum(monoid.external for monoid in monoids)
        size += panes * (SKETCH_BYTES * large + NUMBER_BYTES * (len(monoids) - large))
    return size * (1 + len(spec.rollups or ()))


def view_footprint(window: Window, spec: WindowSpec) -> int:
    """About how many bytes of memory a view adds to the window whose entries it shows, at most.

    Aggregates that the window or another view has are there already. Panes have all that they will ever have.

    Args:
        spec: of the view, complete.
    """
    keys = window.keys
    size = TOTALS_BYTES * len(keys)
    if spec.granularity is not None:
        return size
    wider = layout_of(window.spec, window.block, window.derived.monoids(spec))
    new = [monoid for key, monoid in zip(wider.keys, wider.monoids, strict=True) if key not in window.layout.keys]
    entries = sum(map(len, keys.own_stores()))
    # Blocks are at least half full. A level above has half as many nodes; each store folds its ends, too.
    nodes = 4 * (entries // window.block) + 2 * len(keys.own_stores())
    return size + sum(_partials_bytes(monoid, nodes, entries, window.block) for monoid in new)


def held_bytes(window: Window) -> int:
    """About how many bytes of memory a window and its rollups have, at most; entries on a tier count as if here."""
    entries, keys, stores = window.counts.present, len(window.keys), len(window.keys.own_stores())
    row = 8 + sum(TEXT_BYTES if dtype.hasobject else dtype.itemsize for dtype in window.layout.dtypes)
    # Blocks and pages are at least half full, but for the smallest pages.
    size = row * (2 * entries + PAGES[0] * keys) + KEY_BYTES * keys + STORE_BYTES * stores
    if window.spec.granularity_ticks is None:
        nodes = 4 * (entries // window.block) + 2 * stores
        size += sum(_partials_bytes(monoid, nodes, entries, window.block) for monoid in window.layout.monoids)
    else:
        panes = (SKETCH_BYTES if monoid.external else NUMBER_BYTES for monoid in window.layout.monoids)
        size += entries * sum(panes)
    return size + sum(held_bytes(rollup.window) for rollup in window.derived.rollups)


def _partials_bytes(monoid: Monoid, nodes: int, entries: int, block: int) -> int:
    if not monoid.external:
        return NODE_NUMBER_BYTES * nodes
    if monoid.values_per_entry is None:
        return NODE_SKETCH_BYTES * nodes
    levels = (entries // block).bit_length() + 1
    return NODE_NUMBER_BYTES * nodes + entries * monoid.values_per_entry * (LISTED_BYTES + 8 * levels)
