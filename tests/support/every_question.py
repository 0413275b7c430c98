"""Every kind of question, asked of a running service over every edge: gRPC, Connect, REST and PromQL.

    asked(grpc, rest)      creates windows, writes to them, asks, and deletes them; raises where two edges disagree

The same table of questions, in REST's words, goes over the drivers of `edges`. Each must have entries to answer about,
so that an answer is more than a refusal would be.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

from sash_client import ALL_KEYS, Client, Window
from tests.support.edges import Edge, OverClient, OverRest
from tests.support.servers import PLAIN

N = 6_000
"""Entries: of some keys more than a block."""

AIRPORTS, CARRIERS = ("JFK", "LGA", "EWR"), ("AA", "B6")
AGGREGATES: dict[str, Any] = {
    "n": {"function": "count"},
    "sum": {"function": "sum", "field": "delay"},
    "mean": {"function": "mean", "field": "delay"},
    "spread": {"function": "stddev", "field": "delay"},
    "worst": {"function": "max", "field": "delay"},
    "p90": {"function": "quantile", "field": "delay", "q": 0.9, "k": 8_192},
    "planes": {"function": "distinct_count", "field": "plane"},
}
BASE: dict[str, Any] = {"time_unit": "s", "fields": {"delay": "float64", "plane": "int64"}, "aggregates": AGGREGATES}
PARTS = {"keys": ["airport", "carrier"]}
WINDOWS: dict[str, dict[str, Any]] = {
    "entries": BASE | PARTS,
    "panes": BASE | PARTS | {"granularity": "10s", "slide": {"max_age": "1h"}},
    "kept": BASE | PARTS | {"rollups": [["airport"], []]},
    "minutes": BASE | PARTS | {"from": {"window": "entries", "granularity": "1m"}},
    "alone": BASE,
    "steady": BASE | {"slide": {"adaptive": {"field": "delay"}}},
    "until": BASE | {"slide": {"max_age": "45m", "when": "total.entries - old.entries >= 5000"}},
    "named": BASE | {"fields": BASE["fields"] | {"id": "int64"}, "identity": "id"},
}
VIEWS: dict[str, dict[str, Any]] = {
    of + "_view": {
        "of": of,
        "slide": {"max_age": "45m"},
        "aggregates": {"count": {"function": "count"}, "sum": AGGREGATES["sum"]},
    }
    for of in ("entries", "panes", "alone")
}
ALL = {"all_keys": True}
OF_KEYS: dict[str, list[dict[str, Any]]] = {
    "query": [
        {"key": "JFK|AA"},
        {"key": "JFK|AA", "lookback": ["1m", "20m"]},
        {"key": "JFK|AA", "lookback": ["1m"], "as_of": 2_000},
        {"key": "JFK|AA", "aggregate": ["sum"]},
        {"key": ["JFK|AA", "LGA|B6"]},
        ALL,
        ALL | {"combine": True},
        ALL | {"combine": True, "lookback": ["2m"], "aggregate": ["sum"]},
        ALL | {"partials": True},
        {"where": "airport = JFK"},
        {"where": "carrier =~ A.*", "aggregate": ["sum"]},
        {"by": ["airport"]},
        {"by": ["airport"], "lookback": ["5m"]},
        {"by": ["airport"], "where": "carrier = AA", "aggregate": ["sum"]},
        {"by": ["carrier"], "top": "sum", "n": 1},
        {"by": ["airport"], "having": "sum > 0"},
        {"top": "sum", "n": 2, "order": "asc"},
        {"by": ["airport"], "limit": 1},
    ],
    "range": [
        {"key": "JFK|AA"},
        ALL,
        ALL | {"aggregate": ["sum"]},
        {"where": "airport = JFK", "end_exclusive": True},
        {"key": "LGA|B6", "partials": True},
        {"by": ["airport"]},
        {"by": ["airport"], "top": "sum", "n": 2, "aggregate": ["sum"]},
        {"by": ["carrier"], "having": "sum > 0"},
    ],
    "series": [
        {"key": "JFK|AA", "step": "5m"},
        {"key": "JFK|AA", "step": "5m", "width": "15m", "aggregate": ["sum"]},
        ALL | {"step": "10m"},
        {"where": "airport = LGA", "step": "10m"},
        {"key": "JFK|AA", "gap": "2m"},
        {"by": ["airport"], "step": "10m"},
        {"by": ["airport"], "step": "10m", "top": "sum", "n": 1, "aggregate": ["sum"]},
    ],
}
OF_ONE = {
    "query": [{}, {"lookback": ["1m", "5m"]}, {"aggregate": ["sum"]}, {"partials": True}],
    "range": [{}, {"aggregate": ["sum"]}],
    "series": [{"step": "5m"}, {"step": "5m", "aggregate": ["sum"]}, {"gap": "1s"}],
}
START, END = 600, 2_400
EXPRESSIONS = (
    "entries:sum",
    "sum by (airport) (entries:sum)",
    'max_over_time(entries:delay{airport="JFK"}[5m])',
    "sum_over_time(alone:delay[10m])",
    "topk(2, entries:mean)",
    "avg(panes:mean) without (carrier)",
    "kept:n > 5",
    "entries_view:count",
)


def rows(n: int = N) -> dict[str, Any]:
    """Columns of entries, the same each time."""
    random = np.random.default_rng(5)
    return {
        "time": np.sort(random.integers(0, 3_000, n)),
        "delay": random.normal(10.0, 3.0, n).round(3),
        "plane": random.integers(0, 200, n),
        "airport": np.array(AIRPORTS)[random.choice(3, n, p=[0.6, 0.3, 0.1])],
        "carrier": np.array(CARRIERS)[random.integers(0, 2, n)],
        "id": np.arange(n),
    }


def asked(grpc_target: str, rest_url: str) -> int:
    """Ask everything; return how many answers were compared.

    Args:
        grpc_target: such as "127.0.0.1:7070".
        rest_url: such as "http://127.0.0.1:7071".
    """
    count = 0
    with Client(grpc_target) as grpc, Client(rest_url, grpc_target=grpc_target) as connect, _http(rest_url) as http:
        edges = [OverClient(grpc), OverClient(connect), OverRest(http)]
        for name, spec in (WINDOWS | VIEWS).items():
            grpc.create_window({"name": name, **spec})
        for name, spec in WINDOWS.items():
            _fill(grpc.window(name), spec)
        for name, spec in (WINDOWS | VIEWS).items():
            keyed = "keys" in WINDOWS[spec.get("of", name)]
            for method, questions in (OF_KEYS if keyed else OF_ONE).items():
                for question in questions:
                    if "of" in spec or "partials" not in question:
                        count += _compare(method, name, question, edges)
        _ask_of_rows(grpc.window("entries"), connect.window("entries"), http)
        _change(grpc.window("named"))
        _promql(http)
        for name in reversed(WINDOWS | VIEWS):
            grpc.delete_window(name)
    return count


def _http(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, **PLAIN)


def _fill(window: Window, spec: dict[str, Any]) -> None:
    if "from" in spec:
        return  # its source feeds it
    columns = rows()
    fields = {name: columns[name] for name in spec["fields"]}
    keys = {name: columns[name] for name in spec["keys"]} if "keys" in spec else None
    some = slice(0, N // 2)
    for part in (some, slice(N // 2, N)):
        given = None if keys is None else {name: column[part] for name, column in keys.items()}
        window.bulk_insert(columns["time"][part], {name: each[part] for name, each in fields.items()}, keys=given)
    one = {name: column[-1].item() for name, column in fields.items()}
    window.insert(2_999, fields=one, key=None if keys is None else "JFK|AA", answer=True, lookbacks=["1m"])


def _compare(call: str, name: str, question: dict[str, Any], edges: list[Edge]) -> int:
    span = {} if call == "query" else {"start": START, "end": END}
    first, *others = [_told(edge.made(call, name, **question, **span)) for edge in edges]
    assert all(first == other for other in others), (name, call, question, first, others)
    counts = [count for _, _, entries, _ in first for count in np.atleast_1d(entries)]
    assert any(counts), (name, call, question)
    return len(counts)


def _told(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Of answers or series: key, parts, numbers of entries and aggregates."""
    some = document.get("answers") or document.get("groups") or [document]
    return [(each["key"], each.get("parts"), each["entries"], each["aggregates"]) for each in some]


