"""Strings as a dictionary and codes: ["UA", "AA", "UA"] is the dictionary ["UA", "AA"] and the codes [0, 1, 0]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Coded:
    """n strings as a dictionary and n codes into it (any integer dtype)."""

    dictionary: list[str]
    codes: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, strings: Sequence[str]) -> Coded:
        """Code n strings, in the order of their first rows; about 50 ns each."""
        index = {text: code for code, text in enumerate(dict.fromkeys(strings))}
        codes = np.fromiter(map(index.__getitem__, strings), np.int64, len(strings))
        return cls(list(index), codes)

    def decode(self) -> npt.NDArray[Any]:
        """Return the n strings as an object array."""
        return np.array([*self.dictionary, None], dtype=object).take(self.codes)

    def part(self, start: int, stop: int) -> Coded:
        """Return rows `start` to `stop`, with no more of the dictionary than they use."""
        return self.rows(slice(start, stop))

    def rows(self, which: slice | npt.NDArray[np.intp]) -> Coded:
        """Return some rows, with no more of the dictionary than they use."""
        codes = self.codes[which]
        used = np.zeros(len(self.dictionary), dtype=bool)
        used[codes] = True
        if used.all():
            return Coded(self.dictionary, codes)
        renumbered = (np.cumsum(used, dtype=np.uint32) - np.uint32(1))[codes]
        return Coded([self.dictionary[i] for i in np.flatnonzero(used).tolist()], renumbered)
