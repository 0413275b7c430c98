"""What a notebook and `help` show of the client, and what its tables are made from."""

import inspect
import pickle
import sys
import types

import polars as pl
import pytest

import sash_client
from sash_client import Answer, Bulk, Client, InvalidArgument, Window
from sash_client.aio import AsyncClient
from tests.support.servers import running_service

SPEC = {
    "name": "shown",
    "time_unit": "s",
    "keyed": True,
    "fields": {"delay": "float64", "carrier": "string"},
    "nullable": ["carrier"],
    "aggregates": {"n": {"function": "count"}, "all": {"function": "collect", "field": "carrier"}},
}


@pytest.fixture(scope="module")
def window():
    with running_service() as service, Client(service.grpc_target) as client:
        made = client.create_window(SPEC)
        made.bulk_insert([10, 20], {"delay": [1.0, 2.0], "carrier": ["<b>", "AA"]}, keys=["a", "a"])
        yield made


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("query", "Answers"),
        ("range_query", "RangeAnswer"),
        ("range_groups", "Answers"),
        ("series", "Series"),
        ("series_groups", "list[Series]"),
        ("watch", "Iterator[Answers]"),
        ("entries", "Entries"),
        ("keys", "list[str]"),
        ("insert", "WriteResult"),
    ],
)
def test_help_shows_the_answer(name, answer):
    method = getattr(Window, name)
    assert inspect.signature(method).return_annotation == answer
    assert method.__annotations__["return"] == answer


def test_no_method_answers_with_a_plan():
    for name, method in inspect.getmembers(Window, inspect.isfunction):
        assert "Plan[" not in str(inspect.signature(method)), name


def test_the_version():
    assert sash_client.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="nothing"):
        sash_client.nothing  # noqa: B018


def test_short_forms(window):
    series = window.series(10, 30, step=10, key="a", aggregates=["n"])
    assert repr(series) == "Series('a', 2 buckets of 10 s, aggregates n)"
    assert repr(Bulk([1, 2], {"delay": [1.0] * 2})) == "Bulk(2 entries: delay)"
    assert repr(Bulk([1], [1.0])) == "Bulk(1 entries: value)"


def test_notebooks_show_tables_and_no_markup_of_others(window):
    shown = window.query(key="a")._repr_html_()
    assert "<th>entries</th>" in shown
    assert "1970-01-01T00:00:10Z" in shown
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    series = window.series(0, 100, step=1, key="a", aggregates=["n"])._repr_html_()
    assert series.count("<tr>") == 21
    assert "100 rows" in series


def test_a_range_is_a_table(window):
    found = window.range_query(10, 20, key="a")
    assert found.to_pandas()[["key", "entries", "n"]].to_numpy().tolist() == [["a", 2, 2]]
    assert found.to_arrow().num_rows == found.to_polars().height == 1
    plain = Answer("a", 10, 20, 2, {"all": ["<b>", "AA"], "n": 2})
    assert found == plain
    assert plain == found
    assert repr(found) == repr(plain)
    assert found != 1
    assert found != Answer("a", 10, 21, 2, plain.aggregates)
    assert pickle.loads(pickle.dumps(found)) == plain
    assert "<th>entries</th>" in found._repr_html_()


async def test_a_range_is_a_table_in_asyncio(window):
    async with AsyncClient(window._client.target) as client:
        found = await client.window("shown").range_query(10, 20, key="a")
        assert (await found.to_pandas())["n"].tolist() == [2]
        assert found._repr_html_() is None, "notebooks show it as text: its table is awaited"


@pytest.mark.parametrize(
    "bulk",
    [
        {"time": [30, 40], "key": ["b", "b"], "delay": [3.0, 4.0], "carrier": [None, "DL"]},
        [{"time": 30, "key": "b", "delay": 3.0}, {"time": 40, "key": "b", "delay": 4.0, "carrier": "DL"}],
        [
            {"time": "1970-01-01T00:00:30Z", "key": "b", "delay": 3.0},
            {"carrier": "DL", "time": 40, "key": "b", "delay": 4},
        ],
    ],
)
def test_dicts_are_bulks(window, bulk):
    assert window.bulk_insert(bulk).inserted == 2
    assert window.query(key="b", aggregates="n")[0].aggregates == {"n": 2}
    assert window.range_query(30, 40, key="b").aggregates["all"] == ["DL"]
    window.bulk_evict(40, key="b")


