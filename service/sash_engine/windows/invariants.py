"""What holds for every window between two calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sash_engine.windows.labels import Labels
from sash_engine.windows.rollups import Rollups
from sash_engine.windows.slide import Slide

if TYPE_CHECKING:
    from sash_engine.windows.window import Window

__all__ = ["check_window"]


def check_window(
    window: Window, slide: Slide, labels: Labels, rollups: Rollups, same: Callable[..., bool] | None
) -> None:
    """Raise AssertionError naming the first invariant that does not hold; `same` as in `Keys.check_invariants`."""
    window.keys.check_invariants(same)
    labels.check_invariants()
    keys, numbers, spec = window.keys, window.keys.numbers(), window.spec
    entries = keys.entries_each(numbers)
    assert entries.sum() == window.counts.present, "what was inserted, and neither evicted nor retracted, is here"
    newest = keys.newest()
    assert newest is None or newest <= window.mark, f"an entry of {newest} is beyond the mark, {window.mark}"
    most = spec.slide.max_count
    assert most is None or not len(entries) or entries.max() <= most, "max_count is kept"
    if spec.slide.max_age is not None and not slide.wall:
        for number in numbers.tolist():
            oldest, now = keys.span(number)[0], keys.now_of[number]
            now = slide.punctuated if slide.until else now
            assert oldest is None or oldest > slide.through(now), f"key {number} has an entry past max_age"
    rollups.check_invariants(same)
    for view in window.views:
        view.check_invariants()
    for cascade in window.cascades.own:
        cascade.check_invariants(same)
