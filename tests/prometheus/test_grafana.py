"""The dashboard of windows: Sash answers each request that Grafana's data source makes for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.prometheus.conftest import T

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "windows.json").read_text())
VARIABLES = {"window": "w", "metric": "w:total", "key": ".*", "lookback": "5m"}
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def filled(text: str) -> str:
    for name, value in VARIABLES.items():
        text = text.replace(f"${name}", value)
    assert "$" not in text
    return text


def label_values(http: httpx.Client, query: str) -> list[str]:
    """As the data source asks for `label_values(selector, label)`: in whole seconds, by GET."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", filled(query))
    assert found is not None
    parameters = {"match[]": found[1], "start": T, "end": T + 600}
    answer = http.get(f"/prometheus/api/v1/label/{found[2]}/values", params=parameters).json()
    assert answer["status"] == "success"
    values: list[str] = answer["data"]
    return values


def test_the_variables_of_the_dashboard_have_values(http: httpx.Client) -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    names = label_values(http, variables["window"]["query"]["query"])
    windows = {found[1] for name in names if (found := re.match(variables["window"]["regex"].strip("/"), name))}
    assert windows == {"w"}
    assert label_values(http, variables["metric"]["query"]["query"]) == ["w:n", "w:p99", "w:total"]
    assert label_values(http, variables["key"]["query"]["query"]) == ["a", "b"]


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
