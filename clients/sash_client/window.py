"""One window, from the outside: arrays in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sash_client import changes, handle, questions, writes
from sash_client.answers import Answer, Bulk, WriteResult
from sash_client.blocking import BlockingHandle
from sash_client.calls import Feed, Patience, received
from sash_client.errors import SashClientError
from sash_client.handle import Handle
from sash_client.plans import AskStream, Plan
from sash_client.producer import Producer
from sash_client.results import Answers, Entries
from sash_client.wire import spec_document
from sash_client.writes import BulkStream

__all__ = ["Window"]

P = ParamSpec("P")
R = TypeVar("R")


def _performed(plan: Callable[Concatenate[Handle, P], Plan[R]]) -> Callable[Concatenate[Window, P], R]:
    """Return the method that performs an operation."""

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._client._perform(plan(self, *args, **kwargs))

    return method


def _streamed(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[R]]],
) -> Callable[Concatenate[Window, P], Iterator[R]]:
    """Return the method that performs an operation whose answer is a stream."""

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        client = self._client
        ask = client._perform(plan(self, *args, **kwargs))
        for message in client._stream(ask.method, ask.request, Patience(None if ask.waits else client.timeout_s)):
            yield ask.read(message)

    return method


def _answered(
    plan: Callable[Concatenate[Handle, P], Plan[list[Answer]]],
) -> Callable[Concatenate[Window, P], Answers]:
    """Return the method for an operation that answers with a list of answers."""

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> Answers:
        return Answers(self._client._perform(plan(self, *args, **kwargs)), self._spec)

    return method


def _watched(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[list[Answer]]]],
) -> Callable[Concatenate[Window, P], Iterator[Answers]]:
    """Return the method for an operation whose answer is a stream of lists of answers."""
    streamed = _streamed(plan)

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Answers]:
        for answers in streamed(self, *args, **kwargs):
            yield Answers(answers, self._spec)

    return method


def _read(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[Bulk]]],
) -> Callable[Concatenate[Window, P], Entries]:
    """Return the method for an operation whose answer is a stream of entries."""
    streamed = _streamed(plan)

    @wraps(plan)
    def method(self: Window, /, *args: P.args, **kwargs: P.kwargs) -> Entries:
        return Entries(streamed(self, *args, **kwargs), self._spec)

    return method


class Window(BlockingHandle):
    """A handle on one named window; get it from `Client.window` or `Client.create_window`.

    It is cheap and holds no data. The window's spec, which says how times and values travel, is fetched once,
    when a call first needs it.

    Every method raises a `SashClientError`; `InvalidArgument` also before anything is sent.
    """

    @property
    def spec(self) -> Mapping[str, Any]:
        """The window's spec as a plain document."""
        return spec_document(self._spec())

    describe = _performed(handle.describe)
    add_aggregates = _performed(handle.add_aggregates)
    keys = _performed(handle.keys)

    insert = _performed(writes.insert)
    bulk_insert = _performed(writes.bulk_insert)
    bulk_evict = _performed(writes.bulk_evict)
    retract = _performed(changes.retract)
    update = _performed(changes.update)
    punctuate = _performed(changes.punctuate)
    stage = _performed(writes.stage)
    commit = _performed(writes.commit)

    query = _answered(questions.query)
    range_query = _performed(questions.range_query)
    range_groups = _answered(questions.range_groups)
    series = _performed(questions.series)
    series_groups = _performed(questions.series_groups)
    watch = _watched(questions.watch)
    entries = _read(questions.entries)

    def insert_stream(
        self, bulks: Iterable[Bulk], *, producer: str | None = None, sequence: int | None = None, epoch: int = 0
    ) -> Iterator[WriteResult]:
        """Insert bulk after bulk over one call, without waiting for answers in between; yield a result for each.

        It is faster than as many calls of `bulk_insert`. For single entries, or for retries, use a `producer`.

        The first error ends the call. What was yielded before is applied, the error's `applied` says what was applied
        of the bulk that failed, and nothing after it is. The client never sends it again by itself. A service that
        shuts down ends the call with `Unavailable`, after it has answered what it had begun.

        Args:
            bulks: any number of them, taken as the service takes them, in another thread. Any time may pass between
                two.
            producer, sequence, epoch: as in `bulk_insert`. Messages are numbered from `sequence` on over all bulks, so
                you can send again what was not answered.
        """
        client = self._client
        stream = BulkStream(self, self._spec(), producer, sequence, epoch, client.timeout_s)
        feed = Feed(message for bulk in bulks for message in stream.messages(bulk))
        try:
            for answer in received(client._started("InsertStream", feed), stream.patience, feed):
                if (done := stream.answered(answer)) is not None:
                    yield done
        except SashClientError as error:
            raise stream.failed(error) from None

    def producer(self, name: str, **options: Any) -> Producer:
        """Return a producer of this window. It numbers writes, gathers single entries into bulks and sends them.

        Args:
            name: the producer's name; only one producer at a time may use it.
            options: see `Producer`.
        """
        return Producer(self, name, **options)
