"""Puts a pipeline of `sash data ingest` together: from its configuration to a runner and its connector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sash_client import Client, SashClientError, Window
from sash_ingest.config import IngestConfig, KafkaSource
from sash_ingest.connector import Connector
from sash_ingest.dead_letters import DeadLetters, FileLetters
from sash_ingest.decode import Csv, Json
from sash_ingest.lines import Lines
from sash_ingest.meters import Meters
from sash_ingest.runner import Ingest
from sash_ingest.target import Target
from sash_wire.errors import WireError

__all__ = ["run"]


def run(
    client: Client,
    config: IngestConfig,
    strict: bool,
    lines: BinaryIO,
    name: str | None,
    say: Callable[[str], None],
    stops: Callable[[Callable[[], None]], None],
) -> None:
    """Run a pipeline until its source ends, or until it is stopped.

    Args:
        client: the service.
        config: what to do.
        strict: whether the first record that does not fit ends it.
        lines: standard input.
        name: of the stream of standard input.
        say: takes lines for people.
        stops: is given what stops it.

    Raises:
        WireError: `field` names what does not fit in the document.
        SashClientError, SourceError, RejectedError: as `Ingest.run`.
    """
    source, beside = config.source, frozenset[str]()
    if isinstance(source, KafkaSource):
        from sash_ingest.kafka import BESIDE, Kafka, TopicLetters

        beside = frozenset(BESIDE)
    if source.value == "csv" and not source.columns:
        raise WireError("source.schema: name the columns of CSV", field="source.schema")
    windows = [_made(client, config, i) for i in range(len(config.windows))]
    targets = [
        Target(window, config.sources(i, window.spec), f"windows[{i}]", beside) for i, window in enumerate(windows)
    ]
    letters: DeadLetters | None = None
    aside = config.bad_records
    if aside is not None and not strict:
        if (aside.path is None) is (aside.topic is None):
            raise WireError("bad_records: give either path or topic", field="bad_records")
        if aside.path is not None:
            letters = FileLetters(Path(aside.path))
        elif isinstance(source, KafkaSource):
            letters = TopicLetters(source, str(aside.topic))
        else:
            raise WireError("bad_records.topic: the source is not Kafka", field="bad_records.topic")
    meters = Meters(config.name)
    connector: Connector
    if isinstance(source, KafkaSource):
        needs = frozenset[str]().union(*(target.needs for target in targets))
        connector = Kafka(source, config.name, needs, say)
    else:
        connector = Lines(lines, name)
    form = Json() if source.value == "json" else Csv(source.columns, source.separator)
    ingest = Ingest(config.name, targets, form, letters, meters, say, config.records_per_write)
    stops(ingest.stop)
    if config.metrics_port is not None:
        host, port = config.metrics_host, meters.serve(config.metrics_port, config.metrics_host)
        say(f"metrics on http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
    try:
        ingest.run(connector)
    finally:
        meters.close()
    say(meters.line())


def _made(client: Client, config: IngestConfig, i: int) -> Window:
    """Create a window, or take the one that is there with the same spec."""
    try:
        return client.create_window(config.windows[i].spec)
    except SashClientError as error:
        place = ".".join(part for part in (f"windows[{i}].spec", error.field) if part)
        error.message, error.field = f"{place}: {error.message}", place
        raise
