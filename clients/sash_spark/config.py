"""A pipeline's configuration: one validated YAML document. `flights.yaml`, beside this file, is one.

name: flights                      # and of the sinks: a window tells by it who writes
service: 127.0.0.1:7070            # the gRPC edge, as the executors reach it
token_file: /run/secrets/sash      # where the service asks for tokens, and TLS: `tls: {ca: …, cert: …, key: …}`
checkpoint: /data/checkpoints/flights
source:                            # files (parquet, orc, json, csv), kafka, or rate
  format: json
  path: /data/flights
  schema: origin string, time_hour string, dep_delay double
columns:                           # SQL expressions, each of which may use those before it
  departure: try_to_timestamp(time_hour)
where: dep_delay is not null       # other rows are left out
time: departure                    # expressions, too
key: origin
bad_records: {path: /data/flights-bad}
windows:
  - spec: departure_delay.yaml     # a file beside this one, or the spec itself
    fields: {delay: dep_delay}     # field -> expression; columns of the fields' names where omitted
trigger: available_now             # all there is, and then stop; or "10 seconds", for ever
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sash_client.errors import refusing
from sash_spark.login import Login
from sash_wire.pipeline import Document, PipelineDocument, TargetDocument, Tls, loaded, parsed

Options = dict[str, str | int | float | bool]


class FileSource(Document):
    """A directory in which files appear."""

    format: Literal["parquet", "orc", "json", "csv"]
    path: str = Field(min_length=1)
    ddl: str = Field(alias="schema", min_length=1, description="Columns with their types, as in SQL: a string, b long.")
    options: Options = Field({}, description="Options of Spark's reader, such as maxFilesPerTrigger.")


class KafkaSource(Document):
    """A topic, or several separated by commas, whose records are JSON or CSV."""

    format: Literal["kafka"]
    servers: str = Field(min_length=1, description="kafka.bootstrap.servers")
    topic: str = Field(min_length=1)
    value: Literal["json", "csv"] = "json"
    ddl: str = Field(alias="schema", min_length=1, description="What a record's value holds, as in SQL.")
    parse: Options = Field({}, description="Options of from_json or from_csv, such as sep.")
    starting: Literal["earliest", "latest"] = "earliest"
    options: Options = Field({}, description="Options of Spark's Kafka source, such as maxOffsetsPerTrigger.")


class RateSource(Document):
    """Rows (timestamp, value) that Spark makes itself, to try a pipeline."""

    format: Literal["rate"]
    rows_per_second: int = Field(1, ge=1)
    options: Options = Field({})


class BadRecords(Document):
    """The directory for records that cannot be parsed or lack a time, a key or a value."""

    path: str = Field(min_length=1, description="A directory: JSON files in query=…/batch=….")
    share_max: float = Field(
        1.0, ge=0, le=1, description="A micro-batch with a larger share of them stops the pipeline."
    )


class Target(TargetDocument):
    """A window that rows go to; it is created if it does not exist."""

    preaggregate: bool = False


class PipelineConfig(PipelineDocument):
    """A pipeline. The module's docstring has an example."""

    service: str = Field(pattern=r"^.+:\d+$")
    token_file: str | None = Field(
        None, min_length=1, description="A file with the token, on the driver and on every executor."
    )
    tls: Tls | bool | None = Field(None, description="true, false (a token in the clear), or files.")
    checkpoint: str = Field(min_length=1)
    source: Annotated[FileSource | KafkaSource | RateSource, Field(discriminator="format")]
    columns: dict[str, str] = Field({})
    where: str | None = None
    order_by: list[str] = Field([], description="Rows arrive in this order, and those of one key in one task.")
    windows: list[Target] = Field(min_length=1)
    bad_records: BadRecords | None = None
    trigger: str = Field("available_now", pattern=r"^(available_now|[1-9]\d* (millisecond|second|minute|hour)s?)$")
    rows_per_call: int = Field(131_072, ge=1)
    metrics_port: int | None = Field(
        None, ge=0, le=65_535, description="Prometheus metrics of the driver; none: no port."
    )
    spark: dict[str, str | int | bool] = Field(
        {}, description="Settings of Spark SQL; others are for spark-submit --conf."
    )

    @property
    def login(self) -> Login:
        """Return the credentials for the service."""
        if isinstance(self.tls, Tls):
            return Login(token_file=self.token_file, tls=True, **self.tls.model_dump())
        return Login(token_file=self.token_file, tls=self.tls)


@refusing
def load(path: Path) -> PipelineConfig:
    """Read and validate a configuration.

    Raises:
        InvalidArgument: `field` has the path of the first error.
        OSError: there is no such file.
    """
    return loaded(PipelineConfig, path)


@refusing
def parse(document: object, beside: Path = Path()) -> PipelineConfig:
    """Validate a document.

    Args:
        document: a mapping, as YAML gives it.
        beside: the directory that the names of spec files are relative to.

    Raises:
        InvalidArgument: `field` has the path of the first error.
    """
    return parsed(PipelineConfig, document, beside)