def _ask_of_rows(grpc: Window, connect: Window, http: httpx.Client) -> None:
    path = f"/v1/windows/{grpc.name}"
    for where in ({}, {"key": "JFK|AA"}, {"where": "airport = LGA"}):
        counts = [sum(map(len, window.entries(START, END, **where))) for window in (grpc, connect)]
        answer = http.get(f"{path}/entries", params={"start": START, "end": END, **(where or {"all_keys": "true"})})
        assert counts == [sum(len(bulk["time"]) for bulk in answer.json()["bulks"])] * 2, (where, counts)
        assert counts[0] > 0
    assert len(list(grpc.keys())) == len(list(connect.keys())) == len(http.get(f"{path}/keys").json()["keys"]) == 6
    watched = next(iter(grpc.watch(keys=ALL_KEYS)))
    assert watched == grpc.query(keys=ALL_KEYS)
    with http.stream("GET", f"{path}/watch", params={"all_keys": "true"}) as events:
        first = next(line for line in events.iter_lines() if line.startswith("data:"))
    answers = json.loads(first.removeprefix("data:"))["answers"]
    assert [each["entries"] for each in answers] == [each.entries for each in watched]
    assert [grpc.describe().entries, connect.describe().entries] == [http.get(path).json()["entries"]] * 2
    asked = {"start": START, "end": END, "step": "10m", "key": "JFK|AA"}
    arrow = http.get(f"{path}/series", params=asked, headers={"accept": "application/vnd.apache.arrow.stream"})
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert table.column("entries").to_pylist() == grpc.series(START, END, step="10m", key="JFK|AA").entries.tolist()


def _change(window: Window) -> None:
    """Single entries leave and get other values; aggregates are added; a range leaves."""
    columns = rows()
    some = slice(100, 160)
    assert window.retract(columns["time"][some], columns["id"][some]).retracted == 60
    more = {name: columns[name][200:260] for name in ("delay", "plane", "id")}
    assert window.update(columns["time"][200:260], more).corrected == 60
    window.add_aggregates({"least": {"function": "min", "field": "delay"}})
    assert window.bulk_evict(500).evicted > 0
    assert window.query(aggregates=["least", "n"])[0].aggregates["n"] == window.query()[0].entries


def _promql(http: httpx.Client) -> None:
    for expression in EXPRESSIONS:
        for path, times in (("query", {"time": END}), ("query_range", {"start": START, "end": END, "step": 300})):
            answer = http.get(f"/prometheus/api/v1/{path}", params={"query": expression, **times}).json()
            assert answer["status"] == "success", (expression, answer)
            assert answer["data"]["result"], (expression, path)
    matched = {"match[]": '{__name__=~".+"}'}
    assert "entries:sum{" in http.get("/prometheus/federate", params=matched).text
    assert http.get("/prometheus/api/v1/labels").json()["data"]
