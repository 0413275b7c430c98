"""Run the experiments: ``python -m bench.papers [--smoke | --full] [--passes N] [--results DIR] [NAME ...]``.

Run it as ``taskset -c 1 python -m bench.papers`` so that it keeps to one core.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.papers import amta, bulk_fiba, daba, fiba, ra
from bench.papers.common import Size, Study, quiet
from bench.papers.progress import remaining

PAPERS: dict[str, Sequence[Callable[[Study], None]]] = {
    "ra": ra.EXPERIMENTS,
    "daba": daba.EXPERIMENTS,
    "fiba": fiba.EXPERIMENTS,
    "bulk_fiba": bulk_fiba.EXPERIMENTS,
    "amta": amta.EXPERIMENTS,
}
RESULTS = Path(__file__).parent / "results"


def run(name: str, size: Size, folder: Path, passes: int | None = None) -> Study:
    """Run one paper's experiments and write its files; go on with a run that was cut short.

    Raises:
        AnswersDiffer: two algorithms answered differently.
    """
    study = Study(name, size, folder, passes)
    gc.collect()
    gc.freeze()  # what is there now is no concern of the collections between runs
    try:
        with quiet():  # `Experiment.each` clears up
            for shown, experiment in remaining(study, PAPERS[name]):
                study.log(shown)
                experiment(study)
    finally:
        gc.unfreeze()
    study.log(f"wrote {study.write().name}")
    return study


def main(arguments: list[str] | None = None) -> int:
    """Run the papers that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description="The papers' experiments, run again.")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--smoke", dest="size", action="store_const", const="smoke", help="seconds; figures mean nothing"
    )
    sizes.add_argument(
        "--full", dest="size", action="store_const", const="full", help="an hour; windows as in the papers"
    )
    parser.add_argument("--passes", type=int, choices=(1, 2, 3), help="how often each paper is run; 1 with --full")
    parser.add_argument("--results", type=Path, help="where to write; beside this file by default, if not --smoke")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PAPERS)}; all by default")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in PAPERS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(PAPERS)}")
    chosen: Size = options.size or "laptop"
    defaults = {"smoke": Path(tempfile.gettempdir()) / "papers-smoke", "laptop": RESULTS, "full": RESULTS / "full"}
    folder: Path = options.results or defaults[chosen]
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or PAPERS:
        run(name, chosen, folder, options.passes)
    print(f"results are in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
