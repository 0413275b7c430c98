"""Connectors: streams of numbered records into windows, each record once.

    connector ──▶ Records(stream, numbers, values) ──▶ Ingest: decode, map, judge ──▶ numbered writes ──▶ windows
    Kafka, lines of standard input, your own                └──▶ dead letters

`connector` has the protocol, and says what a connector must keep to. `Ingest` runs one. `sash ingest` is the command.
"""

from sash_ingest.connector import Connector, Records, SourceError, Streams
from sash_ingest.runner import Ingest

__all__ = ["Connector", "Ingest", "Records", "SourceError", "Streams"]
