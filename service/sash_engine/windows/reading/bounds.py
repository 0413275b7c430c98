"""The times that questions are about, checked."""

from __future__ import annotations

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.windows.keys.keys import NEVER
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.questions import SeriesQuery
from sash_engine.windows.reading.costs import Costs
from sash_engine.windows.sliding.view_keys import Now
from sash_engine.windows.spec.window import TICK_MAX, WindowSpec, check_time, parse_duration


def check_sessions(question: SeriesQuery) -> None:
    """Check what goes with sessions, if the question asks for them.

    Raises:
        InvalidArgument: neither a step nor a gap, or both; or something that goes with buckets of one length only.
    """
    if question.gap is None:
        if not question.step:
            raise InvalidArgument("step is missing: give a step, or a gap for sessions", field="step")
        return
    others = {"step": bool(question.step), "width": question.width is not None, "keys": bool(question.keys)}
    others |= {
        "where": bool(question.selection.where),
        "by": question.selection.is_grouped,
        "partials": question.partials,
    }
    for name, given in others.items():
        if given:
            raise InvalidArgument(f"sessions are of one key and have no length: leave {name} out", field=name)


def bounds_of(question: SeriesQuery) -> tuple[int, int]:
    """Where a series starts and ends; raises as `buckets_of`."""
    start, end = question.start, question.end
    check_time(start, "start")
    check_time(end, "end")
    if start >= end:
        raise InvalidArgument(f"start {start} is not before end {end}", field="start", limit=str(end - 1))
    return start, end


def buckets_of(question: SeriesQuery, spec: WindowSpec, costs: Costs) -> tuple[Numbers, Numbers, int, int]:
    """Where the buckets of a series start and stop; how far it is from one to the next, and how long they are.

    Raises:
        InvalidArgument: start >= end, or more buckets than the limit.
    """
    check_sessions(question)
    start, end = bounds_of(question)
    unit = spec.time_unit
    every = parse_duration(question.step, unit, "step")
    wide = every if question.width is None else parse_duration(question.width, unit, "width")
    n = -((start - end) // every)
    costs.check_buckets(n)
    costs.need_buckets(n)
    # The last bucket starts before `end`, so only where it stops can be out of range.
    starts = np.array([start], np.int64) + np.arange(n) * (every if n > 1 else 0)
    return starts, np.minimum(starts, TICK_MAX - wide) + wide, every, wide


def last_of(start: int | None, end: int, end_exclusive: bool) -> int:
    """The last time of a range.

    Raises:
        InvalidArgument: `end` cannot be a time, or no time is in the range.
    """
    check_time(end, "end")
    last = end - 1 if end_exclusive else end
    if start is not None and start > last:
        wrong = "is not before" if end_exclusive else "is after"
        raise InvalidArgument(f"start {start} {wrong} end {end}", field="start", limit=str(last))
    return last


def trailing(slide: Now, as_of: int | None, mark: int | None) -> tuple[int, int] | None:
    """Now, from which lookbacks go back, and their newer end; None where there is no now yet.

    Args:
        mark: the newest time that was ever inserted into the keys that are asked about; None or `NEVER` before, and
            again once it was taken back behind the last entry.
    """
    if as_of is not None:
        return as_of, as_of
    if slide.until:
        now = slide.punctuated
        return None if now == NEVER else (now, now)
    if slide.wall:
        now = slide.now()
        return now, now if mark is None else max(now, mark)
    return None if mark is None or mark == NEVER else (mark, mark)


def trailing_each(slide: Now, as_of: int | None, marks: Numbers) -> tuple[Numbers, Numbers] | None:
    """As `trailing`, of many groups of keys: their nows, and the newer ends of their lookbacks, int64 (g,)."""
    if as_of is None and not slide.until:
        now = np.full(len(marks), slide.now()) if slide.wall else marks
        return now, np.maximum(now, marks)
    both = trailing(slide, as_of, None)
    return None if both is None else (np.full(len(marks), both[0]), np.full(len(marks), both[1]))
