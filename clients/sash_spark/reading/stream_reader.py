"""`readStream.format("sash")`: the entries of a window, or the buckets of a series, in order of time.

    ──── read before ────┤──── micro-batch ────┤──── delay ────┤ newest entry
                       start                  end              ▲ nothing of here is read yet

An offset is `{"time": tick}`: everything up to this tick is read. A micro-batch has what the window holds between two
offsets, so Spark may read it again, after a failure or a restart. Nothing is remembered but the offset.

Two things could make a stream lose entries. Both are looked for:

    evicted    After a task has read, the window's slide policy must not have evicted entries that are newer than
               `start`. Otherwise the task fails. Entries that somebody evicts or retracts are not looked for.
    late       An entry that comes when the stream has read past its time is never read. The option `delay` says how
               much older than the newest entry such an entry may be. Where entries come in order, it is not needed,
               unless keys are on several shards: a write that meets a process that ends is on some of them at once,
               and on the others when its producer has sent it again. Where a window is punctuated, the stream reads
               up to there, and no entry comes later.

Cost: each task is one call of `entries` (or `series`), and one description of the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sash_client import DataLoss, FailedPrecondition, InvalidArgument, WindowInfo
from sash_client.errors import refusing
from sash_spark.reading.planning import Share
from sash_spark.reading.question import Question
from sash_spark.reading.reader import Reader
from sash_wire.durations import parse_duration

_NOTHING = -(2**63)
"""The offset of a stream that has read nothing, of a window that has evicted nothing."""
_REFUSED = ("end", "lookback", "as_of", "width")
_DURATION = refusing(parse_duration)


@dataclass(frozen=True)
class Slice(InputPartition):
    """What one task reads: a share of a micro-batch that begins after `start`."""

    share: Share
    start: int


class StreamReader(DataSourceStreamReader):
    """Plans on the driver and reads in the tasks. Spark pickles it in between.

    Args:
        question: what to read.
        wanted: the columns that Spark wants.

    Raises:
        InvalidArgument: the options do not fit a stream, or the window.
    """

    def __init__(self, question: Question, wanted: StructType) -> None:
        if question.what == "answers":
            raise InvalidArgument(
                "a stream has entries or a series: answers change with every entry, and an answer that has changed "
                "cannot be read again",
                field="what",
            )
        for option in _REFUSED:
            if getattr(question, "lookbacks" if option == "lookback" else option):
                raise InvalidArgument(f"a stream takes no {option}", field=option)
        self._question, self._wanted = replace(question, delay=None), wanted
        reader = self._reader(0, 0)
        spec, self._unit = reader.info.spec, reader.shape.unit
        if spec.get("idle_expiry"):
            raise InvalidArgument(
                f"window {question.window!r} drops keys that are idle, so a stream may miss their entries",
                field="window",
            )
        self._is_punctuated = bool(spec["slide"].get("until"))
        if self._is_punctuated and question.delay:
            raise InvalidArgument(
                f"window {question.window!r} is punctuated: a stream reads up to there, without a delay", field="delay"
            )
        if not (self._is_punctuated or question.delay) and spec["keyed"]:
            with question.client() as client:
                shards = client.topology().shards
            if shards > 1:
                raise InvalidArgument(
                    f"the keys of window {question.window!r} are on {shards} shards, which get their share of a write "
                    "at different moments. Say how much older than the newest entry another one may be: the time that "
                    "a producer may need to send a write again after a process has ended",
                    field="delay",
                )
        self._delay = _DURATION(question.delay, self._unit, "delay") if question.delay else 0
        self._step = _DURATION(question.step, self._unit, "step") if question.what == "series" and question.step else 1
        self._first = None if question.start is None else reader.shape.tick(question.start, "start") - 1

    # ---------------------------------------------------------------- on the driver

    def initialOffset(self) -> dict[str, int]:
        """Begin at `start`; without it, with everything that is newer than what the window has evicted."""
        found = self._first
        if found is None:
            info = self._describe()
            found = info.evicted_through if info.counts.evicted else None
        return {"time": _NOTHING if found is None else -(-(found + 1) // self._step) * self._step - 1}

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:
        """Return the newest tick that is final; before Spark 4.2 there are no arguments.

        Raises:
            FailedPrecondition: the window is older than the offset, so it is another one.
        """
        before = _NOTHING if start is None else start["time"]
        info = self._describe()
        newest = info.punctuated if self._is_punctuated else info.high_water_mark
        if before > max(self._first or _NOTHING, _NOTHING) and (newest is None or newest < before):
            raise FailedPrecondition(
                f"the stream has read window {info.name!r} up to {before}, and the window has never had an entry of "
                "that time: it is another one. Start from a new checkpoint",
                field="checkpointLocation",
            )
        if newest is None:
            return {"time": before}
        final = newest if self._is_punctuated else newest - self._delay - 1
        return {"time": max(before, (final + 1) // self._step * self._step - 1)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Slice]:
        """Plan the tasks of a micro-batch."""
        if start["time"] >= end["time"]:
            return []
        shares = self._reader(start["time"], end["time"]).partitions()
        return [Slice(share, start["time"]) for share in shares]

    def _describe(self) -> WindowInfo:
        with self._question.client() as client:
            return client.window(self._question.window).describe()

    def _reader(self, start: int, end: int) -> Reader:
        """A reader of a range of time."""
        between = replace(
            self._question,
            start=None if start == _NOTHING else str(start + 1),
            end=str(end + 1 if self._question.what == "series" else end),
            partitions=self._question.partitions or 1,
        )
        return Reader(between, self._wanted)

    # ---------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a task as Arrow batches.

        Raises:
            DataLoss: entries were evicted before they were read.
        """
        assert isinstance(partition, Slice)
        yield from self._reader(0, 0).read(partition.share)
        info = self._describe()
        through = info.evicted_through
        if through is None or (partition.start == _NOTHING and not info.counts.evicted):
            return
        if through > partition.start:
            read = "nothing" if partition.start == _NOTHING else f"up to {partition.start}"
            raise DataLoss(
                f"window {info.name!r} has evicted entries up to {through} ({self._unit}), and the stream had read "
                f"{read}: some may be missing. Let the window keep more, or begin again with a new checkpoint",
            )
