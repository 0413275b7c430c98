"""How far a run of the experiments has come, in a file, so that the next run goes on there.

    full/daba.progress.json      {"size": "full", "done": ["1 static", "1 latency"], "rows": [...]}

It is written after each experiment, and removed at the end of the paper. An experiment that was cut short runs anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence

from bench.papers.common import Row, Study

__all__ = ["bar", "remaining"]

_WIDTH = 30

Experiment = Callable[[Study], None]


def remaining(study: Study, experiments: Sequence[Experiment]) -> Iterator[tuple[str, Experiment]]:
    """Yield what is still to be run, each with a line that shows how far it is; note each that was run.

    Args:
        study: gets the figures of an earlier run of the same size that was cut short.
    """
    path = study.folder / f"{study.paper}.progress.json"
    steps = [(f"{turn} {run.__name__}", run) for turn in range(1, study.passes + 1) for run in experiments]
    done: list[str] = []
    if path.exists():
        noted = json.loads(path.read_text())
        if noted["size"] == study.size:
            done = [name for name, _ in steps if name in noted["done"]]
            for row in noted["rows"]:
                study.keep(Row(**row))
    for name, run in steps:
        if name in done:
            continue
        turn, _, what = name.partition(" ")
        yield f"{bar(len(done), len(steps))} {study.paper}, pass {turn} of {study.passes}: {what}", run
        done.append(name)
        text = json.dumps({"size": study.size, "done": done, "rows": [vars(row) for row in study.rows]})
        new = path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, path)
    path.unlink(missing_ok=True)


def bar(done: int, steps: int) -> str:
    """Draw how far it is.

    >>> bar(2, 6)
    '[##########····················] 2 of 6'
    """
    filled = _WIDTH * done // steps
    return f"[{'#' * filled}{'·' * (_WIDTH - filled)}] {done} of {steps}"
