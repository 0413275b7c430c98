"""Adaptive windows (ADWIN): old entries leave when the mean of a field has changed.

    pieces    | n=400 mean 5.1 | 200 5.0 | 100 5.2 | 50 9.1 | 20 9.0 | 5 8.8 | … |
    test      for each cut between pieces: |mean of older - mean of newer| > epsilon ?
                                                    ^ yes: the oldest piece leaves; test again

    epsilon = sqrt(2/m var ln(2/d)) + 2/(3m) range ln(2/d)       1/m = 1/older + 1/newer,  d = delta / ln(entries)

The forest cuts a key's entries into O(log n) pieces (`Forest.pieces`). The test reads their counts, means and squares,
so it keeps nothing of its own: it gives the same result after late entries, other evictions, and recoveries.

Test: O(log n) cuts in a few vectorised passes, and O(B) for the newest rows.
Source: Bifet, Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007, algorithm ADWIN2.
Differs: (a) the pieces are those of the forest, and at the new end as fine as single entries; (b) it tests after every
`every` entries on average, chosen by a hash of how many entries the window was sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sash_engine.forest import Layout
from sash_engine.monoids import Max, Monoid, Partial, VariancePopulation
from sash_engine.monoids.numerics import quiet
from sash_engine.windows.spec.policies import AdaptivePolicy
from sash_engine.windows.spec.window import ARRIVAL, NUMBERS, WindowSpec

_LEAST = 5
"""So many entries at least on each side of a cut, as in ADWIN's implementations."""


class Adaptive:
    """The test of one window.

    Args:
        policy: its parameters.
        slot: where the layout has the moments of the field.
    """

    def __init__(self, policy: AdaptivePolicy, slot: int) -> None:
        self._policy = policy
        self.slot = slot

    def is_due(self, inserted: int, number: int, written: int) -> bool:
        """Whether to test key `number` now, after a write of `written` entries: every `every` entries on average.

        It depends on nothing but what the record of the window has, so a replay tests after the same writes. The hash
        keeps keys that are written in turn from being tested never or always.

        Args:
            inserted: how many entries the window was sent.
        """
        every = self._policy.every
        if written >= every:
            return True
        mixed = (inserted * 0x9E3779B97F4A7C15 + number * 0xC2B2AE3D27D4EB4F) >> 24
        return (mixed & 0xFFFFFFFF) % every < written

    def leaving(self, counts: Sequence[int], moments: Sequence[Partial]) -> int:
        """How many of the oldest entries leave; see `leaving`."""
        return leaving(counts, moments, self._policy.delta, self._policy.range)


@quiet
def leaving(counts: Sequence[int], moments: Sequence[Partial], delta: float, width: float = 1.0) -> int:
    """Say how many of the oldest entries leave, so that no cut between two pieces shows a change.

    Args:
        counts: entries of each piece, oldest first.
        moments: (entries, mean, m2) of each piece. A piece with a NaN or an infinity counts for nothing.
        delta: the probability of a cut where nothing has changed.
        width: how far two values may be apart.
    """
    if len(counts) < 2:
        return 0
    n = np.array(counts, np.float64)
    _, mean, m2 = np.array(moments, np.float64).T
    usable = np.isfinite(mean) & np.isfinite(m2)
    n[~usable] = mean[~usable] = m2[~usable] = 0.0
    total = n.sum()
    if total < 2 * _LEAST:
        return 0
    apart = mean - (n * mean).sum() / total  # from the mean of all, so that nothing cancels below
    apart[~usable] = 0.0
    sums, squares = n * apart, m2 + n * apart * apart
    newer_n, newer_sums, newer_squares = (column[::-1].cumsum()[::-1] for column in (n, sums, squares))
    for first in range(len(counts) - 1):
        whole, whole_sum = newer_n[first], newer_sums[first]
        if whole < 2 * _LEAST:
            return sum(counts[:first])
        n1, n0 = newer_n[first + 1 :], whole - newer_n[first + 1 :]
        variance = max(newer_squares[first] / whole - (whole_sum / whole) ** 2, 0.0)
        logarithm = math.log(2 * math.log(whole) / delta)
        inverse = 1 / n0 + 1 / n1
        epsilon = np.sqrt(2 * inverse * variance * logarithm) + 2 / 3 * width * inverse * logarithm
        between = np.abs((whole_sum - newer_sums[first + 1 :]) / n0 - newer_sums[first + 1 :] / n1)
        if not ((between > epsilon) & (n0 >= _LEAST) & (n1 >= _LEAST)).any():
            return sum(counts[:first])
    return sum(counts[:-1])


def layout_of(spec: WindowSpec, block: int, shared: Sequence[tuple[Monoid, Sequence[str]]] = ()) -> Layout:
    """Return the layout of a window that keeps entries, with the moments that its adaptive policy needs.

    Args:
        shared: the aggregates of its views.
    """
    policy = spec.slide.adaptive
    own = [] if policy is None else [_moments(spec, policy)]
    newest = [] if spec.known is None else [(Max("int64"), (ARRIVAL,))]
    near = [name for name in NUMBERS if name in spec.kept_columns]
    return Layout(spec.kept_columns, spec.monoids(), block, [*own, *newest, *shared], near)


def _moments(spec: WindowSpec, policy: AdaptivePolicy) -> tuple[Monoid, tuple[str]]:
    field = policy.field or next(iter(spec.fields))
    return VariancePopulation(spec.fields[field]), (field,)
