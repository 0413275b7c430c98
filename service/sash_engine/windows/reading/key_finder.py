"""The keys that a question is about: one, several by name, or all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.batches.batch import check_key, check_parts
from sash_engine.windows.keys.keys import UNKEYED
from sash_engine.windows.questions import AllKeys, KeyList
from sash_engine.windows.reading.costs import Costs
from sash_engine.windows.sliding.view_keys import Now, ReadableKeys
from sash_engine.windows.spec.window import WindowSpec

_WAYS = "REST: key=… or all_keys=true; sash: --key or --all-keys; Python: key=…, keys=[…] or keys=ALL_KEYS"

_NAMES = 4_096
"""Names that one step looks at: 1 ms."""

Numbers = npt.NDArray[np.int64]


class KeyFinder:
    """Finds the keys of questions about one window, and checks that there are not too many.

    Args:
        spec, keys: the window's.
        slide: knows now. On wall time, entries also leave while nothing is written.
        costs: limits the number of answers.

    Attributes:
        spec, keys, slide, costs: as they were given, also for the readers that it finds keys for.
    """

    def __init__(self, spec: WindowSpec, keys: ReadableKeys, slide: Now, costs: Costs) -> None:
        self.spec, self.keys, self.slide, self.costs = spec, keys, slide, costs

    def name(self, key: str | None) -> str:
        """Return the name of the one key of a question.

        Raises:
            InvalidArgument: a keyed window needs a key, another window takes none, or no key can have this name.
        """
        if not self.spec.keyed:
            if key is not None:
                raise InvalidArgument(f"window {self.spec.name!r} is not keyed", field="key")
            return UNKEYED
        if key is None:
            raise InvalidArgument(
                f"window {self.spec.name!r} is keyed: give a key, several keys, or all keys ({_WAYS})", field="key"
            )
        check_key(key)
        if self.spec.keys is not None:
            check_parts((key,), self.spec)
        return key

    def check_several(self, key: str | None) -> None:
        """Check that a question may be about several keys."""
        if key is not None:
            raise InvalidArgument("give either one key or several", field="key")
        if not self.spec.keyed:
            raise InvalidArgument(f"window {self.spec.name!r} is not keyed", field="keys")

    def names(self, keys: KeyList, lookbacks: int) -> Steps[list[str]]:
        """Return the names of the keys of a question. All keys are those that have entries.

        Raises:
            InvalidArgument: there would be too many answers.
        """
        if not isinstance(keys, AllKeys):
            self.costs.check_answers(len(keys), lookbacks)  # before a look at any of them
            yield from self.check_each(keys)
            return list(dict.fromkeys(keys))
        if not self.slide.wall:
            self.costs.check_answers(self.keys.filled, lookbacks)
        floor, names = self.slide.late_through(), list[str]()
        for some, numbers in self.keys.chunks(_NAMES):
            names += compress(some, (self.keys.newest_each(numbers) > floor).tolist())
            self.costs.check_answers(len(names), lookbacks)
            yield
        return names

    def numbers(self, keys: KeyList) -> Steps[Numbers]:
        """Return the numbers of the keys of a question, in its order, each once.

        All keys include those without entries: their high-water marks count towards the now of all keys.
        """
        found = [np.empty(0, np.int64)]
        if isinstance(keys, AllKeys):
            for _, numbers in self.keys.chunks(_NAMES):
                self.age(numbers)
                found.append(numbers)
                yield
            return np.concatenate(found)
        yield from self.check_each(keys)
        seen = np.zeros(len(self.keys.now), np.bool_)
        for a, b in spans_of(len(keys), _NAMES):
            numbers = self.keys.find_each(keys[a:b])
            numbers = numbers[numbers >= 0]
            _, firsts = np.unique(numbers, return_index=True)
            numbers = numbers[np.sort(firsts)]
            numbers = numbers[~seen[numbers]]
            seen[numbers] = True
            self.age(numbers)
            found.append(numbers)
            yield
        return np.concatenate(found)

    def age(self, numbers: Numbers) -> None:
        """On wall time, evict entries by their age."""
        if self.slide.wall:
            self.slide.by_age_each(numbers)

    def check_each(self, names: Sequence[str]) -> Steps[None]:
        """Check the names of keys, a step at a time."""
        for a, b in spans_of(len(names), _NAMES):
            for name in names[a:b]:
                check_key(name)
            if self.spec.keys is not None:
                check_parts(names[a:b], self.spec)
            yield

    def find(self, name: str) -> int | None:
        """Return the number of a key, or None if it does not exist. On wall time, evict its old entries first."""
        number = self.keys.find(name)
        if number is not None and self.slide.wall:
            self.slide.by_age(number)
        return number
