"""Naive Bayes: for each label, how many entries it has, and the distribution of each feature among them.

    features     delay (float64)          carrier (string)
    "late"       n, mean, m2              {"UA": 3, "AA": 1}
    "on time"    n, mean, m2              {"UA": 1, "DL": 7}

Training on two sets apart and combining gives the same model as training on both, so a window's model is a fold like
any other, and old entries leave it.

Source: Izbicki, "Algebraic classifiers: a generic approach to fast cross-validation, online training, and parallel
training", ICML 2013. The moments are joined as in `moments.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np

from sash_engine.kernels import powers
from sash_engine.monoids.base import (
    ANY,
    Array,
    FieldType,
    Monoid,
    Partial,
    Partials,
    Read,
    Schema,
    Values,
    typed,
    whole,
)
from sash_engine.monoids.numerics import quiet

LABEL: tuple[FieldType, ...] = ("string", "int64", "bool")
FEATURES_MAX = 16
_NUMBERS = ("float64", "int64")


class NaiveBayes(Monoid):
    """A naive Bayes model of a field, the label, by 1 to 16 other fields, the features.

    The answer is a list with an item for each label, sorted by label: `{"label": …, "entries": n, "means": […],
    "variances": […], "values": […]}`. `means` and `variances` (divided by n) are those of the numeric features, in the
    order of `features`. `values` has a list for each other feature: how often each value occurs with the label, as
    `{"value": …, "entries": …}`, sorted by value; bools are the texts "true" and "false". `NaiveBayes` of
    `sash_client` predicts labels with it. A NaN or an infinity makes the mean and the variance NaN. [] over no
    entries. None over more labels than `labels`, or more different values of a feature with one label than `values`.

    Args:
        labels: the greatest number of labels, 1 to 1,000.
        values: the greatest number of different values of a string feature with one label, 1 to 10,000.

    Flags: commutative.

    >>> import numpy as np
    >>> from sash_engine.monoids import NaiveBayes
    >>> bayes = NaiveBayes("string", "float64")
    >>> model = bayes.lower(bayes.reduce([np.array(["late", "late"], object), np.array([30.0, 50.0])]))
    >>> model == [{"label": "late", "entries": 2, "means": [40.0], "variances": [100.0], "values": []}]
    True
    """

    function = "naive_bayes"
    parts = ("labels",)
    blob = (
        "JSON: a list of [label, entries, features], sorted by label; a feature is [mean, m2], or a list of pairs "
        '[value, count]; or "more"'
    )
    reads = (Read("field", LABEL), Read("features", ANY, many=FEATURES_MAX))
    commutative = True
    exact = False
    large = True
    answer = list
    identity = ()

    def __init__(self, *types: FieldType, labels: int = 100, values: int = 1000) -> None:
        super().__init__(*types)
        self.labels = whole("labels", labels, 1, 1000)
        self.values = whole("values", values, 1, 10_000)
        self.numeric = tuple(kind in _NUMBERS for kind in self.types[1:])

    @property
    def schema(self) -> Schema:
        values: Schema = [[{"value": "string", "entries": "int64"}]]
        numbers: list[Schema] = ["float64"]
        return [{"label": self.types[0], "entries": "int64", "means": numbers, "variances": numbers, "values": values}]

    def lift(self, value: Any) -> Partial:
        label, *features = value
        lifted: list[Any] = []
        for numeric, feature in zip(self.numeric, features, strict=True):
            if numeric:
                mean = float(feature)
                lifted.append((mean, mean - mean))
            else:
                lifted.append(((_text(feature), 1),))
        return ((label, 1, tuple(lifted)),)

    @quiet
    def combine(self, older: Partial, newer: Partial) -> Partial:
        if older == _SPENT or newer == _SPENT:
            return _SPENT
        rows = []
        for _, same in groupby(sorted((*older, *newer), key=_label), key=_label):
            first, *second = same
            rows.append(self._join(first, second[0]) if second else first)
        return self._bounded(tuple(rows))

    def _join(self, older: Any, newer: Any) -> Any:
        label, n1, features1 = older
        _, n2, features2 = newer
        share = n2 / (n1 + n2)
        joined: list[Any] = []
        for numeric, one, two in zip(self.numeric, features1, features2, strict=True):
            if numeric:
                apart = two[0] - one[0]
                joined.append((one[0] + apart * share, one[1] + two[1] + apart * apart * (n1 * share)))
            else:
                counts = dict(one)
                for value, count in two:
                    counts[value] = counts.get(value, 0) + count
                joined.append(tuple(sorted(counts.items())))
        return label, n1 + n2, tuple(joined)

    def _bounded(self, rows: Any) -> Partial:
        if len(rows) > self.labels:
            return _SPENT
        for _, _, features in rows:
            for numeric, feature in zip(self.numeric, features, strict=True):
                if not numeric and len(feature) > self.values:
                    return _SPENT
        return rows

    def reduce(self, values: Values) -> Partial:
        labels, features = values[0], values[1:]
        rows = []
        items = labels.tolist()
        names = sorted(set(items))
        if len(names) > self.labels:
            return _SPENT
        code_of = {name: code for code, name in enumerate(names)}
        codes = np.fromiter(map(code_of.__getitem__, items), np.int64, len(items))
        for code, name in enumerate(names):
            chosen = codes == code
            of_label: list[Any] = []
            for numeric, column in zip(self.numeric, features, strict=True):
                if numeric:
                    numbers = column[chosen].astype(np.float64, copy=False)
                    moments = powers(numbers, 0, len(numbers), 2)
                    assert moments is not None, "a label has a row"
                    of_label.append(moments[1:])
                else:
                    counts = Counter(column[chosen].tolist())
                    of_label.append(tuple(sorted((_text(value), count) for value, count in counts.items())))
            rows.append((name, int(chosen.sum()), tuple(of_label)))
        return self._bounded(tuple(rows))

    def lower(self, partial: Partial) -> list[dict[str, Any]] | None:
        if partial == _SPENT:
            return None
        return [self._row(*row) for row in partial]

    def _row(self, label: Any, n: int, features: Any) -> dict[str, Any]:
        numbers = [one for one, numeric in zip(features, self.numeric, strict=True) if numeric]
        others = [one for one, numeric in zip(features, self.numeric, strict=True) if not numeric]
        return {
            "label": label,
            "entries": n,
            "means": [float(mean) if m2 == m2 else math.nan for mean, m2 in numbers],
            "variances": [m2 / n for _, m2 in numbers],
            "values": [[{"value": value, "entries": count} for value, count in each] for each in others],
        }

    def _typed(self, partial: Any) -> Partial:
        if partial == _SPENT:
            return _SPENT
        rows = tuple(self._typed_row(row) for row in partial) if type(partial) is tuple else ()
        labels = [row[0] for row in rows]
        if not rows or labels != sorted(set(labels)) or self._bounded(rows) == _SPENT:
            raise ValueError("it must be a list of different labels, sorted, within the limits")
        return rows

    def _typed_row(self, row: Any) -> Any:
        if type(row) is not tuple or len(row) != 3 or type(row[2]) is not tuple or len(row[2]) != len(self.numeric):
            raise ValueError(f"a label needs its entries and {len(self.numeric)} features")
        n = _count(row[1])
        features: list[Any] = []
        for numeric, feature in zip(self.numeric, row[2], strict=True):
            if type(feature) is not tuple or not feature or (numeric and len(feature) != 2):
                raise ValueError("a feature is a list")
            if numeric:
                mean, m2 = (typed(part, "float64") for part in feature)
                if m2 < 0:
                    raise ValueError("m2 is negative")
                features.append((mean, m2))
                continue
            if any(type(pair) is not tuple or len(pair) != 2 for pair in feature):
                raise ValueError("the values of a feature are pairs")
            pairs = tuple((typed(value, "string"), _count(count)) for value, count in feature)
            if [value for value, _ in pairs] != sorted({value for value, _ in pairs}):
                raise ValueError("the values of a feature must differ, and be sorted")
            if sum(count for _, count in pairs) != n:
                raise ValueError("the values of a feature do not add up to the entries of the label")
            features.append(pairs)
        return typed(row[0], self.types[0]), n, tuple(features)

    def implausible(self, partials: Partials, entries: Array) -> Array:
        found = zip(partials[0].tolist(), entries.tolist(), strict=True)
        return np.array([rows != _SPENT and sum(row[1] for row in rows) != n for rows, n in found], np.bool_)


_SPENT = "more"


def _label(row: Any) -> Any:
    return row[0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "true" if value else "false"


def _count(number: Any) -> int:
    count: int = typed(number, "int64")
    if count < 1:
        raise ValueError("a count is not positive")
    return count
