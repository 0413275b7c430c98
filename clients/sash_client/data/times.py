"""Times of many kinds into int64 ticks of a window's unit: exactly, or not at all.

    2013-01-01T05:17 (datetime64[m])  --x 60,000,000-->  1357017420000000 us
    1357017420000001 us               --/ 1,000,000--->  InvalidArgument: not a whole number of ticks (s)

Integers are ticks already. Instants (NumPy datetime64, pandas, Polars, Arrow timestamps, aware datetimes)
count from the Unix epoch in UTC; NumPy, pandas, Polars and Arrow instants without a zone are taken for UTC, as those
libraries do. A
naive `datetime.datetime`, which Python takes for local time, is refused. Texts are read as `sash_wire.times` says.

Cost: no copy for int64 and for instants of the window's unit; one vectorised pass otherwise.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.data.columns import without_nulls
from sash_client.data.libraries import is_arrow, is_pandas, plain, refuse_missing
from sash_client.errors import InvalidArgument, refusing
from sash_wire.durations import NANOSECONDS, spell_duration
from sash_wire.times import forms_of, parse_time

Ticks = npt.NDArray[np.int64]
TimeLike = int | str | np.integer[Any] | np.datetime64 | datetime
"""One instant: ticks, anything of which `to_ticks` takes an array, or a text: "2013-01-01T05:30Z", "now", "-1h"."""

Duration = str | int | timedelta | np.timedelta64
"""A length of time: "5m", ticks, or a timedelta of Python, NumPy or pandas."""

# NumPy's units: those of the service, but for D and W.
_NANOSECONDS = {{"d": "D", "w": "W"}.get(unit, unit): length for unit, length in NANOSECONDS.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TICK_LIMIT = "-2^63 < time < 2^63"


def to_ticks(times: Any, unit: str, field: str = "time") -> Ticks:
    """Return times as an int64 array (n,) of ticks.

    Args:
        times: n integers, or n instants: NumPy, pandas (Series, Index), Polars, Arrow (Array, ChunkedArray and
            whatever speaks Arrow's C stream), or a sequence of ints, aware datetimes or texts.
        unit: the window's time unit: "ns", "us", "ms", "s", or "none", which takes integers only.
        field: what to call it in an error.

    Raises:
        InvalidArgument: a missing time, one that is not a whole number of ticks or out of range, or no time at all.
    """
    if is_pandas(times) and getattr(times.dtype, "tz", None) is not None:
        times = (times.dt if hasattr(times, "dt") else times).tz_convert(None)
    array = plain(without_nulls(times, field))
    if array.ndim != 1:
        raise InvalidArgument(f"{field} must be one-dimensional, not of shape {array.shape}", field=field)
    if array.dtype.kind in "OUT" or not (array.size or hasattr(times, "dtype") or is_arrow(times)):
        array = _from_objects(array, unit, field)
    if array.dtype.kind == "M":
        return _from_instants(array, unit, field)
    if array.dtype.kind not in "iu":
        raise InvalidArgument(f"{field} must be integer ticks or instants, not {array.dtype}", field=field)
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InvalidArgument(f"{field} {array.max()} is out of range", field=field, limit=_TICK_LIMIT)
    return np.ascontiguousarray(array, dtype="<i8")


def to_tick(time: TimeLike, unit: str, field: str = "time") -> int:
    """Return one time in ticks; takes and raises as `to_ticks`."""
    # NumPy takes a timedelta64 for an integer.
    if isinstance(time, int | np.integer) and not isinstance(time, bool | np.timedelta64):
        tick = int(time)
        if not -(2**63) <= tick < 2**63:
            raise InvalidArgument(f"{field} {tick} is out of range", field=field, limit=_TICK_LIMIT)
        return tick
    if hasattr(time, "to_datetime64"):  # pandas.Timestamp: nanoseconds, which its base class datetime would lose
        time = time.to_datetime64()
    if isinstance(time, np.datetime64 | datetime):
        values = np.array([time], dtype=object) if isinstance(time, datetime) else np.array([time])
        return int(to_ticks(values, unit, field)[0])
    if isinstance(time, str):
        return _parse_time(time, unit, field)
    raise InvalidArgument(f"{field} must be a time, not {time!r}: {forms_of(unit)}", field=field)


_parse_time = refusing(parse_time)


def to_duration(duration: Duration, field: str) -> str:
    """Return a duration as the service reads it: "5m" and 90 stay, a timedelta is spelled: 1h30m."""
    if hasattr(duration, "to_timedelta64"):  # pandas.Timedelta: nanoseconds, which its base class timedelta would lose
        duration = duration.to_timedelta64()
    if isinstance(duration, np.timedelta64):
        return _of_timedelta64(duration, field)
    if isinstance(duration, timedelta):
        return spell_duration(duration // _MICROSECOND * 1000)
    if isinstance(duration, bool) or not isinstance(duration, str | int | np.integer):
        raise InvalidArgument(
            f"{field}: a duration ('5m'), ticks or a timedelta is wanted, not {duration!r}", field=field
        )
    return str(duration)


def _of_timedelta64(duration: np.timedelta64, field: str) -> str:
    unit, count = np.datetime_data(duration.dtype)
    if np.isnat(duration) or unit not in _NANOSECONDS:
        raise InvalidArgument(f"{field}: {duration!r} is not a whole number of nanoseconds", field=field)
    return spell_duration(int(duration.astype(np.int64)) * count * _NANOSECONDS[unit])


def _from_objects(array: npt.NDArray[Any], unit: str, field: str) -> npt.NDArray[Any]:
    items = array.tolist()
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        try:
            return np.array(items, dtype=np.int64)
        except OverflowError:
            raise InvalidArgument(f"{field} is out of range", field=field, limit=_TICK_LIMIT) from None
    if any(isinstance(item, str) for item in items):
        ticks = [
            _parse_time(item, unit, f"{field}[{i}]") if isinstance(item, str) else to_tick(item, unit, f"{field}[{i}]")
            for i, item in enumerate(items)
        ]
        return np.array(ticks, dtype=np.int64)
    microseconds = np.empty(len(items), dtype=np.int64)
    for i, item in enumerate(items):
        if not isinstance(item, datetime):
            raise InvalidArgument(f"{field} must be integer ticks or instants, not {item!r}", field=field)
        if item.tzinfo is None:
            raise InvalidArgument(f"{field} {item} has no time zone", field=field)
        microseconds[i] = (item - _EPOCH) // _MICROSECOND
    return microseconds.view("datetime64[us]")


def _from_instants(array: npt.NDArray[Any], unit: str, field: str) -> Ticks:
    if unit == "none":
        raise InvalidArgument(f"{field} is an instant, but the window counts logical ticks", field=field)
    refuse_missing(np.isnat(array), field)
    found, count = np.datetime_data(array.dtype)
    if found in ("Y", "M"):
        array, found, count = array.astype("datetime64[D]"), "D", 1
    if found not in _NANOSECONDS:
        raise InvalidArgument(f"{field} in {array.dtype} is finer than a nanosecond", field=field)
    ticks: Ticks = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).view("<i8")
    return _rescale(ticks, count * _NANOSECONDS[found], _NANOSECONDS[unit], unit, field)


def _rescale(ticks: Ticks, found_ns: int, wanted_ns: int, unit: str, field: str) -> Ticks:
    if found_ns % wanted_ns == 0:
        factor = found_ns // wanted_ns
        bound = (2**63 - 1) // factor
        if factor > 1 and ticks.size and not -bound <= int(ticks.min()) <= int(ticks.max()) <= bound:
            raise InvalidArgument(f"{field} is out of range in {unit}", field=field, limit=_TICK_LIMIT)
        scaled: Ticks = ticks if factor == 1 else ticks * factor
        return scaled
    # A multiple of the finer unit need not divide the coarser one (datetime64[7ms] into s): go through the finer.
    common = np.gcd(found_ns, wanted_ns).item()
    fine = _rescale(ticks, found_ns, common, unit, field)
    factor = wanted_ns // common
    coarse: Ticks = fine // factor
    broken = np.flatnonzero(coarse * factor != fine)
    if broken.size:
        raise InvalidArgument(
            f"{field}[{broken[0]}] is not a whole number of ticks ({unit}); round it first if that is meant",
            field=field,
        )
    return coarse
