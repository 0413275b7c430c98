"""Plots of the experiments: a panel for each question, a style for each series."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        measure: what it shows, as in `Experiment.add`; also the label of its y axis.
        title: above it.
        x, y: the scales.
        ticks: labels of the x axis, where it has no numbers.
        joined: whether neighbouring points are joined by a line.
    """

    measure: str
    title: str = ""
    x: Literal["log2", "log10", "linear"] = "log2"
    y: Literal["log10", "linear", "symlog"] = "log10"
    ticks: Mapping[float, str] = field(default_factory=dict)
    joined: bool = True


BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK, GREY, OLIVE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#999999",
    "#8C8C00",
)
"""The palette of Okabe and Ito, which colour-blind readers can tell apart, and two more."""

STYLES = {
    "recalc_in_order": (GREY, "x"),
    "recalc": (GREY, "x"),
    "subtract_on_evict": (OLIVE, "v"),
    "two_stacks": (SKY, "<"),
    "two_stacks_lite": (BLUE, ">"),
    "daba": (PINK, "d"),
    "daba_lite": (RED, "D"),
    "reactive": (GREEN, "s"),
    "flatfit": (ORANGE, "^"),
    "btree": (GREY, "P"),
    "fiba": (PINK, "h"),
    "fiba (one by one)": (SKY, "h"),
    "fiba (arity 2)": (OLIVE, "v"),
    "fiba (arity 4)": (PINK, "h"),
    "fiba (arity 8)": (ORANGE, "^"),
    "bulk_fiba": (PINK, "H"),
    "bulk_fiba (arity 2)": (OLIVE, "v"),
    "bulk_fiba (arity 4)": (PINK, "h"),
    "bulk_fiba (arity 8)": (ORANGE, "^"),
    "log_mta": (SKY, "p"),
    "amta": (BLACK, "o"),
    "kvs_amta": (ORANGE, "*"),
    "forest": (GREEN, "X"),
    "forest (one by one)": (SKY, "X"),
}
"""Colour and marker of a series, by its name or else the first word of it."""
DASHES = ("-", "--", ":", "-.")


def draw(
    path: Path,
    panels: Sequence[tuple[Panel, Mapping[str, tuple[list[float], list[float]]]]],
    parameter: str,
    title: str,
    note: str,
) -> None:
    """Draw panels side by side, with one legend below all of them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    figure, axes = plt.subplots(1, len(panels), figsize=(max(6.4, 1 + 4.4 * len(panels)), 4.6), squeeze=False)
    handles: dict[str, Any] = {}
    dashes = _dashes([series for _, lines in panels for series in lines])
    for ax, (panel, lines) in zip(axes[0], panels, strict=True):
        for series, (xs, ys) in lines.items():
            colour, marker = _style(series)
            (handles[series],) = ax.plot(
                xs,
                ys,
                color=colour,
                marker=marker,
                markersize=4.5 if panel.joined else 8,
                linestyle=dashes[series] if panel.joined else "none",
                linewidth=1.3,
                label=series,
            )
        _scale(ax, panel)
        ax.set_xlabel(parameter)
        ax.set_ylabel(panel.measure)
        ax.set_title(panel.title, fontsize=10)
        ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    columns = min(len(handles), 4 if len(panels) == 1 else 2 + 2 * len(panels))
    rows = -(-len(handles) // columns)
    below = 0.06 * rows + (0.05 if note else 0.0)
    figure.tight_layout(rect=(0, below, 1, 1))
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncols=columns, fontsize=8.5, frameon=False,
        bbox_to_anchor=(0.5, 0.045 if note else 0.0),
    )  # fmt: skip
    if note:
        figure.text(0.5, 0.015, note, ha="center", fontsize=8, color="#444444")
    drawing = io.BytesIO()
    figure.savefig(drawing, dpi=90)
    plt.close(figure)
    # 64 colours are all that such a plot has, and a third of the bytes.
    Image.open(drawing).convert("RGB").quantize(64).save(path, optimize=True)


def _style(series: str) -> tuple[str, str]:
    return STYLES.get(series) or STYLES[series.split(" ")[0]]


def _dashes(names: Sequence[str]) -> dict[str, str]:
    """Tell series of one algorithm apart, which share colour and marker, by their dashes."""
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        family = seen.setdefault(_style(name), {})
        family.setdefault(name, DASHES[len(family) % len(DASHES)])
    return {name: dash for family in seen.values() for name, dash in family.items()}


def _scale(ax: Any, panel: Panel) -> None:
    if panel.ticks:
        ax.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    elif panel.x == "log2":
        ax.set_xscale("log", base=2)
    elif panel.x == "log10":
        ax.set_xscale("log")
    if panel.y == "log10":
        ax.set_yscale("log")
    elif panel.y == "symlog":
        ax.set_yscale("symlog", linthresh=1)
        ax.set_ylim(bottom=0)
    else:
        ax.set_ylim(bottom=0)
