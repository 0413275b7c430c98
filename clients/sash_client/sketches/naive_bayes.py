"""The answers of the aggregate `naive_bayes`: labels of new entries are predicted with the model of a window.

    score of a label = log(entries with it / entries)
                     + log density of each number under the normal distribution that it had with the label
                     + log((1 + entries with the value and the label) / (values + entries with the label))

The label with the best score wins. Variances get 1e-9 of the largest variance of all features added, as in
scikit-learn, so that a feature with a single value does not decide alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sash_client.errors import InvalidArgument

_SMOOTHING = 1e-9


class NaiveBayes:
    """A naive Bayes model of a window.

    Args:
        model: what the aggregate answers: a list with an item for each label.

    Raises:
        InvalidArgument: `model` is no such answer, or has no label.

    >>> late = {"label": "late", "entries": 2, "means": [40.0], "variances": [100.0], "values": []}
    >>> on_time = {"label": "on time", "entries": 6, "means": [5.0], "variances": [25.0], "values": []}
    >>> model = NaiveBayes([late, on_time])
    >>> model.predict([35.0]), model.predict([12.0])
    ('late', 'on time')
    """

    def __init__(self, model: Sequence[Mapping[str, Any]] | None) -> None:
        if not model:
            raise InvalidArgument("the model has no labels", field="model")
        try:
            self._rows = [dict(row) for row in model]
            self._numbers, self._texts = len(self._rows[0]["means"]), len(self._rows[0]["values"])
            self._entries = sum(row["entries"] for row in self._rows)
            counts = [
                [{pair["value"]: pair["entries"] for pair in each} for each in row["values"]] for row in self._rows
            ]
            variances = [variance for row in self._rows for variance in row["variances"]]
        except (KeyError, TypeError, IndexError):
            raise InvalidArgument("this is no answer of naive_bayes", field="model") from None
        self._counts = counts
        self._known = [len(set().union(*(row[i] for row in counts))) for i in range(self._texts)]
        self._added = _SMOOTHING * max(variances, default=0.0) or _SMOOTHING

    def predict(self, features: Sequence[float | str | bool]) -> Any:
        """Return the most likely label of an entry.

        Args:
            features: its values, in the order of `features` in the spec.

        Raises:
            InvalidArgument: another number of features, or of another kind.
        """
        scores = self.scores(features)
        return max(scores, key=scores.__getitem__)

    def scores(self, features: Sequence[float | str | bool]) -> dict[Any, float]:
        """Return the probability of each label; they add up to 1. Raises as `predict`."""
        numbers = [float(value) for value in features if not isinstance(value, bool | str)]
        others = [value for value in features if isinstance(value, bool | str)]
        texts = [value if isinstance(value, str) else str(value).lower() for value in others]
        if (len(numbers), len(texts)) != (self._numbers, self._texts):
            raise InvalidArgument(
                f"the model has {self._numbers} numbers and {self._texts} others as features, "
                f"not {len(numbers)} and {len(texts)}",
                field="features",
            )
        logs = [self._log(row, counts, numbers, texts) for row, counts in zip(self._rows, self._counts, strict=True)]
        best = max(logs)
        shares = [math.exp(log - best) for log in logs]
        return {row["label"]: share / sum(shares) for row, share in zip(self._rows, shares, strict=True)}

    def _log(
        self, row: Mapping[str, Any], counts: Sequence[Mapping[str, int]], numbers: list[float], texts: list[str]
    ) -> float:
        log = math.log(row["entries"] / self._entries)
        for value, mean, variance in zip(numbers, row["means"], row["variances"], strict=True):
            variance += self._added
            log -= (math.log(2 * math.pi * variance) + (value - mean) ** 2 / variance) / 2
        for text, of_label, known in zip(texts, counts, self._known, strict=True):
            log += math.log((1 + of_label.get(text, 0)) / (known + row["entries"]))
        return log
