"""Results as data frames of pandas and Polars and tables of Arrow, none of which is a dependency.

    result ──▶ Table: name -> Values ──▶ to_pandas, to_polars, to_arrow

Times are instants in UTC, or int64 ticks if the window counts logical time. No answer is a null; pandas has NaN in
columns of floats, and `Int64` and `boolean` in the place of int64 and bool. Structured answers are structs and lists,
and objects in pandas. Strings are plain strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sash_client.errors import Unsupported
from sash_client.libraries import imported

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = ["AsyncTabular", "Table", "Tabular", "Values", "to_arrow", "to_pandas", "to_polars", "with_aggregates"]

Kind: TypeAlias = Literal["float64", "int64", "bool", "string", "binary", "time", "any"]
_POLARS_MAX_S = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """One column of a table.

    Args:
        kind: what the values are; "any" stands for Python objects of other types.
        data: (n,): an array of the kind; for "time" int64, ticks; objects (None for no value) for the last three kinds.
        missing: bool (n,): which values are missing, if some are; objects need none.
        unit: of times: "ns", "us", "ms" or "s".
        tells_nan: of floats: a missing value is something else than NaN.
    """

    kind: Kind
    data: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_] | None = None
    unit: str = ""
    tells_nan: bool = False

    @classmethod
    def times(cls, ticks: Sequence[int | None] | npt.NDArray[np.int64], unit: str) -> Values:
        """Return times; None stands for none. Ticks of unit "none" are integers."""
        missing = None
        if not isinstance(ticks, np.ndarray):
            missing = np.array([tick is None for tick in ticks], dtype=bool)
            ticks = np.array([0 if tick is None else tick for tick in ticks], dtype=np.int64)
        if missing is None or not missing.any():
            missing = None
        return cls("int64", ticks, missing) if unit == "none" else cls("time", ticks, missing, unit)

    @classmethod
    def texts(cls, texts: Sequence[str | None] | npt.NDArray[Any]) -> Values:
        """Return strings; None stands for none."""
        return cls("string", _objects(texts))

    @classmethod
    def of(cls, values: npt.NDArray[Any] | Sequence[Any]) -> Values:
        """Return an array, masked or not, or Python values: of the kind that all of them have, but for None."""
        if isinstance(values, np.ma.MaskedArray):
            missing = np.ma.getmaskarray(values)
            plain = cls.of(values.data)
            return cls(plain.kind, plain.data, missing if missing.any() else None)
        if isinstance(values, np.ndarray) and values.dtype != object:
            return cls(_KINDS[values.dtype.kind], values)
        items = list(values)
        kinds = {type(item) for item in items if item is not None}
        missing = np.array([item is None for item in items], dtype=bool)
        kept = missing if missing.any() else None
        if kinds == {bool}:
            return cls("bool", np.array([bool(item) for item in items], dtype=bool), kept)
        if kinds == {int} and all(-(2**63) <= item < 2**63 for item in items if item is not None):
            return cls("int64", np.array([item or 0 for item in items], dtype=np.int64), kept)
        if float in kinds and kinds <= {int, float}:
            return cls("float64", np.array([np.nan if item is None else item for item in items], np.float64), kept)
        kind: Kind = "string" if kinds == {str} else "binary" if kinds == {bytes} else "any"
        return cls(kind, _objects(items))


Table: TypeAlias = Mapping[str, Values]

_KINDS: Mapping[str, Kind] = {"f": "float64", "i": "int64", "b": "bool"}


class Tabular:
    """A result that is also a table."""

    __slots__ = ()

    def _table(self) -> Table:
        """The columns by name."""
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of pandas.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        return to_pandas(self._table())

    def to_polars(self) -> pl.DataFrame:
        """Return a DataFrame of Polars.

        Raises:
            ModuleNotFoundError: Polars is not installed.
            Unsupported: Polars has no type for the answers of an aggregate.
        """
        return to_polars(self._table())

    def to_arrow(self) -> pa.Table:
        """Return a Table of Arrow.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            Unsupported: Arrow has no type for the answers of an aggregate.
        """
        return to_arrow(self._table())


class AsyncTabular:
    """A result of the client for asyncio that is also a table; as `Tabular`."""

    __slots__ = ()

    async def _table(self) -> Table:
        """The columns by name."""
        raise NotImplementedError

    async def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame of pandas; raises as `Tabular.to_pandas`."""
        return to_pandas(await self._table())

    async def to_polars(self) -> pl.DataFrame:
        """Return a DataFrame of Polars; raises as `Tabular.to_polars`."""
        return to_polars(await self._table())

    async def to_arrow(self) -> pa.Table:
        """Return a Table of Arrow; raises as `Tabular.to_arrow`."""
        return to_arrow(await self._table())


