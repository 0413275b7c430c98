"""What a Prometheus scrapes of another one: `/federate`, in the text format of expositions.

made:newest{key="a"} 17.5 1700000000000
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from sash.prometheus.documents import Parts, number
from sash.prometheus.times import Times
from sash.prometheus.values import NAME, Labels, Vector, per_step
from sash_engine.steps import Steps, spans_of

__all__ = ["TEXT", "exposed"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposed(vectors: Iterable[Vector], times: Times) -> Steps[list[bytes]]:
    """Write the samples of an instant, metric by metric, each series once.

    The format has no names with dots and hyphens: series of such a metric, or with such a label, are left out.
    """
    rows = dict[str, dict[frozenset[tuple[str, str]], tuple[Labels, float]]]()
    for vector in vectors:
        for row in np.flatnonzero(vector.there[:, 0]).tolist():
            labels = vector.labels[row]
            if _NAME.fullmatch(labels.get(NAME, "")) and all(map(_LABEL.fullmatch, labels.keys() - {NAME})):
                of_name = rows.setdefault(labels[NAME], {})
                of_name[frozenset(labels.items())] = labels, float(vector.values[row, 0])
        yield
    written = Parts()
    for name, samples in rows.items():
        written.append(f"# TYPE {name} untyped\n".encode())
        each = list(samples.values())
        for a, b in spans_of(len(each), per_step([labels for labels, _ in each])):
            lines = [_line(name, labels, value, times.start_ms) for labels, value in each[a:b]]
            written.append("".join(lines).encode())
            yield
    return written.parts


def _line(name: str, labels: Labels, value: float, at_ms: int) -> str:
    pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items() if label != NAME)
    return f"{name}{{{pairs}}} {number(value)} {at_ms}\n"
