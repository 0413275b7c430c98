"""The section "At the papers' sizes" of README.md, from the text in full.md and the figures in results/full.

``python -m bench.papers.summary`` writes it. A test compares it with the CSVs, so that no figure in it is typed.

    full.md      {{amta; throughput; log_mta; 2^22; slides per second}}     a figure of amta.csv, to three digits
                 {{k: …}}   {{m: …}}                                        in thousands; in millions
                 {{… / …}}  {{%: … / …}}                                    a ratio; in per cent
"""

from __future__ import annotations

import csv
import re
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results" / "full"
BEGIN, END = "<!-- full.md with figures: begin -->\n", "<!-- full.md with figures: end -->\n"
UNITS = {"": 1.0, "k": 1e-3, "m": 1e-6, "%": 100.0}


@cache
def figures(paper: str) -> dict[tuple[str, str, float, str], float]:
    """Read a CSV: (experiment, series, x, measure) -> value."""
    with (RESULTS / f"{paper}.csv").open(encoding="utf-8") as file:
        return {
            (row["experiment"], row["series"], float(row["x"]), row["measure"]): float(row["value"])
            for row in csv.DictReader(file)
        }


def figure(name: str) -> float:
    """Look up a figure: paper; experiment; series; x; measure."""
    paper, experiment, series, x, measure = (part.strip() for part in name.split(";", 4))
    base, _, power = x.partition("^")
    return figures(paper)[experiment, series, float(base) ** int(power or 1), measure]


def _shown(place: re.Match[str]) -> str:
    unit, text = place.groups(default="")
    over, _, under = text.partition(" / ")
    value = figure(over) / (figure(under) if under else 1.0) * UNITS[unit]
    return f"{float(f'{value:.3g}'):,.10g}"


def section() -> str:
    """Put the figures into the text."""
    text = (FOLDER / "full.md").read_text(encoding="utf-8")
    return re.sub(r"\{\{(?:([km%]): )?([^}]+)\}\}", _shown, text)


def main() -> int:
    """Write the section into README.md."""
    readme = FOLDER / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}{section()}{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
