"""Scenarios as data: what is called over every edge, and what comes back. They stand in tests/edges/*.yaml.

    a name:
      over: [rest, grpc]             the edges, if not all of them
      with: {aggregates: …}          the spec of `w`, which is created first
      calls:
      - [insert, {time: 1, value: 2}, {inserted: 1}]                     what is given, and some of what comes back
      - [other/insert, {time: 1}, {error: [INVALID_ARGUMENT, value]}]    reason, field, limit and message of an error

    a name:
      with: …                        as above
      calls: …                       what is called before
      refused:                       each changes no window; `reason` is INVALID_ARGUMENT if it is not said
      - [insert, {time: 1}, value, limit, message]

`!many [k, 513]` is a text or a list so many times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.edges import EDGES, Refused, play, refuses

FOLDER = Path(__file__).parents[1] / "edges"


class Loader(yaml.CSafeLoader):
    """Reads scenarios."""


def _many(loader: Loader, node: Any) -> Any:
    repeated, times = loader.construct_sequence(node, deep=True)
    return repeated * times


Loader.add_constructor("!many", _many)


def scenarios() -> Any:
    """Run a test for each edge and scenario of all files; it takes `edge` and `scenario`."""
    found = [
        pytest.param(edge, scenario, id=f"{edge}-{path.stem}-{name}")
        for path in sorted(FOLDER.glob("*.yaml"))
        for name, scenario in yaml.load(path.read_text(), Loader).items()
        if "calls" in scenario or "refused" in scenario
        for edge in scenario.get("over", EDGES)
    ]
    return pytest.mark.parametrize(("edge", "scenario"), found, indirect=["edge"])


def run(edge: Any, scenario: Any) -> None:
    calls = [(call, dict(given), _expected(expected)) for call, given, expected in scenario.get("calls", ())]
    play(edge, calls, **scenario.get("with", {}))
    if "refused" in scenario:
        rows = [(*row, *(None, "")[len(row) - 3 :]) for row in scenario["refused"]]
        refuses(edge, rows, scenario.get("reason", "INVALID_ARGUMENT"))


def _expected(document: Any) -> Any:
    return Refused(*document["error"]) if "error" in document else document
