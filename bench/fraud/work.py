"""Transactions, and their answers by an exact fold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np

DAY_MS = 86_400_000
LOOKBACKS = {"1m": 60_000, "1h": 3_600_000, "1d": DAY_MS, "30d": 30 * DAY_MS}
START_MS = 1_760_000_000_000
MERCHANTS = 20_000


class Transaction(NamedTuple):
    card: int
    time: int
    amount: int
    merchant: int


class Answer(NamedTuple):
    """Over one lookback; the standard deviation is that of a sample, and None of one entry."""

    count: int
    sum: float
    max: float
    distinct: int
    stddev: float | None


@dataclass(frozen=True)
class Size:
    """How much there is: cards, entries of 30 days, transactions for each of the two rates, callers."""

    cards: int
    history: int
    transactions: int
    callers: int = 64
    zipf: float = 0.75


class Data:
    """History and transactions, in order of time; amounts are whole cents, so that sums are exact."""

    def __init__(self, size: Size, transactions: int) -> None:
        draw = np.random.default_rng(11)
        n = size.history + transactions
        weights = np.arange(1, size.cards + 1) ** -size.zipf
        cards = draw.permutation(size.cards)[draw.choice(size.cards, n, p=weights / weights.sum())]
        history = np.sort(draw.integers(START_MS, START_MS + 30 * DAY_MS, size.history))
        # Behind it 20 a second, so that lookbacks of a minute have something.
        times = np.concatenate([history, START_MS + 30 * DAY_MS + 50 * np.arange(transactions)])
        amounts = np.exp(draw.normal(8, 1.2, n)).astype(np.int64)
        homes = (cards * 7919)[:, None] + np.arange(30)
        merchants = np.where(draw.random(n) < 0.8, homes[np.arange(n), draw.integers(0, 30, n)], draw.integers(0, n, n))
        self.size = size
        self.cards, self.times, self.amounts, self.merchants = cards, times, amounts, merchants % MERCHANTS
        self.transactions = [
            Transaction(*row)
            for row in zip(*(column[size.history :].tolist() for column in self._columns), strict=True)
        ]
        self._order = np.lexsort((times, cards))
        self._first = np.searchsorted(cards[self._order], np.arange(size.cards + 1))
        self._place = np.empty(n, np.int64)
        self._place[self._order] = np.arange(n)
        self._sorted = [column[self._order] for column in self._columns]

    @property
    def _columns(self) -> list[np.ndarray]:
        return [self.cards, self.times, self.amounts, self.merchants]

    @lru_cache(None)  # noqa: B019  # there is one, as long as the process
    def answers(self, number: int) -> list[Answer]:
        """The answers to a transaction, by its number: the fold over the entries of each lookback."""
        end = int(self._place[self.size.history + number])
        card = int(self._sorted[0][end])
        time = int(self._sorted[1][end])
        first = int(self._first[card])
        times = self._sorted[1][first : end + 1]
        found = []
        for lookback in LOOKBACKS.values():
            low = first + int(np.searchsorted(times, time - lookback, "right"))
            amounts = self._sorted[2][low : end + 1]
            count = len(amounts)
            mean = amounts.mean()
            spread = sqrt(((amounts - mean) ** 2).sum() / (count - 1)) if count > 1 else None
            distinct = len(np.unique(self._sorted[3][low : end + 1]))
            found.append(Answer(count, float(amounts.sum()), float(amounts.max()), distinct, spread))
        return found


@dataclass
class Right:
    """How many answers were those of the fold; each lookback of a transaction is one."""

    all: int = 0
    exact: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def note(self, wanted: list[Answer], found: list[Answer]) -> None:
        """Compare the answers to one transaction."""
        for want, have in zip(wanted, found, strict=True):
            self.all += 1
            exact = True
            for name, a, b in zip(Answer._fields, want, have, strict=True):
                missing = a is None or b is None
                error = float(a != b) if missing else abs(a - b) / max(abs(a), 1e-9)
                if error > (1e-9 if name == "stddev" else 0):
                    exact = False
                    self.worst[name] = max(self.worst.get(name, 0.0), error)
            self.exact += exact
            spread = "-" if have.stddev is None else f"{have.stddev:.6g}"
            self.digest.update(f"{have.count} {have.sum:.0f} {have.max:.0f} {have.distinct} {spread}\n".encode())

    @property
    def text(self) -> str:
        """What the table says."""
        if self.exact == self.all:
            return "all exact"
        wrong = ", ".join(f"{name} up to {100 * error:.2g} %" for name, error in sorted(self.worst.items()))
        return f"{100 * self.exact / self.all:.1f} % ({wrong})"