def test_wrong_dicts(window):
    with pytest.raises(InvalidArgument, match="no column 'time'"):
        window.bulk_insert({"key": ["b"], "delay": [1.0]})
    with pytest.raises(InvalidArgument, match="give either a data frame or columns"):
        window.bulk_insert({"time": [1]}, {"delay": [1.0]}, keys=["b"])


def test_notebooks_show_windows(window):
    shown = window._repr_html_()
    assert "<th>newest</th><td>1970-01-01T00:00:20Z</td>" in shown
    assert "<th>aggregates</th><td>all, n</td>" in shown
    assert "there is no window" in window._client.window("gone")._repr_html_()


def test_what_has_its_default_is_not_shown(window):
    found = window.insert(50, fields={"delay": 1.0, "carrier": None}, key="c")
    assert repr(found) == "WriteResult(inserted=1)"
    (answer,) = window.query(key="c", aggregates="n")
    assert repr(answer) == "Answer(key='c', start=50, end=50, entries=1, aggregates={'n': 1})"
    assert repr(window.range_query(50, 50, key="c", aggregates="n")) == repr(answer)
    assert repr(window.describe()).startswith("WindowInfo(name='shown', entries=3, keys=2, oldest=None, newest=50, ")
    window.bulk_evict(50, key="c")


def test_a_lazy_frame_is_a_bulk_and_has_pairs(window):
    rows = {"time": [30, 40], "key": ["b", "b"], "delay": [3.0, 4.0], "carrier": ["AA", "DL"]}
    lazy = pl.DataFrame(rows).lazy().filter(pl.col("delay") > 3)
    assert window.bulk_insert(lazy).inserted == 1
    assert len(Bulk.from_frame(lazy).times) == 1
    pairs = lazy.select("time", "key")
    assert window.answers_at(pairs, aggregates="n")["n"].to_list() == [1]
    found = window._client.answers_at(pairs, ["shown"], aggregates="n")
    assert found["shown_n"].to_list() == [1]
    window.bulk_evict(40, key="b")


def test_progress(window, monkeypatch, capsys):
    """A bar of tqdm, lines where it is not installed, or whatever function somebody gives."""
    rows = {"time": [30] * 5, "key": ["b"] * 5, "delay": [1.0] * 5, "carrier": ["AA"] * 5}
    monkeypatch.setattr(window._client, "bulk_entries_max", 2)
    seen = []
    window.bulk_insert(rows, progress=lambda *done: seen.append(done))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    window.bulk_insert(rows, progress=False)
    window.bulk_insert(rows, progress=None)
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    window.bulk_insert(rows, progress=True)
    window.answers_at([30, 40], keys="b", aggregates="n", progress=True)
    assert capsys.readouterr().err.splitlines() == [
        "2 of 5 entries",
        "4 of 5 entries",
        "5 of 5 entries",
        "2 of 2 pairs",
    ]
    bars = []

    class Bar:
        def __init__(self, **options):
            self.options, self.n, self.total, self.closed = options, 0, None, False
            bars.append(self)

        def update(self, more):
            assert not self.closed
            self.n += more

        def close(self):
            self.closed = True

    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    window.bulk_insert(rows, progress=True)
    (bar,) = bars
    assert (bar.n, bar.total, bar.closed, bar.options["unit"]) == (5, 5, True, " entries")
    window.bulk_evict(40, key="b")


def test_notebooks_show_logical_times_as_they_are(window):
    logical = window._client.create_window(
        {"name": "logical", "time_unit": "none", "aggregates": {"n": {"function": "count"}}}
    )
    logical.insert(17, 1.0)
    assert "<th>newest</th><td>17</td>" in logical._repr_html_()
