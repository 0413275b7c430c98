"""Alerts with what people have: rules of `sash rules`, in promtool, vmalert, a real Prometheus and Alertmanager."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sash_client import Client, Window
from tests.support.ports import free_port
from tests.support.prometheus import PROMTOOL, http_of, process, running_prometheus
from tests.support.servers import Running
from tests.support.waiting import wait_until

ALERTMANAGER, VMALERT = shutil.which("prometheus-alertmanager"), shutil.which("vmalert")
SPEC = {
    "name": "delays",
    "time_unit": "ms",
    "keys": ["airport", "service"],
    "fields": {"delay": "float64"},
    "aggregates": {
        "mean": {"function": "mean", "field": "delay"},
        "count": {"function": "count"},
        "all": {"function": "collect", "field": "delay"},
    },
    "slide": {"max_age": "1h"},
}


@pytest.fixture
def delays(client: Client) -> Window:
    """By wall time, which is that of rules: JFK is late in the last five minutes, and EWR was before."""
    window = client.create_window(SPEC)
    now = time.time_ns() // 1_000_000
    for airport, delay, ago_ms in (("JFK", 30.0, 1000), ("JFK", 0.0, 1_200_000), ("EWR", 50.0, 1_200_000)):
        window.bulk_insert([now - ago_ms], {"delay": [delay]}, keys={"airport": [airport], "service": ["s"]})
    window.bulk_insert([now - 1000], {"delay": [1.0]}, keys={"airport": ["EWR"], "service": ["s"]})
    return window


@pytest.fixture
def rules(sash: Callable[..., Any], service: Running, tmp_path: Path) -> Callable[..., Path]:
    """Write the rules that the command prints into a file; return its path."""

    def rules(*arguments: str) -> Path:
        path = tmp_path / "rules.yaml"
        path.write_text(sash("rules", *arguments, service=service).out)
        return path

    return rules


@contextlib.contextmanager
def alertmanager(folder: Path) -> Iterator[httpx.Client]:
    """Run an Alertmanager of one machine."""
    if ALERTMANAGER is None:
        pytest.skip("prometheus-alertmanager is not installed")
    (folder / "alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    port = free_port()
    flags = [
        f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/alertmanager",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=error",
    ]
    with process(ALERTMANAGER, *flags) as running, http_of(port, running) as http:
        yield http


def alerts_of(http: httpx.Client) -> dict[str, dict[str, Any]]:
    """The alerts that an Alertmanager has, by airport."""
    return {each["labels"].get("airport", ""): each for each in http.get("/api/v2/alerts").json()}


def test_the_rules(rules: Callable[..., Path], delays: Window) -> None:
    made = yaml.safe_load(rules("delays", "mean > 10", "count=0", "--lookback", "5m", "--for", "1m").read_text())
    mean, count = made["groups"][0]["rules"]
    assert made["groups"][0]["name"] == "sash-delays"
    assert mean == {
        "alert": "delays_mean",
        "expr": 'delays:mean{__lookback__="5m"} > 10',
        "for": "1m",
        "labels": {"severity": "warning"},
        "annotations": {
            "summary": 'mean of delays over 5m is {{ $value }}: {{ index $labels "airport" }} '
            '{{ index $labels "service" }}'
        },
    }
    assert count["expr"] == 'delays:count{__lookback__="5m"} == 0'


def test_names_with_signs_are_selected(rules: Callable[..., Path], client: Client) -> None:
    client.create_window(SPEC | {"name": "a.b", "keys": ["service.name"]})
    made = yaml.safe_load(rules("a.b", "mean <= 1.5", "--severity", "page").read_text())
    (rule,) = made["groups"][0]["rules"]
    assert rule["expr"] == '{__name__="a.b:mean"} <= 1.5'
    assert rule["labels"] == {"severity": "page"}
    assert rule["annotations"] == {"summary": 'mean of a.b is {{ $value }}: {{ index $labels "service.name" }}'}


def test_parts_that_no_alert_can_have_are_said(
    sash: Callable[..., Any], service: Running, client: Client, delays: Window
) -> None:
    client.create_window(SPEC | {"name": "dotted", "keys": ["airport", "service.name"]})
    told = sash("rules", "dotted", "mean > 1", service=service).err
    assert told == "sash: Alertmanager takes labels such as service.name from version 0.27 on\n"
    assert not sash("rules", "delays", "mean > 1", service=service).err


def test_what_no_rule_can_be_made_of(
    sash: Callable[..., Any], service: Running, client: Client, delays: Window
) -> None:
    for given, reason in (
        ("mean", "mean"),
        ("median > 1", "median is none of window delays; did you mean 'mean'? It has all, count, mean"),
        ("all > 1", "all is no number"),
    ):
        assert reason in sash("rules", "delays", given, service=service, expect=1).err
    client.create_window(SPEC | {"name": "ticks", "time_unit": "none", "slide": None})
    assert "has no metrics" in sash("rules", "ticks", "mean > 1", service=service, expect=1).err


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize("arguments", [(), ("--lookback", "5m", "--for", "1m")])
def test_promtool_takes_the_rules(rules: Callable[..., Path], delays: Window, arguments: tuple[str, ...]) -> None:
    path = rules("delays", "mean > 10", "count < 1", *arguments)
    done = subprocess.run([str(PROMTOOL), "check", "rules", path], capture_output=True, text=True, check=True)
    assert "2 rules found" in done.stdout


@pytest.mark.skipif(VMALERT is None, reason="vmalert is not installed")
def test_vmalert_alerts_over_prometheus_and_alertmanager_has_it(
    rules: Callable[..., Path], service: Running, delays: Window, tmp_path: Path
) -> None:
    path = rules("delays", "mean > 10", "--lookback", "5m")
    with alertmanager(tmp_path) as manager:
        flags = [
            f"-rule={path}",
            f"-datasource.url={service.rest_url}/prometheus",
            f"-notifier.url={manager.base_url}",
            "-evaluationInterval=1s",
            f"-httpListenAddr=127.0.0.1:{free_port()}",
            "-loggerLevel=ERROR",
        ]
        with process(VMALERT, *flags):
            wait_until(lambda: alerts_of(manager))
            (found,) = alerts_of(manager).values()
            assert found["labels"]["airport"] == "JFK"  # of the last five minutes, and not of the hour
            assert found["labels"]["severity"] == "warning"
            assert found["annotations"]["summary"] == "mean of delays over 5m is 30: JFK s"


def test_prometheus_alerts_on_what_it_scrapes(
    rules: Callable[..., Path], service: Running, delays: Window, tmp_path: Path
) -> None:
    path = rules("delays", "mean > 10")  # the scrape says which lookback
    with alertmanager(tmp_path) as manager:
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(path)],
            "scrape_configs": [
                {
                    "job_name": "sash",
                    "honor_labels": True,
                    "metrics_path": "/prometheus/federate",
                    "params": {"match[]": ['{__name__=~"delays:.+", __lookback__="5m"}']},
                    "static_configs": [{"targets": [f"127.0.0.1:{service.rest_port}"]}],
                }
            ],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.base_url.netloc.decode()]}]}]},
        }
        with running_prometheus(tmp_path, yaml.safe_dump(config)):
            wait_until(lambda: alerts_of(manager))
            (found,) = alerts_of(manager).values()
            assert (found["labels"]["airport"], found["labels"]["alertname"]) == ("JFK", "delays_mean")
