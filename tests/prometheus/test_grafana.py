"""The dashboard of windows: Sash answers each request that Grafana's data source makes for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.prometheus.conftest import T, create, insert

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "windows.json").read_text())
VARIABLES = {"window": "w", "metric": "w:total", "part": "key", "value": ".*", "lookback": "5m"}
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def filled(text: str, **others: str) -> str:
    for name, value in (VARIABLES | others).items():
        text = text.replace(f"${name}", value)
    assert "$" not in text
    return text


def options(http: httpx.Client, query: str, **others: str) -> list[str]:
    """As the data source asks for `label_values(selector, label)` and `label_names(metric)`: in seconds, by GET."""
    query = filled(query, **others)
    if named := re.fullmatch(r"label_names\((.*)\)", query):
        path, selector = "labels", f'{{__name__=~".*{named[1]}.*"}}'
    else:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None
        path, selector = f"label/{found[2]}/values", found[1]
    parameters = {"match[]": selector, "start": T, "end": T + 600}
    answer = http.get(f"/prometheus/api/v1/{path}", params=parameters).json()
    assert answer["status"] == "success"
    values: list[str] = answer["data"]
    return values


def test_the_variables_of_the_dashboard_have_values(http: httpx.Client) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    names = options(http, variables["window"]["query"]["query"])
    windows = {found[1] for name in names if (found := re.match(variables["window"]["regex"].strip("/"), name))}
    assert windows == {"w"}
    assert options(http, variables["metric"]["query"]["query"]) == ["w:n", "w:p99", "w:total"]
    part, value = variables["part"]["query"]["query"], variables["value"]["query"]["query"]
    assert (options(http, part), options(http, value)) == (["__name__", "key"], ["a", "b"])
    assert variables["part"]["sort"] == 2, "the name comes last; only a window without keys has no other"
    assert "key" not in variables


@pytest.fixture
def parts(http: httpx.Client) -> Iterator[None]:
    """A window with parts, and one without keys."""
    common: dict[str, Any] = {"fields": {"v": "int64"}, "aggregates": {"total": {"function": "sum"}}}
    create(http, "ports", keys=["airport", "carrier"], **common)
    create(http, "bare", **common)
    times, key = [T + 590, T + 595, T + 598], {"airport": ["JFK", "LGA", "JFK"], "carrier": ["AA", "AA", "B6"]}
    insert(http, "ports", times, [1, 2, 4], key=key)
    insert(http, "bare", times, [1, 2, 4])
    yield
    for name in ("ports", "bare"):
        assert http.delete(f"/v1/windows/{name}").status_code == 200


@pytest.mark.usefixtures("parts")
def test_the_variables_are_the_parts_of_keys(http: httpx.Client) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    part, value = variables["part"]["query"]["query"], variables["value"]["query"]["query"]
    ports = {"window": "ports", "metric": "ports:total"}
    assert options(http, part, **ports) == ["__name__", "airport", "carrier"]
    assert options(http, value, **ports, part="airport") == ["JFK", "LGA"]
    assert options(http, part, window="bare", metric="bare:total") == ["__name__"]

    def answered(target: dict[str, Any], **others: str) -> list[dict[str, Any]]:
        form = {"query": filled(target["expr"], **others), "time": T + 600}
        answer = http.post("/prometheus/api/v1/query", data=form).json()
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    (by_key,) = [target for panel, target in TARGETS if panel == "$metric by key"]
    for part, value, totals in (("airport", "JFK", "14"), ("carrier", "AA", "12"), ("carrier", ".*", "124")):
        series = answered(by_key, **ports, part=part, value=value)
        assert sorted(each["value"][1] for each in series) == list(totals)
        assert all({"airport", "carrier"} <= set(each["metric"]) for each in series)
    for _, target in TARGETS:
        if "offset" not in target["expr"]:
            assert answered(target, window="bare", metric="bare:total", part="__name__")


@pytest.mark.parametrize(("panel", "target"), TARGETS)
def test_the_panels_show_something(http: httpx.Client, panel: str, target: dict[str, Any]) -> None:
    form: dict[str, Any] = {"query": filled(target["expr"])}
    if target.get("instant"):
        path = "query"
        form["time"] = f"{T + 600}.123"
    else:
        path = "query_range"
        form |= {"start": T, "end": T + 7200, "step": "15"}
    answer = http.post(f"/prometheus/api/v1/{path}", data=form).json()
    assert answer["status"] == "success", answer
    assert answer["data"]["result"], panel


def test_the_data_source_is_this_api(http: httpx.Client) -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/sash.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    path = httpx.URL(source["url"]).path
    health = http.request(source["jsonData"]["httpMethod"], f"{path}/api/v1/query", data={"query": "1+1"})
    assert health.json()["data"]["result"][1] == "2"
    version = http.get(f"{path}/api/v1/status/buildinfo").json()["data"]["version"]
    assert version == source["jsonData"]["prometheusVersion"]


def test_other_requests_of_the_data_source(http: httpx.Client) -> None:
    """Of its query editor: names, labels with and without a selector and a limit, metadata, exemplars, rules."""
    for path, parameters in (
        ("label/__name__/values", {"start": T, "end": T + 1, "limit": 40000}),
        ("labels", {"match[]": 'w:n{key="a"}', "start": T, "end": T + 1, "limit": 40000}),
        ("label/key/values", {"match[]": '{__name__=~".+",__name__="w:n"}', "limit": 1000}),
        ("series", {"match[]": '{__name__="w:n"}', "start": T, "end": T + 1, "limit": 10}),
        ("metadata", {"limit": 5000}),
        ("query_exemplars", {"query": "w:n", "start": T, "end": T + 1}),
        ("rules", {}),
    ):
        answer = http.get(f"/prometheus/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.json()["status"] == "success"