def with_aggregates(table: Mapping[str, Values], aggregates: Table) -> Table:
    """Return a table with the columns of aggregates behind its own."""
    return {**table, **{f"aggregates.{name}" if name in table else name: each for name, each in aggregates.items()}}


def to_pandas(table: Table) -> pd.DataFrame:
    """Return a table as pandas' DataFrame; see `Tabular.to_pandas`."""
    pd = imported("pandas", "to_pandas")
    return pd.DataFrame({name: _in_pandas(pd, column) for name, column in table.items()})


def _in_pandas(pd: Any, column: Values) -> Any:
    data, missing = column.data, column.missing
    match column.kind:
        case "time":
            instants = data.view(f"datetime64[{column.unit}]")
            if missing is not None:
                instants = np.where(missing, np.array("NaT", instants.dtype), instants)
            return pd.Series(instants).dt.tz_localize("UTC")
        case "float64" if missing is not None and column.tells_nan:
            return pd.arrays.FloatingArray(data.copy(), missing.copy())
        case "float64":
            return data if missing is None else np.where(missing, np.nan, data)
        case "int64":
            return data if missing is None else pd.arrays.IntegerArray(data.copy(), missing.copy())
        case "bool":
            return data if missing is None else pd.arrays.BooleanArray(data.copy(), missing.copy())
        case "string":
            return pd.Series(data, dtype=object if pd.__version__ < "3" else "str")  # pandas 3 has a type for strings
        case _:
            return pd.Series(data, dtype=object)


def to_arrow(table: Table) -> pa.Table:
    """Return a table as Arrow's Table; see `Tabular.to_arrow`."""
    pa = imported("pyarrow", "to_arrow")
    return pa.table({name: _in_arrow(pa, name, column) for name, column in table.items()})


def _in_arrow(pa: Any, name: str, column: Values) -> Any:
    if column.kind == "time":
        return pa.array(column.data, pa.int64(), mask=column.missing).cast(pa.timestamp(column.unit, "UTC"))
    if column.kind == "any":
        try:
            return pa.array(column.data.tolist())
        except (pa.ArrowException, OverflowError) as error:
            raise _unsupported("Arrow", name, error) from None
    types = {"float64": pa.float64, "int64": pa.int64, "bool": pa.bool_, "string": pa.string, "binary": pa.binary}
    return pa.array(column.data, types[column.kind](), mask=column.missing, from_pandas=False)


def to_polars(table: Table) -> pl.DataFrame:
    """Return a table as Polars' DataFrame; see `Tabular.to_polars`."""
    library = imported("polars", "to_polars")
    frame: pl.DataFrame = library.DataFrame([_in_polars(library, name, column) for name, column in table.items()])
    return frame


def _in_polars(pl: Any, name: str, column: Values) -> Any:
    data, missing, kind = column.data, column.missing, column.kind
    if kind in ("string", "binary"):
        return pl.Series(name, data.tolist(), dtype=pl.String if kind == "string" else pl.Binary)
    if kind == "any":
        try:
            return pl.Series(name, _alike(data.tolist()))
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise _unsupported("Polars", name, error) from None
    unit = column.unit
    if unit == "s":  # Polars has no seconds
        if data.size and not -_POLARS_MAX_S <= int(data.min()) <= int(data.max()) <= _POLARS_MAX_S:
            raise Unsupported(f"column {name!r} has times that Polars cannot hold: its coarsest unit is ms", field=name)
        data, unit = data * 1000, "ms"
    series = pl.Series(name, data)
    if missing is not None:
        series = series.set(pl.Series(missing), None)
    return series.cast(pl.Datetime(unit)).dt.replace_time_zone("UTC") if kind == "time" else series


def _alike(items: list[Any]) -> list[Any]:
    """Mappings, each with the names of all: Polars takes the names of the first one, and drops all others."""
    mappings = [item for item in items if isinstance(item, Mapping)]
    names = dict.fromkeys(name for item in mappings for name in item)
    if len(mappings) + items.count(None) < len(items):
        return items
    return [None if item is None else {name: item.get(name) for name in names} for item in items]


def _objects(items: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.fromiter(items, dtype=object, count=len(items))


def _unsupported(library: str, name: str, error: Exception) -> Unsupported:
    return Unsupported(f"{library} has no type for all values of {name!r}: {error}", field=name)
