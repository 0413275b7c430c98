"""Run the experiments: ``python -m bench.papers [--smoke | --full] [--passes N] [--results DIR] [NAME ...]``.

Run it as ``taskset -c 1 python -m bench.papers`` so that it keeps to one core.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.harness import arguments
from bench.papers import amta, bulk_fiba, daba, fiba, ra
from bench.papers.common import Size, Study, quiet

PAPERS: dict[str, tuple[Callable[[Study], None], ...]] = {
    "ra": ra.EXPERIMENTS,
    "daba": daba.EXPERIMENTS,
    "fiba": fiba.EXPERIMENTS,
    "bulk_fiba": bulk_fiba.EXPERIMENTS,
    "amta": amta.EXPERIMENTS,
}
RESULTS = Path(__file__).parent / "results"


def run(name: str, size: Size, folder: Path, passes: int | None = None) -> Study:
    """Run one paper's experiments, all of them as often as it has passes, and write its files.

    Raises:
        AnswersDiffer: two algorithms answered differently.
    """
    study = Study(name, size, folder, passes)
    gc.collect()
    gc.freeze()  # what is there now is no concern of the collections between runs
    try:
        with quiet():  # `Experiment.each` clears up
            steps = study.passes * PAPERS[name]
            for number, experiment in enumerate(steps, 1):
                study.log(f"{experiment.__name__}, {number} of {len(steps)}")
                experiment(study)
    finally:
        gc.unfreeze()
    study.log(f"wrote {study.write().name}")
    return study


def main() -> None:
    """Run the papers that are named, or all."""
    given = arguments(
        __doc__,
        {
            "--full": {"action": "store_true", "help": "an hour; windows as in the papers"},
            "--passes": {"type": int, "choices": (1, 2, 3), "help": "how often each paper is run; 1 with --full"},
            "--results": {"type": Path, "help": "where to write; beside this file by default, if not --smoke"},
            "names": {"nargs": "*", "metavar": "NAME", "help": f"of {', '.join(PAPERS)}; all by default"},
        },
    )
    if unknown := set(given.names) - set(PAPERS):
        raise SystemExit(f"there is no {unknown.pop()!r}; there are {', '.join(PAPERS)}")
    chosen: Size = "smoke" if given.smoke else "full" if given.full else "laptop"
    defaults = {"smoke": Path(tempfile.gettempdir()) / "papers-smoke", "laptop": RESULTS, "full": RESULTS / "full"}
    folder = given.results or defaults[chosen]
    folder.mkdir(parents=True, exist_ok=True)
    for name in given.names or PAPERS:
        run(name, chosen, folder, given.passes)
    print(f"results are in {folder}")


if __name__ == "__main__":
    main()
