"""How much memory a write may add, estimated from above, before it is applied.

    plain      3 bytes for each that is written         the window's column, the record, and a copy
    keyed      + 400 bytes for each key that may be new
    panes      + 1,300 bytes for each sketch and 100 for each number of each pane that may be new
    rollups    all of it once more for each

Measured on one bulk of 50,000 new keys: 100 to 360 bytes a key without panes; 2,500 bytes a pane with two sketches.
"""

from __future__ import annotations

from collections.abc import Sequence

from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.spec import WindowSpec

__all__ = ["COPIES", "ROW_BYTES", "footprint"]

COPIES = 3
KEY_BYTES = 400
SKETCH_BYTES = 1300
NUMBER_BYTES = 100

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
