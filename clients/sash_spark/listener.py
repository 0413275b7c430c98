"""Counts of a window after each micro-batch: Spark has no metrics of its own for sinks and sources in Python.

    spark.streams.addListener(WindowListener("127.0.0.1:7070", "departure_delay", print))

    WindowProgress(name='flights', batch_id=3, rows=4096, inserted=4063, late=2, evicted=3100, …)

The counts are those of the window, by whoever writes to it: what has come since the micro-batch before. They work for
`format("sash")` and for `sash_sink`, whose `on_batch` also knows its own rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from sash_client import Counts, SashClientError
from sash_spark.login import Login

_log = logging.getLogger("sash_spark")


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """The progress of a window in a micro-batch.

    Args:
        name: of the streaming query; its id where it has none.
        batch_id: Spark's id of the micro-batch.
        rows: rows that Spark read.
        inserted, late, evicted, duplicates, ahead, retracted, corrected: how much the window's counts have grown.
        entries: how many the window has now.
    """

    name: str
    batch_id: int
    rows: int
    inserted: int
    late: int
    evicted: int
    duplicates: int
    ahead: int
    retracted: int
    corrected: int
    entries: int


_COUNTS = ("inserted", "late", "evicted", "duplicates", "ahead", "retracted", "corrected")


class WindowListener(StreamingQueryListener):
    """Asks the service for a window's counts after each micro-batch.

    Args:
        target: host and port of the gRPC edge, as the driver reaches it.
        window: name of a window that exists.
        on_batch: called on the driver, in a thread of Spark.
        query: name of the streaming query; None: all queries of the session.
        login: the credentials for the service.

    Raises:
        SashClientError: the service does not answer, or there is no such window. Later errors are logged.
    """

    def __init__(
        self,
        target: str,
        window: str,
        on_batch: Callable[[WindowProgress], None],
        *,
        query: str | None = None,
        login: Login | None = None,
    ) -> None:
        self._target, self._window, self._on_batch, self._query = target, window, on_batch, query
        self._login = login or Login()
        self._lock = Lock()
        self._before, _ = self._counts()

    def _counts(self) -> tuple[Counts, int]:
        with self._login.client(self._target) as client:
            info = client.window(self._window).describe()
        return info.counts, info.entries

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Report a micro-batch."""
        progress = event.progress
        if self._query not in (None, progress.name):
            return
        with self._lock:
            try:
                counts, entries = self._counts()
            except SashClientError as error:
                _log.warning("%s: no counts after batch %d: %s", self._window, progress.batchId, error)
                return
            grown = {name: getattr(counts, name) - getattr(self._before, name) for name in _COUNTS}
            self._before = counts
        name = progress.name or str(progress.id)
        self._on_batch(WindowProgress(name, progress.batchId, progress.numInputRows, entries=entries, **grown))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""
