"""pandas, Polars and Arrow, none of which is a dependency: to know their objects, and to import them when asked to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.errors import InvalidArgument


def is_pandas(values: Any) -> bool:
    """Whether an object is one of pandas. This imports nothing."""
    return _package(values) == "pandas"


def is_polars(values: Any) -> bool:
    """Whether an object is one of Polars. This imports nothing."""
    return _package(values) == "polars"


def eager(values: Any) -> Any:
    """Return a LazyFrame of Polars as the DataFrame that it stands for, and any other object as it is."""
    return values.collect() if is_polars(values) and type(values).__name__ == "LazyFrame" else values


def is_arrow(values: Any) -> bool:
    """Whether an object is one of Arrow, or a column of another library that speaks Arrow's C stream."""
    return _package(values) == "pyarrow" or hasattr(values, "__arrow_c_stream__")


def imported(package: str, needed_by: str) -> Any:
    """Import an optional package.

    Raises:
        ModuleNotFoundError: it is not installed; the message names it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"{needed_by} needs {package}: pip install {package}", name=package) from None


def shown(progress: bool | Callable[[int, int], None] | None, what: str) -> Callable[[int, int], None]:
    """Return what is told how many are done, and how many there are.

    Args:
        progress: that function itself; or whether to show a bar of tqdm, or lines on stderr where it is not installed.
        what: is counted.
    """
    if callable(progress):
        return progress
    if not progress:
        return lambda done, total: None
    try:
        bar = importlib.import_module("tqdm.auto").tqdm(unit=f" {what}", unit_scale=True)
    except ModuleNotFoundError:
        return lambda done, total: print(f"{done:,} of {total:,} {what}", file=sys.stderr)

    def told(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return told


def refuse_missing(missing: npt.NDArray[np.bool_], name: str) -> None:
    """Raise InvalidArgument if values are missing; the message names the column and the first row."""
    rows = np.flatnonzero(missing)
    if rows.size:
        raise InvalidArgument(
            f"{name} has missing values, the first in row {rows[0]}; fill them, drop these rows, or create the "
            f"window with nullable: [{name}]",
            field=name,
        )


def _package(values: Any) -> str:
    return type(values).__module__.partition(".")[0]
