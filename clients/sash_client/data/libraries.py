"""pandas, Polars and Arrow, none of which is a dependency: to know their objects, and to import them when asked to."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.errors import InvalidArgument

__all__ = ["imported", "is_arrow", "is_pandas", "is_polars", "refuse_missing"]


def is_pandas(values: Any) -> bool:
    """Whether an object is one of pandas. This imports nothing."""
    return _package(values) == "pandas"


def is_polars(values: Any) -> bool:
    """Whether an object is one of Polars. This imports nothing."""
    return _package(values) == "polars"


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
