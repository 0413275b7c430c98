"""Windows as tools of a model: the package's own client, in memory and over standard input and output."""

import json
import os
import sys

import pytest
from mcp import Client as ModelClient
from mcp import StdioServerParameters

from sash_cli import tools
from sash_client import Client
from tests.support.clients import client_of
from tests.support.servers import running_service
from tests.support.tokens import write_tokens

READING = ["list_windows", "describe_window", "list_keys", "query", "range", "series"]
START = 1_700_000_000_000_000
MINUTE = 60_000_000
SPEC = {
    "name": "delays",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"mean": {"function": "mean", "field": "delay"}, "count": {"function": "count"}},
    "slide": {"max_age": "1d"},
}


@pytest.fixture
def client(service):
    with client_of(service.grpc_target) as client:
        yield client


@pytest.fixture
def delays(client):
    """Ten minutes of 6 airports and 20 carriers: the delay is the number of the airport, twice in the last minute."""
    window = client.create_window(SPEC)
    keys = [(f"A{airport}", f"C{carrier:02}") for airport in range(6) for carrier in range(20)]
    for minute in range(10):
        window.bulk_insert(
            [START + minute * MINUTE] * len(keys),
            {"delay": [float(airport[1:]) * (2 if minute == 9 else 1) for airport, _ in keys]},
            keys={"airport": [airport for airport, _ in keys], "carrier": [carrier for _, carrier in keys]},
        )
    return window


@pytest.fixture
def ask(client):
    """Call a tool in memory; return its answer as a document, or the text of its error."""

    async def ask(tool, write=False, **arguments):
        async with ModelClient(tools.server(client, write)) as model:
            return answer_of(await model.call_tool(tool, arguments))

    return ask


def answer_of(result):
    (content,) = result.content
    return content.text if result.is_error else json.loads(content.text)


def column(answer, name):
    return [row[answer["columns"].index(name)] for row in answer["rows"]]


async def test_a_model_lists_and_describes(client, delays, ask):
    assert await ask("list_windows") == {
        "columns": ["window", "entries", "keys", "newest", "problem"],
        "rows": [["delays", 1200, 120, "2023-11-14T22:22:20.000000Z", None]],
    }
    assert (await ask("list_windows", prefix="x"))["rows"] == []
    described = await ask("describe_window", window="delays")
    assert (described["entries"], described["keys"], described["counts"]["inserted"]) == (1200, 120, 1200)
    assert (described["spec"]["keys"], described["newest"]) == (["airport", "carrier"], "2023-11-14T22:22:20.000000Z")
    keys = await ask("list_keys", window="delays", where=["airport=A1"], limit=3)
    assert len(keys["rows"]) == 3
    assert keys["cut"] == "the first 3 rows; there are more"
    assert "cut" not in await ask("list_keys", window="delays", where=["airport=A1"], limit=20)


async def test_a_model_asks_lookbacks_and_groups(delays, ask):
    one = await ask(
        "query", window="delays", lookbacks=["1m", "1h"], key={"airport": "A3", "carrier": "C07"}, aggregates=["mean"]
    )
    assert one["columns"] == ["airport", "carrier", "lookback", "start", "end", "entries", "mean"]
    assert [row[:3] + row[5:] for row in one["rows"]] == [["A3", "C07", "1m", 1, 6.0], ["A3", "C07", "1h", 10, 3.3]]
    top = await ask("query", window="delays", by=["airport"], lookbacks=["1m"], top="mean", n=2, having=["mean < 10"])
    assert (column(top, "airport"), column(top, "mean")) == (["A4", "A3"], [8.0, 6.0])
    last = await ask("query", window="delays", by=["airport"], top="mean", n=1, order="asc")
    assert column(last, "airport") == ["A0"]
    together = await ask("query", window="delays", all_keys=True, combine=True, as_of="2023-11-14T22:13:20Z")
    assert column(together, "entries") == [120]


async def test_a_model_asks_ranges_and_series(delays, ask):
    times = {"start": str(START), "end": str(START + 2 * MINUTE)}
    whole = await ask("range", window="delays", all_keys=True, **times)
    assert (whole["columns"][0], column(whole, "entries")) == ("lookback", [240])  # the end is not included
    groups = await ask("range", window="delays", where=["airport in (A1, A2)"], by=["airport"], **times)
    assert (column(groups, "airport"), column(groups, "mean")) == (["A1", "A2"], [1.0, 2.0])
    assert (await ask("range", window="delays", by=["carrier"], limit=5, **times))["cut"].startswith("the first 5 rows")
    assert "cut" not in await ask("range", window="delays", by=["carrier"], limit=20, **times)
    series = await ask("series", window="delays", step="1m", where=["airport=A2"], **times)
    assert series == {
        "columns": ["time", "entries", "count", "mean"],
        "rows": [["2023-11-14T22:13:20.000000Z", 20, 20, 2.0], ["2023-11-14T22:14:20.000000Z", 20, 20, 2.0]],
    }
    grouped = await ask("series", window="delays", step="1m", by=["airport"], top="mean", n=1, **times)
    assert column(grouped, "airport") == ["A5", "A5"]


