"""The metrics of all processes of a machine as those of one service: each sample has the label `process`.

sash_process_up{process}      1 if the process answered, else 0
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from sash.shards.host import Host

if TYPE_CHECKING:
    from sash.shards.leased_host import LeasedHost

Family = Sequence[Any]


class MetricsOfAll:
    """Collects the metrics of this process and of the others.

    Args:
        host: calls the others.
        registry: the metrics of this process.
    """

    def __init__(self, host: Host | LeasedHost, registry: CollectorRegistry) -> None:
        self._host, self._registry = host, registry
        host.serving.operations["metrics"] = self._mine

    async def __call__(self) -> CollectorRegistry:
        """Return a registry with all of them."""
        numbers = self._host.neighbours
        found = await asyncio.gather(*(self._host.ask(process, "metrics") for process in numbers))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Merged(dict(zip(numbers, found, strict=True))))
        return registry

    async def _mine(self) -> Sequence[Family]:
        return [
            [
                metric.name,
                metric.documentation,
                metric.type,
                metric.unit,
                [list(sample[:3]) for sample in metric.samples],
            ]
            for metric in self._registry.collect()
        ]


class _Merged:
    """Collects what processes said, by their numbers; None is one that did not answer."""

    def __init__(self, found: Mapping[int, Sequence[Family] | None]) -> None:
        self._found = found

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        up = GaugeMetricFamily("sash_process_up", "Whether a process of the service answered.", labels=["process"])
        for number, families in self._found.items():
            up.add_metric([str(number)], float(families is not None))
            for name, documentation, kind, unit, samples in families or ():
                metric = merged.setdefault(name, Metric(name, documentation, kind, unit))
                for sample, labels, value in samples:
                    metric.samples.append(Sample(sample, {**labels, "process": str(number)}, value))
        yield up
        yield from merged.values()
