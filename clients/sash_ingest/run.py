"""Puts a pipeline of `sash data ingest` together: from its configuration to a runner and its connector."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sash_client import Client, SashClientError, Window
from sash_ingest.config import IngestConfig, KafkaSource, SchemaRegistry, StdinSource
from sash_ingest.connector import Connector
from sash_ingest.dead_letters import DeadLetters, FileLetters
from sash_ingest.decode import Csv, Form, Json
from sash_ingest.lines import Lines
from sash_ingest.meters import Meters
from sash_ingest.runner import Ingest
from sash_ingest.target import Target
from sash_wire.errors import WireError


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
    form = _form(source)
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


def _form(source: KafkaSource | StdinSource) -> Form:
    """Return what a record is."""
    registry = source.registry if isinstance(source, KafkaSource) else None
    if source.value == "csv":
        if not source.columns:
            raise WireError("source.schema: name the columns of CSV", field="source.schema")
        if registry is not None:
            raise WireError("source.registry: lines of CSV have no schema there", field="source.registry")
        return Csv(source.columns, source.separator)
    if registry is None:
        if source.value != "json":
            raise WireError(f"source.registry: say where the schemas of {source.value} are", field="source.registry")
        return Json()
    from sash_ingest.registry import Avro, Protobuf, RegisteredJson, Registry

    if source.value == "json":
        return RegisteredJson()
    login, tls = _login(registry), None if registry.ca is None else ssl.create_default_context(cafile=registry.ca)
    return (Avro if source.value == "avro" else Protobuf)(Registry(registry.url, login, tls))


def _login(registry: SchemaRegistry) -> Callable[[], str] | None:
    """Return what makes the value of ``Authorization``; files are read again for each call."""
    if (registry.user is None) is not (registry.password_file is None):
        raise WireError("source.registry.user: give both user and password_file", field="source.registry.user")
    if registry.token_file is not None and registry.user is not None:
        raise WireError("source.registry: give a user or a token", field="source.registry")

    def read(file: str) -> str:
        return Path(file).read_text().strip()

    if (token := registry.token_file) is not None:
        return lambda: f"Bearer {read(token)}"
    if (user := registry.user) is not None:
        file = str(registry.password_file)
        return lambda: f"Basic {b64encode(f'{user}:{read(file)}'.encode()).decode()}"
    return None


def _made(client: Client, config: IngestConfig, i: int) -> Window:
    """Create a window, or take the one that is there with the same spec."""
    try:
        return client.create_window(config.windows[i].spec)
    except SashClientError as error:
        place = ".".join(part for part in (f"windows[{i}].spec", error.field) if part)
        error.message, error.field = f"{place}: {error.message}", place
        raise