async def test_answers_are_cut_and_say_so(client, delays, ask, monkeypatch):
    everything = await ask("query", window="delays", all_keys=True)
    assert (len(everything["rows"]), everything["cut"]) == (100, "the first 100 rows; there are more")
    times = {"start": str(START), "end": str(START + 200 * MINUTE)}
    series = await ask("series", window="delays", step="1m", all_keys=True, **times)
    assert (len(series["rows"]), series["cut"]) == (100, "the first 100 of 200 rows; there are more")
    (header, (row,)) = (await ask("list_windows")).values()
    size = len(tools._json(header)) + len(tools._json(row)) + 1
    for room, rows in ((0, [row]), (-1, [])):
        monkeypatch.setattr(tools, "CHARACTERS", size + room)
        assert (await ask("list_windows"))["rows"] == rows
    monkeypatch.setattr(tools, "CHARACTERS", len(whole := tools._json({"a": 1})))
    assert tools._document({"a": 1}) == whole
    monkeypatch.setattr(tools, "CHARACTERS", 1000)
    short = await ask("query", window="delays", all_keys=True)
    assert 5 <= len(short["rows"]) < 20
    assert "there are more" in short["cut"]
    assert (await ask("describe_window", window="delays"))["entries"] == 1200  # it is short enough
    monkeypatch.setattr(tools, "CHARACTERS", 100)
    async with ModelClient(tools.server(client)) as model:
        (content,) = (await model.call_tool("describe_window", {"window": "delays"})).content
    assert "… (cut: " in content.text
    assert len(content.text) < 150


async def test_long_values_are_shortened(client, ask):
    window = client.create_window(
        {
            "name": "texts",
            "time_unit": "none",
            "fields": {"text": "string", "x": "float64"},
            "aggregates": {
                "all": {"function": "collect", "field": "x"},
                "last": {"function": "last", "field": "text"},
                "mean": {"function": "mean", "field": "x"},
            },
            "slide": {"max_count": 100},
        }
    )
    window.bulk_insert(range(30), {"text": ["t" * 500] * 30, "x": [*map(float, range(29)), float("nan")]})
    (row,) = (await ask("query", window="texts"))["rows"]
    assert row[:4] == [None, "0", "29", 30]  # ticks stay ticks
    assert row[4] == [*map(float, range(20)), "… 10 more"]
    assert row[5:] == ["t" * 200 + "… (500 characters)", "NaN"]


async def test_errors_say_what_is_wrong(delays, ask):
    assert "no window" in await ask("query", window="nothing")
    assert "not a time" in await ask("range", window="delays", start="soon", end="1", all_keys=True)
    assert "(field: by)" in await ask("query", window="delays", by=["runway"])
    times = {"start": "1", "end": "2"}
    for tool in ("range", "series"):
        step = {"step": "1m"} if tool == "series" else {}
        for more in ({"top": "mean"}, {"having": ["mean > 1"]}):
            assert "top and having go with by" in await ask(
                tool, window="delays", all_keys=True, **times, **step, **more
            )
    assert "less than or equal to 100" in await ask("query", window="delays", by=["airport"], top="mean", n=101)
    assert "Unknown tool" in await ask("insert", window="delays", times=["1"], columns={"delay": [1.0]})


async def test_a_model_writes_only_where_it_may(client, ask):
    async with ModelClient(tools.server(client)) as model:
        listed = (await model.list_tools()).tools
    assert [each.name for each in listed] == READING
    assert all(each.annotations.read_only_hint for each in listed)
    async with ModelClient(tools.server(client, write=True)) as model:
        listed = (await model.list_tools()).tools
    assert [each.name for each in listed] == [*READING, "insert", "create_window"]
    assert [each.annotations.read_only_hint for each in listed[-2:]] == [False, False]
    spec = json.dumps(SPEC | {"name": "made"})
    assert await ask("create_window", write=True, spec=spec) == {"window": "made"}
    given = {"window": "made", "keys": {"airport": ["A", "A"], "carrier": ["C", "D"]}}
    done = await ask("insert", write=True, **given, times=["2024-01-01T00:00Z", "7"], columns={"delay": [1.0, 2.0]})
    assert (done["inserted"], done["late"], done["durability"]) == (2, 0, "memory")
    assert "delay" in await ask("insert", write=True, **given, times=["1", "2"], columns={"delay": [1.0]})
    assert "at most 1000" in await ask("insert", write=True, window="made", times=["1"] * 1001, columns={})
    assert client.window("made").describe().entries == 2


async def test_over_standard_input_with_the_callers_token(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"all": {"role": "admin"}, "other": {"windows": ["others-*"]}})
    with running_service(tokens=tokens) as service:
        with Client(service.grpc_target, token="all-token") as admin:
            admin.create_window(SPEC)
        started = StdioServerParameters(
            command=sys.executable,
            args=["-m", "sash.main", "mcp", "--target", service.grpc_target],
            env={**os.environ, "SASH_TOKEN": "all-token", "no_proxy": "127.0.0.1"},
        )
        async with ModelClient(started) as model:
            answer = answer_of(await model.call_tool("list_windows", {}))
        assert column(answer, "window") == ["delays"]
        for token, told in (("other-token", []), ("wrong-token", "token")):
            with Client(service.grpc_target, token=token) as caller:
                async with ModelClient(tools.server(caller)) as model:
                    answer = answer_of(await model.call_tool("list_windows", {}))
            assert (answer["rows"] == told) if token == "other-token" else (told in answer)
