"""The configuration of `sash ingest`: one validated YAML document. Names and mapping are those of Spark's pipeline.

name: flights                      # and of the producers: a window tells by it, topic and partition what it has
service: 127.0.0.1:7070            # or `sash ingest --target`
source:
  format: kafka
  servers: broker:9092
  topic: flights
  value: json                      # or csv, with the columns in `schema`
time: timestamp_millis(at)         # a column, a path, or an instant made of one
parts: {airport: origin}
bad_records: {path: bad.ndjson}    # or {topic: flights-bad}
windows:
  - spec: departure_delay.yaml     # a file beside this one, or the spec itself
    fields: {delay: dep_delay}     # columns of the fields' names where omitted
metrics_port: 9109
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sash_wire.pipeline import Document, PipelineDocument, TargetDocument, Tls


class _Source(Document):
    ddl: str | None = Field(
        None,
        alias="schema",
        min_length=1,
        description="The columns of CSV, as in SQL: a string, b long. Types may lack.",
    )
    separator: str = Field(",", min_length=1, max_length=1, description="Of the columns of CSV.")

    @property
    def columns(self) -> list[str]:
        """The names of the columns of CSV."""
        return [each.split()[0].strip("`") for each in (self.ddl or "").split(",") if each.strip()]


class SchemaRegistry(Document):
    """Where the schemas of records are, which begin with the number of theirs."""

    url: str = Field(pattern=r"^https?://[^\s/@]+(/\S*)?$")
    user: str | None = Field(None, min_length=1, description="With `password_file`.")
    password_file: str | None = Field(None, min_length=1, description="A file with the password of `user`.")
    token_file: str | None = Field(None, min_length=1, description="A file with a bearer token, instead of both.")
    ca: str | None = Field(None, min_length=1, description="The authorities of its certificate (PEM).")


class KafkaSource(_Source):
    """A topic, or several separated by commas."""

    format: Literal["kafka"]
    value: Literal["json", "csv", "avro", "protobuf"] = Field(
        "json", description="What a record is; of avro and protobuf the `registry` has the schemas."
    )
    registry: SchemaRegistry | None = Field(None, description="Records have its header; avro and protobuf need it.")
    servers: str = Field(min_length=1, description="bootstrap.servers")
    topic: str = Field(min_length=1)
    group: str | None = Field(None, min_length=1, description="The consumer group; the pipeline's name if omitted.")
    starting: Literal["earliest", "latest"] = Field(
        "earliest", description="Where to begin in a partition that the windows have nothing of."
    )
    options: dict[str, str | int | float | bool] = Field(
        {}, description="Options of librdkafka, such as sasl.username."
    )


class StdinSource(_Source):
    """Lines of standard input."""

    format: Literal["stdin"] = "stdin"
    value: Literal["json", "csv"] = Field("json", description="What a record is: an object, or a line of CSV.")


class BadRecords(Document):
    """Where records go that do not fit; without it, the first one ends the command."""

    path: str | None = Field(None, min_length=1, description="A file: a JSON object is appended for each.")
    topic: str | None = Field(None, min_length=1, description="A topic of the same brokers, for a source of Kafka.")


class IngestConfig(PipelineDocument):
    """A pipeline of `sash ingest`. The module's docstring has an example."""

    service: str | None = Field(None, min_length=1, description="Address of the service; --target if omitted.")
    token_file: str | None = Field(None, min_length=1, description="A file with the token.")
    tls: Tls | bool | None = Field(None, description="true, false (a token in the clear), or files.")
    source: Annotated[KafkaSource | StdinSource, Field(discriminator="format")] = StdinSource()
    windows: list[TargetDocument] = Field(min_length=1)
    bad_records: BadRecords | None = None
    metrics_port: int | None = Field(None, ge=0, le=65_535, description="Prometheus metrics; none: no port.")
    metrics_host: str = Field("127.0.0.1", min_length=1, description="Address that the metrics listen on.")
    records_per_write: int = Field(
        16_384, ge=1, description="Records of one partition that are written at once, at most."
    )

    def client_arguments(self) -> dict[str, Any]:
        """Return the credentials as arguments of `Client`."""
        from sash_client import TLS

        found: dict[str, Any] = {}
        if self.token_file is not None:
            path = self.token_file

            def token() -> str:
                with open(path) as file:
                    return file.read().strip()

            found["token"] = token
        if self.tls is not None:
            found["tls"] = self.tls if isinstance(self.tls, bool) else TLS(**self.tls.model_dump())
        return found
