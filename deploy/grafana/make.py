"""Makes the dashboard of the service's own metrics: ``python -m deploy.grafana.make``.

A service is started and asked for its metrics. Each of them gets a panel by its type, so the dashboard has all of them
and no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from docs.generate.service import ask

FILE = Path(__file__).parent / "dashboards" / "service.json"

ROWS = {
    "State": ("sash_ready", "sash_build_info", "sash_tier_up", "sash_damaged_values", "sash_windows"),
    "Calls": ("sash_operation_", "sash_requests_", "sash_loop_", "sash_watch"),
    "Windows": ("sash_entries", "sash_window_"),
    "Memory": ("sash_memory_", "sash_cache_", "process_resident_"),
    "Storage": ("sash_tier_", "sash_journal_", "sash_checkpoints"),
    "Process": ("process_",),
    "Other": ("sash_",),
}
"""How the names of its metrics begin. A metric is in the first row that matches; others are left out."""

WHOLE = ("sash_damaged_values",)
"""Counters whose value matters, and not how fast they grow."""

QUANTILES = (0.5, 0.99)
CHOSEN = 'job=~"$job", instance=~"$instance"'
WIDTH, HEIGHT, COLUMNS = 8, 7, 24
SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard(scrape: str) -> dict[str, Any]:
    """Return the dashboard of the metrics that a scrape shows."""
    rows: dict[str, list[dict[str, Any]]] = {title: [] for title in ROWS}
    for family in text_string_to_metric_families(scrape):
        for title, starts in ROWS.items():
            if family.name.startswith(starts):
                rows[title].extend(_panels(family))
                break
    return {
        "uid": "sash-service",
        "title": "Sash",
        "tags": ["sash"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [_source(), _variable("job", "sash_ready"), _variable("instance", 'sash_ready{job=~"$job"}')]
        },
        "panels": list(_placed(rows)),
    }


def _panels(family: Metric) -> Iterator[dict[str, Any]]:
    name = family.name.removeprefix("sash_").replace("_", " ").capitalize()
    # Where there are several processes, each sample has a label that says which one it is of.
    labels = ["instance", "process", *sorted({label for sample in family.samples for label in sample.labels} - {"le"})]
    by = ", ".join(labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    if family.name in WHOLE:
        yield _panel(name, "short", family.documentation, {legend: f"{family.name}_total{{{CHOSEN}}}"})
    elif family.type == "counter":
        rate = f"sum by ({by}) (rate({family.name}_total{{{CHOSEN}}}[$__rate_interval]))"
        yield _panel(f"{name} a second", "ops", family.documentation, {legend: rate})
    elif family.type == "histogram":
        rate = f"sum by ({by}) (rate({family.name}_count{{{CHOSEN}}}[$__rate_interval]))"
        yield _panel(f"{name}: how many a second", "ops", family.documentation, {legend: rate})
        buckets = f"sum by (instance, operation, le) (rate({family.name}_bucket{{{CHOSEN}}}[$__rate_interval]))"
        quantiles = {
            f"{{{{instance}}}} {{{{operation}}}} {q:.0%}": f"histogram_quantile({q}, {buckets})" for q in QUANTILES
        }
        yield _panel(name, "s", family.documentation, quantiles)
    else:
        unit = "bytes" if name.endswith("bytes") else "s" if name.endswith("late seconds") else "short"
        yield _panel(name, unit, family.documentation, {legend: f"{family.name}{{{CHOSEN}}}"})


def _panel(title: str, unit: str, text: str, lines: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "description": text,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for number, (legend, expr) in enumerate(lines.items())
        ],
    }


def _placed(rows: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Number the panels and place them, row by row."""
    number, top = 0, 0
    for title, panels in rows.items():
        if not panels:
            continue
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        for index, panel in enumerate(panels):
            number += 1
            down, across = divmod(index * WIDTH, COLUMNS)
            place = {"x": across, "y": top + 1 + down * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield {"id": number, "gridPos": place} | panel
        top += 1 + -(-len(panels) * WIDTH // COLUMNS) * HEIGHT


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, of: str) -> dict[str, Any]:
    query = f"label_values({of}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(dashboard(ask().metrics), indent=1) + "\n")
