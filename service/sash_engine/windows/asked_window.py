"""What a window is asked, with its arguments one by one; `Reader` has the questions as values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sash_engine.steps import finished
from sash_engine.windows.answers import Answer, Series
from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.entries import BULK_ROWS
from sash_engine.windows.keys import Keys
from sash_engine.windows.labels import Labels
from sash_engine.windows.questions import EntriesQuery, Grouped, KeyList, Query, RangeQuery, SeriesQuery, Where
from sash_engine.windows.reader import Reader
from sash_engine.windows.slide import Slide
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.view_keys import ViewKeys, ViewSlide

__all__ = ["AskedWindow"]


class AskedWindow:
    """The questions of a window."""

    spec: WindowSpec
    _reader: Reader
    _keys: Keys | ViewKeys
    _labels: Labels
    _slide: Slide | ViewSlide

    @property
    def reader(self) -> Reader:
        """What answers questions; another one once aggregates were added."""
        return self._reader

    def query(
        self,
        key: str | None = None,
        lookbacks: Sequence[str | int] = (),
        as_of: int | None = None,
        keys: KeyList = (),
        combine: bool = False,
        partials: bool = False,
        aggregates: Sequence[str] = (),
    ) -> list[Answer]:
        """Answer over trailing lookbacks, or over everything; see `Query` and `Reader.query`."""
        return self._reader.query(
            Query(key, lookbacks, as_of, keys, combine, partials, selection=Grouped(aggregates=aggregates))
        )

    def range_query(
        self,
        start: int,
        end: int,
        key: str | None = None,
        keys: KeyList = (),
        partials: bool = False,
        end_exclusive: bool = False,
        aggregates: Sequence[str] = (),
    ) -> Answer:
        """Answer over start <= time <= end; see `RangeQuery` and `Reader.range_query`."""
        question = RangeQuery(start, end, key, keys, partials, end_exclusive, selection=Grouped(aggregates=aggregates))
        return self._reader.range_query(question)

    def series(
        self,
        start: int,
        end: int,
        step: str | int,
        width: str | int | None = None,
        key: str | None = None,
        keys: KeyList = (),
        aggregates: Sequence[str] = (),
    ) -> Series:
        """Answer over buckets; see `SeriesQuery` and `Reader.series`."""
        return self._reader.series(
            SeriesQuery(start, end, step, width, key, keys, selection=Grouped(aggregates=aggregates))
        )

    def entries(
        self,
        start: int | None = None,
        end: int | None = None,
        key: str | None = None,
        keys: KeyList = (),
        rows: int = BULK_ROWS,
        end_exclusive: bool = False,
    ) -> Iterator[AnyBatch]:
        """The entries of a time range as of now; see `EntriesQuery` and `Reader.entries`."""
        return iter(self._reader.entries(EntriesQuery(start, end, key, keys, end_exclusive), rows))

    def key_names(
        self, prefix: str, limit: int, position: int = 0, where: Sequence[Where] = ()
    ) -> tuple[list[str], int | None]:
        """See `Plane.keys`."""
        return finished(self._reader.key_names_steps(prefix, limit, position, where))
