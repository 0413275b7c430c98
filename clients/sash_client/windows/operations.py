"""Operations, declared once: methods of the client that blocks, and of the one that awaits, and of their windows.

                  of Client, Window      of AsyncClient, AsyncWindow
    performed     R                      Coroutine[R]
    answered      Answers                Coroutine[AsyncAnswers]
    watched       Iterator[Answers]      AsyncIterator[AsyncAnswers]
    entries       Entries                AsyncEntries

A method makes a plan (see `plans`), and the client performs it: `_perform` of the client for asyncio is a coroutine
function, so what the method returns is awaited there. `Blocks` and `Awaits` tell type checkers which one it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from sash_client.answers import Answer
from sash_client.calls.plans import AskStream, Plan
from sash_client.data.bulks import Bulk
from sash_client.data.tables import Answers, AsyncAnswers, AsyncEntries, Entries, RangeAnswer
from sash_client.windows import handle, questions, writes
from sash_client.windows.handle import Handle

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B", covariant=True)
A = TypeVar("A", covariant=True)


class Blocks:
    """What belongs to a client that blocks."""


class Awaits:
    """What belongs to a client for asyncio."""


def _told(method: Any, plan: Callable[..., Any], form: str = "{}") -> Any:
    """Have a method say what it answers, in place of the plan that is performed; an AsyncWindow's is awaited.

    Args:
        form: of the answer, around what the plan ends with.
    """
    found = re.fullmatch(r"Plan\[(?:AskStream\[)?(.*?)\]*", str(plan.__annotations__["return"]))
    assert found is not None
    inner = found[1] + "]" * found[1].count("[")
    method.__annotations__ = plan.__annotations__ | {"return": form.format(inner)}
    method.__signature__ = inspect.signature(plan).replace(return_annotation=form.format(inner))
    return method


class _Method(Protocol[P, B, A]):
    @overload
    def __get__(self, window: Blocks, kind: type) -> Callable[P, B]: ...

    @overload
    def __get__(self, window: Awaits, kind: type) -> Callable[P, A]: ...


def _performed(plan: Callable[Concatenate[Any, P], Plan[R]]) -> _Method[P, R, Coroutine[Any, Any, R]]:
    """Return the method that performs an operation."""

    @wraps(plan)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._client._perform(plan(self, *args, **kwargs))

    return cast("_Method[P, R, Coroutine[Any, Any, R]]", _told(method, plan))


def _answered(
    plan: Callable[Concatenate[Handle, P], Plan[list[Answer]]],
) -> _Method[P, Answers, Coroutine[Any, Any, AsyncAnswers]]:
    """Return the method for an operation that answers with a list of answers."""

    @wraps(plan)
    def tabular(window: Any, /, *args: P.args, **kwargs: P.kwargs) -> Plan[Any]:
        return window._answers((yield from plan(window, *args, **kwargs)), window._spec)

    return cast("_Method[P, Answers, Coroutine[Any, Any, AsyncAnswers]]", _told(_performed(tabular), plan, "Answers"))


def _ranged(
    plan: Callable[Concatenate[Handle, P], Plan[Answer]],
) -> _Method[P, RangeAnswer, Coroutine[Any, Any, RangeAnswer]]:
    """Return the method for an operation with one answer, which is also a table of one row."""

    @wraps(plan)
    def tabular(window: Any, /, *args: P.args, **kwargs: P.kwargs) -> Plan[Any]:
        answer = yield from plan(window, *args, **kwargs)
        return RangeAnswer.of(answer, window._answers([answer], window._spec))

    return cast(
        "_Method[P, RangeAnswer, Coroutine[Any, Any, RangeAnswer]]", _told(_performed(tabular), plan, "RangeAnswer")
    )


def _watched(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[list[Answer]]]],
) -> _Method[P, Iterator[Answers], AsyncIterator[AsyncAnswers]]:
    """Return the method for an operation whose answer is a stream of lists of answers."""

    def tabular(window: Operations, of: Plan[AskStream[list[Answer]]]) -> Plan[AskStream[Any]]:
        ask = yield from of
        return replace(ask, read=lambda message: window._answers(ask.read(message), window._spec))

    @wraps(plan)
    def method(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._client._streamed(tabular(self, plan(self, *args, **kwargs)))

    return cast("_Method[P, Iterator[Answers], AsyncIterator[AsyncAnswers]]", _told(method, plan, "Iterator[Answers]"))


def _read(
    plan: Callable[Concatenate[Handle, P], Plan[AskStream[Bulk]]],
) -> _Method[P, Entries, AsyncEntries]:
    """Return the method for an operation whose answer is a stream of entries."""

    @wraps(plan)
    def method(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self._entries(self._client._streamed(plan(self, *args, **kwargs)), self._spec)

    return cast("_Method[P, Entries, AsyncEntries]", _told(method, plan, "Entries"))


class Calls:
    """The calls about all windows that both clients have by the same names."""

    list_windows = _performed(handle.list_windows)
    topology = _performed(handle.topology)
    move_shard = _performed(handle.move_shard)
    delete_window = _performed(handle.delete_window)
    answers_at = _performed(questions.answers_of)

    @property
    def _client(self) -> Any:
        """Itself: what performs an operation is the client of its first argument."""
        return self


class Operations(Handle):
    """The operations that both clients have by the same names.

    Attributes:
        _answers, _entries: the classes of results that are tables, of this client.
        _spec: returns the window's spec, which is fetched once; awaited by the client for asyncio.
    """

    _answers: ClassVar[Any]
    _entries: ClassVar[Any]
    _spec: Callable[[], Any]

    describe = _performed(handle.describe)
    add_aggregates = _performed(handle.add_aggregates)
    keys = _performed(handle.keys)

    insert = _performed(writes.insert)
    bulk_insert = _performed(writes.bulk_insert)
    admit = _performed(writes.admit)
    bulk_admit = _performed(writes.bulk_admit)
    bulk_evict = _performed(writes.bulk_evict)
    last_write = _performed(writes.last_write)
    retract = _performed(writes.retract)
    update = _performed(writes.update)
    punctuate = _performed(writes.punctuate)
    stage = _performed(writes.stage)
    commit = _performed(writes.commit)

    query = _answered(questions.query)
    range_query = _ranged(questions.range_query)
    range_groups = _answered(questions.range_groups)
    series = _performed(questions.series)
    series_groups = _performed(questions.series_groups)
    answers_at = _performed(questions.answers_at)
    watch = _watched(questions.watch)
    entries = _read(questions.entries)
