"""The figures of all systems as a page of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.peers.work import REAL

Figures = Mapping[str, Any]

HEAD = f"""# Peers

<!-- `python -m bench.peers --write` writes this page. -->

This page says how long other systems take for the same work, on one machine, in one run. Every answer was compared with
NumPy's.

**The data**: {REAL.entries:,} entries of ten keys with one number each, one every {REAL.every_ms} ms. They are
inserted in bulks of {REAL.bulk:,}, by one caller, with the system's usual client.

**The questions**: *trailing* asks one key for count, mean and maximum over the last 1, 10 and 60 minutes, one question
after the other. *Sketches* asks for median, 99th percentile and the number of distinct values over the last hour.
*Series* asks one key, which has 100,000 entries, for {REAL.points:,} means and maxima over 10 minutes, 2.5 seconds
apart. *While entries come in* asks the trailing question during bulks of 1,000 entries, 20 a second.

"""


def _of(name: str, part: str, scale: float = 1.0) -> Callable[[Figures], float | str]:
    def read(figures: Figures) -> float | str:
        found = figures[name]
        return found if isinstance(found, str) else found[part] * scale

    return read


ROWS: Sequence[tuple[str, Callable[[Figures], float | str], bool]] = (
    ("Bulks in order, entries/s", lambda figures: figures["ordered"], True),
    ("Bulks shuffled, entries/s", lambda figures: figures["shuffled"], True),
    ("Single entries of one caller, entries/s", lambda figures: figures["single"], True),
    ("Trailing, µs", _of("trailing", "median"), False),
    ("Trailing, p99, µs", _of("trailing", "p99"), False),
    ("Trailing while entries come in, p99, µs", _of("pressure", "p99"), False),
    ("Sketches, µs", _of("sketches", "median"), False),
    ("Series, ms", lambda figures: figures["series"], False),
    ("Memory, bytes for an entry", lambda figures: figures.get("memory", figures["ordered"]), False),
    ("From a kill to the first right answer, s", lambda figures: figures["restart"], False),
)


def page(found: Mapping[str, Figures], absent: Mapping[str, str], machine: str) -> str:
    """Return the page.

    Args:
        found: the figures of each system that was measured, by its name; Sash's first.
        absent: why the others were not.
        machine: what it ran on.
    """
    notes: list[str] = []
    first = next(iter(found.values()))
    lines = [HEAD + f"**The machine**: {machine}. {_runs(first['runs'])}\n"]
    lines.append("In brackets: how many times as good as Sash, above 1 for better.\n")
    for names in _chunks(list(found)):
        lines.append("| | " + " | ".join(names) + " |")
        lines.append("| --- |" + " ---: |" * len(names))
        for title, read, more_is_better in ROWS:
            ours = read(first)
            cells = [_cell(read(found[name]), ours, more_is_better, notes, name != next(iter(found))) for name in names]
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
        lines.append("| A write is answered when it is | " + " | ".join(found[name]["kept"] for name in names) + " |")
        lines.append("| Version | " + " | ".join(found[name]["version"] for name in names) + " |\n")
    lines += [f"{i}. {note[0].upper()}{note[1:]}." for i, note in enumerate(notes, 1)]
    for name, figures in found.items():
        if isinstance(figures["sketches"], dict) and figures["sketches"]["missing"]:
            lines.append(f"\n{name} answers the sketches without: {', '.join(figures['sketches']['missing'])}.")
    for name, why in absent.items():
        lines.append(f"\n{name} was not measured: {why}.")
    lines.append("\nSpark, Flink and Bytewax are jobs. Their series includes the start of the job, and reading a file.")
    lines.append("\nMemory is what a process has of its own after the bulks in order, beyond what it had before.")
    lines.append("The reference C++ library is compared in `bench/engine.py`, see [Performance](performance.md).")
    return "\n".join(lines) + "\n"


def _runs(runs: int) -> str:
    return "One run." if runs == 1 else f"Medians of {runs} runs."


def _chunks(names: list[str]) -> list[list[str]]:
    """Columns that fit on a page: the first name leads every table."""
    others = names[1:]
    return [[names[0], *others[at : at + 4]] for at in range(0, len(others), 4)] or [names]


def _cell(value: float | str, ours: float | str, more_is_better: bool, notes: list[str], compared: bool) -> str:
    if isinstance(value, str):
        note = value.removeprefix("no: ")
        if note not in notes:
            notes.append(note)
        return f"cannot ({notes.index(note) + 1})"
    shown = f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
    if not compared or isinstance(ours, str) or not value or not ours:
        return shown
    ratio = value / ours if more_is_better else ours / value
    return f"{shown} ({ratio:.2g}×)"
