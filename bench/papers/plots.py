"""Plots of the experiments: a panel for each measure, a style for each series."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PALETTE = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#999999", "#8C8C00")
"""That of Okabe and Ito, which colour-blind readers can tell apart, and two more."""
MARKERS = "osD^v<>pPXhd*"


def draw(
    path: Path,
    measures: Mapping[str, Mapping[str, tuple[list[float], list[float]]]],
    parameter: str,
    title: str,
    ticks: Sequence[str] = (),
) -> None:
    """Draw a panel for each measure, side by side, with one legend below all of them.

    Args:
        measures: of each, which is the label of the y axis, the series with their xs and values.
        parameter: the label of the x axis.
        ticks: names of x = 0, 1, …, where it is no number; points are not joined then.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    figure, axes = plt.subplots(1, len(measures), figsize=(max(6.4, 1 + 4.4 * len(measures)), 4.6), squeeze=False)
    handles: dict[str, Any] = {}
    for ax, (measure, lines) in zip(axes[0], measures.items(), strict=True):
        for series, (xs, ys) in lines.items():
            number = len(handles) if series not in handles else list(handles).index(series)
            (handles[series],) = ax.plot(
                xs,
                ys,
                color=PALETTE[number % len(PALETTE)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4.5,
                linestyle="none" if ticks else "-",
                linewidth=1.3,
            )
        points = [(x, y) for xs, ys in lines.values() for x, y in zip(xs, ys, strict=True)]
        for values, scale, axis in ((0, ax.set_xscale, "x"), (1, ax.set_yscale, "y")):
            found = [point[values] for point in points]
            if min(found) > 0 and max(found) / min(found) > 16:
                scale("log", base=2 if axis == "x" else 10)
            elif axis == "y":
                ax.set_ylim(bottom=0)
        if ticks:
            ax.set_xticks(range(len(ticks)), ticks)
        ax.set_xlabel(parameter, fontsize=8)
        ax.set_ylabel(measure)
        ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    columns = min(len(handles), 2 + 2 * len(measures))
    figure.tight_layout(rect=(0, 0.06 * -(-len(handles) // columns), 1, 1))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, fontsize=8.5, frameon=False)
    drawing = io.BytesIO()
    figure.savefig(drawing, dpi=90)
    plt.close(figure)
    # 64 colours are all that such a plot has, and a third of the bytes.
    Image.open(drawing).convert("RGB").quantize(64).save(path, optimize=True)
