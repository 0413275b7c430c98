"""What changes from the middle cost: retractions and corrections.

    change, ask     one entry changed, and one question, again and again
    changes         entries changed without a question; then one question

Entries are scattered over a window of 2^22 entries with a sum and a maximum, so that each is in a block of its own.
A change is one call of `Window.retract` or `Window.update`. Answers are compared with the fold over what must be left.
Figures are medians of processor time on one core.

Run ``python -m bench.changes`` (a minute, 1 GB), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.harness import arguments, digest, head, median_us, pinned, row, timed
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

SPEC = {
    "name": "changes",
    "time_unit": "none",
    "fields": {"id": "int64", "value": "int64"},
    "aggregates": {"sum": {"function": "sum", "field": "value"}, "max": {"function": "max", "field": "value"}},
}
BULK = 1_024
STEP = 10
"""Ticks between two entries."""


def filled(entries: int) -> Window:
    """A window of so many entries: entry i has the time STEP * i, the id i and the value i."""
    window = Window(WindowSpec.parse(SPEC | {"identity": "id"}))
    for start in range(0, entries, 4_096):
        window.bulk_insert(named(np.arange(start, min(start + 4_096, entries))))
    window.query()
    return window


def named(ids: np.ndarray[Any, Any], value: int | None = 0) -> Batch:
    """Entries by their ids; without a value, as a retraction has them."""
    return Batch(STEP * ids, {"id": ids} if value is None else {"id": ids, "value": ids + value})


def changes(entries: int, calls: int) -> tuple[dict[str, float], str]:
    """Measure changes; return the figures and the last answers as a digest."""
    window, out = filled(entries), {}
    values = np.arange(entries)
    order = np.random.default_rng(7).permutation(entries)
    at = 0

    def some(k: int) -> np.ndarray[Any, Any]:
        nonlocal at
        at += k
        return order[at - k : at]

    def retract(k: int) -> None:
        ids = some(k)
        values[ids] = -1
        assert window.retract(named(ids, None)).retracted == k

    def update(k: int) -> None:
        ids = some(k)
        values[ids] += entries
        assert window.update(named(ids, entries)).corrected == k

    def both(change: Callable[[], object]) -> None:
        change()
        window.query()

    out["retract one, ask"] = median_us(calls, lambda: both(lambda: retract(1)))
    out["retract one"] = median_us(calls, lambda: retract(1))
    window.query()
    out["correct one, ask"] = median_us(calls, lambda: both(lambda: update(1)))
    out["correct one"] = median_us(calls, lambda: update(1))
    window.query()
    for what, change in (("retract", retract), ("correct", update)):
        bulks, asked = [], []
        for _ in range(9):
            bulks.append(timed(lambda change=change: change(min(BULK, entries // 64))))
            asked.append(timed(window.query))
        out[f"{what} {BULK:,} scattered"] = 1e6 * statistics.median(bulks)
        out["the question after it" if what == "retract" else "the question after that"] = 1e6 * statistics.median(
            asked
        )
    kept = values[values >= 0]
    answers = window.query()[0].aggregates
    if answers != {"sum": int(kept.sum()), "max": int(kept.max())}:
        sys.exit(f"{answers} is not the fold")
    return out, digest(answers)


def main() -> None:
    """Print the figures."""
    smoke = arguments(__doc__).smoke
    with pinned():
        figures, hashed = changes(2**16 if smoke else 2**22, 20 if smoke else 300)
        head("what", "µs")
        for what, us in figures.items():
            row(what, f"{us:,.0f}")
    print(f"\ndigest {hashed}")


if __name__ == "__main__":
    main()
