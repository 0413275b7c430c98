"""Answers about pairs from a table of history, in this process, without a service.

    entries   a table of all times ──▶ a window of the engine ─┐
    pairs     key   time ──────────────────────────────────────┴──▶ the rows of pairs with their answers

The question is the one that a client asks a service (`windows/questions.py`), and here the engine answers it. So
frames, types, names of columns and errors are those of `Window.answers_at`.

Nothing is forgotten: the table is the history. So what a spec says about which entries leave, and when, changes no
answer. What depends on the moment at which an entry arrives, or on another window, is refused.

The entries are written as those of a live window come: in order of time, a few of each key in a bulk. So they fill the
same blocks, and the answers are the same to the last bit, of which keys other keys are there beside. It needs
`sash[engine]`, and pyarrow for what is no frame of pandas or Polars.

    a    1 2 3 4 5       bulks    1 2   3 4   5        sorted by key and time, and cut after every few of each key
    b    1 2 3                    1 2   3
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sash_client import errors
from sash_client.calls.plans import performed
from sash_client.data.bulks import KEY, TIME, Bulk, Columns, bulk_of, checked, is_frame
from sash_client.data.libraries import imported
from sash_client.data.times import Duration
from sash_client.data.wire import to_spec
from sash_client.errors import InvalidArgument, SashClientError
from sash_client.windows import questions
from sash_client.windows.handle import Handle
from sash_engine.errors import SashError
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import AnswersAt, Where
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import fill_answers, read_int64, read_strings, to_bytes

P = ParamSpec("P")
R = TypeVar("R")

_TOGETHER = 256
"""Entries of a key in a bulk. From 512 on, half a block, they would become blocks of their own."""

_KEPT = ("name", "time_unit", "keyed", "keys", "fields", "nullable", "aggregates", "granularity", "identity")
"""What of a spec answers about the past depend on; and `order.equal_times`."""

_REFUSED: Mapping[str, str] = {
    "of": "a view shows the entries of another window; give the spec of that one, with the aggregates of the view",
    "from": "another window feeds this one; give the spec of that one",
    "slide.max_count": "what leaves depends on the entries, and not on their times alone",
    "slide.max_gap": "what leaves depends on the entries, and not on their times alone",
    "slide.when": "what leaves depends on the entries, and not on their times alone",
    "slide.adaptive": "what leaves depends on the entries, and not on their times alone",
    "order.ahead": "it depends on the wall time at which an entry arrives, which a table does not have",
}


def _translating(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that calls the engine: an error of the engine becomes the client's of the same name."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SashError as refused:
            names = [cls.__name__ for cls in type(refused).__mro__]
            kind = next((getattr(errors, name) for name in names if name in errors.__all__), SashClientError)
            raise kind(refused.message, reason=refused.reason(), field=refused.field, limit=refused.limit) from None

    return wrapped


@_translating
def answers_at(
    entries: Any,
    pairs: Any,
    spec: Mapping[str, Any] | str,
    *,
    entry_time: str | None = None,
    entry_key: str | None = None,
    keys: Any = None,
    time: str | None = None,
    key: str | None = None,
    lookbacks: Sequence[Duration] = (),
    where: Any = None,
    aggregates: str | Sequence[str] | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Any:
    """Answer about many pairs of a key and a time from a table of history, as a window with these entries answers.

        history = pyarrow.dataset.dataset("payments/")
        training = answers_at(history, labels, spec, key="card", time="paid", lookbacks=["1h", "1d"])

    Args:
        entries: a DataFrame of pandas or Polars, a Table, RecordBatch or Dataset of Arrow, RecordBatches, or whatever
            speaks Arrow's C stream. It has a column for each field; others are not read. Rows of one time count in
            their order. All of them are in memory.
        pairs: as of `Window.answers_at`, as are the arguments that are not listed here.
        spec: the window's, as `Client.create_window` takes it. Its rules about entries that leave have no effect:
            nothing does.
        entry_time, entry_key: the columns of `entries` with the times and the keys; by default "time" and "key", or,
            where keys have parts, those by the names of the parts.

    Returns:
        the frame with a column for each aggregate and lookback, see `Features`; of times the `Features` alone.

    Raises:
        InvalidArgument: the spec is wrong, or has a part that a table of history cannot answer by; `field` names it.
            Or a column does not fit.
    """
    of = spec_of_history(spec)
    message = to_spec(of.document())
    columns = checked(_bulk_of_entries(entries, message, entry_time, entry_key), message)
    window = Window(of)
    for rows in _bulks(columns, of.granularity_ticks or 1):
        window.bulk_insert(rows)
    plan = questions.answers_at(
        Handle(None, message.name, message),
        pairs,
        keys=keys,
        time=time,
        key=key,
        lookbacks=lookbacks,
        where=where,
        aggregates=aggregates,
        progress=progress,
    )
    return performed(plan, lambda ask: _answered(ask.request, window))


@_translating
def spec_of_history(spec: Mapping[str, Any] | str) -> WindowSpec:
    """Return a window's spec without what has no effect on a table of history.

    Raises:
        InvalidArgument: the spec is wrong, or has a part that a table of history cannot answer by; `field` names it.
    """
    given = WindowSpec.from_yaml(spec) if isinstance(spec, str) else WindowSpec.parse(spec)
    document = given.document()
    for path, why in _REFUSED.items():
        if path == "order.ahead" and given.order.too_far_ahead == "reject":
            continue  # such a window has refused what was too far ahead: all of its entries are in the table
        part, _, name = path.partition(".")
        found = document.get(part)
        if (found if not name else (found or {}).get(name)) is not None:
            raise InvalidArgument(f"{path}: {why}", field=path)
    kept = {name: document[name] for name in _KEPT if name in document}
    return WindowSpec.parse({**kept, "order": {"equal_times": given.order.equal_times}})


def _bulk_of_entries(entries: Any, spec: pb.WindowSpec, time: str | None, key: str | None) -> Bulk:
    """The entries as a bulk of the columns that a window has."""
    wanted = [time or TIME, key or KEY, *spec.keys, *spec.fields]
    if hasattr(entries, "to_table"):  # of a dataset, only these columns are read
        entries = entries.to_table(columns=[name for name in entries.schema.names if name in wanted])
    elif not is_frame(entries):
        pa = imported("pyarrow", f"a table of entries that is a {type(entries).__name__}")
        batches = hasattr(entries, "__arrow_c_stream__")
        entries = pa.table(entries) if batches else pa.Table.from_batches(list(entries))
    bulk = bulk_of(entries, time=time, key=key)
    columns = {name: column for name, column in bulk.columns.items() if name in wanted}
    return Bulk(bulk.times, columns, bulk.keys)


def _bulks(columns: Columns, pane: int) -> Iterator[Batch]:
    """The entries in bulks that have at most `_TOGETHER` entries of a key, each key's in order of time.

    Those of a pane of so many ticks stay in their order, which is that of arrival: a pane joins them so.
    """
    n, keys, codes = len(columns.times), None, np.zeros(len(columns.times), np.int64)
    if columns.keys is not None:
        distinct = Coded.of(columns.keys.dictionary)  # a dictionary of Arrow may have a string twice
        codes = distinct.codes[columns.keys.codes]
        keys = Coded(distinct.dictionary, codes)
    order = np.lexsort((columns.times // pane, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    rank = np.arange(n) - np.repeat(starts, np.diff(starts, append=n))
    turn = rank // _TOGETHER
    order = order[np.argsort(turn, kind="stable")]
    for rows in np.split(order, np.cumsum(np.bincount(turn))[:-1]):
        fields: dict[str, Any] = {
            name: column.rows(rows) if isinstance(column, Coded) else column[rows]
            for name, column in columns.fields.items()
        }
        yield Batch(columns.times[rows], fields, None if keys is None else keys.rows(rows))


def _answered(request: pb.AnswersAtRequest, window: Window) -> pb.AnswersAtResponse:
    keys = read_strings(request.key, KEY) if request.HasField("key") else None
    conditions: Sequence[Any] = request.where
    where = [Where(each.part, each.op or "=", list(each.values)) for each in conditions]
    question = AnswersAt(read_int64(request.time, TIME), keys, list(request.lookbacks), where, list(request.aggregates))
    response = pb.AnswersAtResponse()
    for each in finished(window.past.answers_at_steps(question)):
        message = response.answers.add(lookback=each.lookback or "", entries=to_bytes(each.entries))
        for name, answers in each.aggregates.items():
            fill_answers(message.aggregates[name], answers)
    return response
