"""The command ``sash rules``: alerts on a window, as a file of rules that Prometheus, vmalert and Grafana read.

sash rules requests 'latency > 0.5' --lookback 5m --for 1m

window's spec ──▶ requests:latency{__lookback__="5m"} > 0.5 ──▶ vmalert, over /prometheus ──▶ Alertmanager
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sash_cli.options import LOCAL, Name, Target, connected
from sash_cli.output import cell, fail
from sash_wire.meant import instead

if TYPE_CHECKING:  # as in `options`
    from sash_client import Window

_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def rules(
    name: Name,
    conditions: Annotated[
        list[str], typer.Argument(metavar="CONDITION…", help="When to alert: 'mean > 10'; each is an alert.")
    ],
    lookback: Annotated[
        str | None,
        typer.Option("--lookback", "-l", metavar="DURATION", help="Of the aggregates: 5m. [all that the window has]"),
    ] = None,
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help="So long it must hold.")] = "0s",
    severity: Annotated[str, typer.Option(help="A label of the alerts, for Alertmanager's routes.")] = "warning",
    target: Target = LOCAL,
) -> None:
    """Print rules that alert on a window, for Prometheus, vmalert or Grafana over /prometheus."""
    import yaml

    from sash_wire.errors import WireError
    from sash_wire.labels import read_having

    with connected(target) as sash:
        window = sash.window(name)
        made = []
        for condition in conditions:
            try:
                aggregate, op, number = read_having(condition)
            except WireError as error:
                fail(error.message)
            _check(window, aggregate)
            made.append(_rule(name, window.spec, aggregate, f"{'==' if op == '=' else op} {number}", lookback))
        signs = [part for part in window.spec.get("keys") or () if not _PLAIN.fullmatch(part)]
    if signs:
        typer.echo(f"sash: Alertmanager takes labels such as {', '.join(signs)} from version 0.27 on", err=True)
    for rule in made:
        rule |= {"for": for_, "labels": {"severity": severity}, "annotations": rule.pop("annotations")}
    document = {"groups": [{"name": f"sash-{name}", "rules": made}]}
    typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120), nl=False)


def _check(window: Window, aggregate: str) -> None:
    """Exit with a message if there is no such metric: a rule about it would never alert."""
    from sash_client import ALL_KEYS

    spec = window.spec
    known = spec["aggregates"]
    if aggregate not in known:
        fail(f"{cell(aggregate)} is none of window {window.name}{instead(aggregate, sorted(known), 'it has')}")
    if spec.get("time_unit") == "none":
        fail(f"window {window.name} counts logical ticks, and has no metrics")
    keyed: Any = {"keys": ALL_KEYS, "limit": 1} if spec.get("keyed") or spec.get("keys") else {}
    for answer in window.query(aggregates=[aggregate], **keyed):
        if not isinstance(answer.aggregates[aggregate], int | float | None):
            fail(f"{cell(aggregate)} is no number, and has no metric")


def _rule(window: str, spec: Mapping[str, Any], aggregate: str, holds: str, lookback: str | None) -> dict[str, Any]:
    metric = f"{window}:{aggregate}"
    plain = _PLAIN.fullmatch(metric)
    matchers = ([] if plain else [("__name__", metric)]) + ([("__lookback__", lookback)] if lookback else [])
    told = ",".join(f"{label}={json.dumps(value)}" for label, value in matchers)
    parts = spec.get("keys") or (["key"] if spec.get("keyed") else [])
    shown = " ".join(f"{{{{ index $labels {json.dumps(part)} }}}}" for part in parts)
    what = f"{aggregate} of {window}" + (f" over {lookback}" if lookback else "")
    return {
        "alert": f"{window}_{aggregate}",
        "expr": (metric if plain else "") + (f"{{{told}}}" if told else "") + f" {holds}",
        "annotations": {"summary": f"{what} is {{{{ $value }}}}" + (f": {shown}" if shown else "")},
    }
