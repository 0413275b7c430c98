"""How far a run of the experiments has come, in a file, so that the next run goes on there.

    full/daba.progress      the size, the experiments that are done, the seconds they took, the figures so far;
                            of the experiment that runs: the series that are measured, and their first answers

The file is a pickle. It is written after each series, and removed at the end of the paper. A series that was cut short
runs anew; its answers are compared with those that the file has.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.papers.common import SHOWN, Row, Study
from bench.papers.common import Experiment as Question

_WIDTH = 30

Experiment = Callable[[Study], None]


class _Notes:
    """What is noted of a run.

    Args:
        study: gets the figures of an earlier run of the same size that was cut short.
        names: of all steps; a step is an experiment in one of the passes.
    """

    def __init__(self, study: Study, names: Sequence[str]) -> None:
        self._study = study
        self._path = study.folder / f"{study.paper}.progress"
        self._names = names
        self.done: list[str] = []
        self._measured: set[tuple[str, Any]] = set()
        self._answers: dict[str, dict[Any, tuple[str, Sequence[Any]]]] = {}
        self._seconds = 0.0
        if self._path.exists():
            noted = pickle.loads(self._path.read_bytes())
            if noted["size"] == study.size:
                self.done = [name for name in names if name in noted["done"]]
                self._measured, self._answers = noted["measured"], noted["answers"]
                self._seconds = noted["seconds"]
                for row in noted["rows"]:
                    study.keep(Row(**row))
        self._began = time.perf_counter() - self._seconds

    def answers(self, experiment: str) -> dict[Any, tuple[str, Sequence[Any]]]:
        return self._answers.get(experiment, {})

    def measured(self, experiment: str, series: Any) -> bool:
        return (experiment, series) in self._measured

    def note(self, experiment: Question, series: Any, share: float) -> None:
        self._measured.add((experiment.name, series))
        for question in self._study.questions:
            first = {case: (name, answers[:SHOWN]) for case, (name, answers) in question.answers.items()}
            self._answers[question.name] = first
        self._write()
        self._study.log(self.shown(share))

    def finish(self, name: str) -> None:
        """Note that a step is done."""
        self.done.append(name)
        self._measured, self._answers = set(), {}
        self._study.questions.clear()
        self._write()

    def shown(self, share: float = 0.0) -> str:
        """Draw how far it is, and estimate how long the rest takes: as the part before it, step by step."""
        done, steps = len(self.done) + share, len(self._names)
        if not done:
            return bar(done, steps)
        left = (time.perf_counter() - self._began) * (steps - done) / done
        return f"{bar(done, steps)}, about {left / 60:.0f} min left"

    def _write(self) -> None:
        noted = {
            "size": self._study.size,
            "done": self.done,
            "measured": self._measured,
            "answers": self._answers,
            "seconds": time.perf_counter() - self._began,
            "rows": [vars(row) for row in self._study.rows],
        }
        new = self._path.with_suffix(".new")
        new.write_bytes(pickle.dumps(noted))
        os.replace(new, self._path)

    def remove(self) -> None:
        """Remove the file: the paper is done."""
        self._path.unlink(missing_ok=True)


def remaining(study: Study, experiments: Sequence[Experiment]) -> Iterator[tuple[str, Experiment]]:
    """Yield what is still to be run, each with a line that shows how far it is; note each that was run.

    Args:
        study: gets the figures of an earlier run of the same size that was cut short, and notes each series.
    """
    steps = {f"{turn} {run.__name__}": run for turn in range(1, study.passes + 1) for run in experiments}
    study.notes = notes = _Notes(study, list(steps))
    for name, run in steps.items():
        if name in notes.done:
            continue
        turn, _, what = name.partition(" ")
        yield f"{study.paper}, pass {turn} of {study.passes}: {what} {notes.shown()}", run
        notes.finish(name)
    notes.remove()


def bar(done: float, steps: int) -> str:
    """Draw how far it is.

    >>> bar(2.5, 6)
    '[############··················] 2 of 6'
    """
    filled = int(_WIDTH * done / steps)
    return f"[{'#' * filled}{'·' * (_WIDTH - filled)}] {int(done)} of {steps}"
