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

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sash_client import InvalidArgument
from sash_spark.login import Login

__all__ = ["BadRecords", "FileSource", "KafkaSource", "PipelineConfig", "RateSource", "Target", "load", "parse"]

Options = dict[str, str | int | float | bool]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileSource(_Document):
    """A directory in which files appear."""

    format: Literal["parquet", "orc", "json", "csv"]
    path: str = Field(min_length=1)
    ddl: str = Field(alias="schema", min_length=1, description="Columns with their types, as in SQL: a string, b long.")
    options: Options = Field({}, description="Options of Spark's reader, such as maxFilesPerTrigger.")


class KafkaSource(_Document):
    """A topic, or several separated by commas, whose records are JSON or CSV."""

    format: Literal["kafka"]
    servers: str = Field(min_length=1, description="kafka.bootstrap.servers")
    topic: str = Field(min_length=1)
    value: Literal["json", "csv"] = "json"
    ddl: str = Field(alias="schema", min_length=1, description="What a record's value holds, as in SQL.")
    parse: Options = Field({}, description="Options of from_json or from_csv, such as sep.")
    starting: Literal["earliest", "latest"] = "earliest"
    options: Options = Field({}, description="Options of Spark's Kafka source, such as maxOffsetsPerTrigger.")


class RateSource(_Document):
    """Rows (timestamp, value) that Spark makes itself, to try a pipeline."""

    format: Literal["rate"]
    rows_per_second: int = Field(1, ge=1)
    options: Options = {}


class BadRecords(_Document):
    """The directory for records that cannot be parsed or lack a time, a key or a value."""

    path: str = Field(min_length=1, description="A directory: JSON files in query=…/batch=….")
    share_max: float = Field(
        1.0, ge=0, le=1, description="A micro-batch with a larger share of them stops the pipeline."
    )


class Target(_Document):
    """A window that rows go to; it is created if it does not exist."""

    spec: dict[str, Any]
    time: str | None = None
    key: str | None = None
    parts: dict[str, str] | None = None
    fields: dict[str, str] | None = None
    preaggregate: bool = False

    @property
    def name(self) -> str:
        """The window's name."""
        return str(self.spec.get("name"))


class Tls(_Document):
    """Files for TLS, on the driver and on every executor; an empty mapping: the public authorities."""

    ca: str | None = Field(None, min_length=1, description="The authorities of the service's certificate (PEM).")
    cert: str | None = Field(None, min_length=1, description="The pipeline's own certificate (PEM).")
    key: str | None = Field(None, min_length=1, description="The private key of that certificate (PEM).")
    name: str | None = Field(
        None, min_length=1, description="The name in the service's certificate, if it is not the host of `service`."
    )


class PipelineConfig(_Document):
    """A pipeline. The module's docstring has an example."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")
    service: str = Field(pattern=r"^.+:\d+$")
    token_file: str | None = Field(
        None, min_length=1, description="A file with the token, on the driver and on every executor."
    )
    tls: Tls | bool | None = Field(None, description="true, false (a token in the clear), or files.")
    checkpoint: str = Field(min_length=1)
    source: Annotated[FileSource | KafkaSource | RateSource, Field(discriminator="format")]
    columns: dict[str, str] = {}
    where: str | None = None
    time: str
    key: str | None = None
    parts: dict[str, str] | None = Field(
        None, description="Of windows with `keys`: part -> expression; other parts are columns of their name."
    )
    order_by: list[str] = Field([], description="Rows arrive in this order, and those of one key in one task.")
    windows: list[Target] = Field(min_length=1)
    bad_records: BadRecords | None = None
    trigger: str = Field("available_now", pattern=r"^(available_now|[1-9]\d* (millisecond|second|minute|hour)s?)$")
    rows_per_call: int = Field(65_536, ge=1)
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


def load(path: Path) -> PipelineConfig:
    """Read and validate a configuration.

    Raises:
        InvalidArgument: `field` has the path of the first error.
        OSError: there is no such file.
    """
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"config is not UTF-8: {error}", field="config") from None
    return parse(_yaml(text, "config"), path.parent)


def parse(document: object, beside: Path = Path()) -> PipelineConfig:
    """Validate a document.

    Args:
        document: a mapping, as YAML gives it.
        beside: the directory that the names of spec files are relative to.

    Raises:
        InvalidArgument: `field` has the path of the first error.
    """
    if not isinstance(document, Mapping):
        raise InvalidArgument("a pipeline is a mapping of its parts", field="config")
    windows = document.get("windows")
    if isinstance(windows, list):
        document = {**document, "windows": [_with_spec(each, i, beside) for i, each in enumerate(windows)]}
    try:
        config = PipelineConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = _path(first["loc"])
        raise InvalidArgument(f"{path}: {first['msg']}", field=path) from None
    _check_windows(config)
    return config


def _with_spec(target: Any, i: int, beside: Path) -> Any:
    """Return a target with its spec, read from the file that it names, if it names one."""
    if not isinstance(target, Mapping) or not isinstance(target.get("spec"), str):
        return target
    field = f"windows[{i}].spec"
    try:
        text = (beside / target["spec"]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from None
    return {**target, "spec": _yaml(text, field)}


def _yaml(text: str, field: str) -> Any:
    try:
        return yaml.safe_load(text)
    except Exception as error:  # values of a type that they are not raise errors of any kind: 2020-99-99, !!bool maybe
        raise InvalidArgument(f"{field} is not YAML: {error}", field=field) from None


def _path(location: tuple[int | str, ...]) -> str:
    # Within a source, pydantic also says which kind of source it took it for.
    parts = location[:1] + location[2:] if location[:1] == ("source",) else location
    return (
        re.sub(r"\.(\[)", r"\1", ".".join(f"[{part}]" if isinstance(part, int) else part for part in parts)) or "config"
    )


def _check_windows(config: PipelineConfig) -> None:
    seen = set[str]()
    for i, target in enumerate(config.windows):
        if target.name in seen:
            field = f"windows[{i}].spec.name"
            raise InvalidArgument(f"{field}: {target.name!r} is there twice", field=field)
        seen.add(target.name)
        if target.key is not None and target.parts is not None:
            field = f"windows[{i}].parts"
            raise InvalidArgument(f"{field}: give either key or parts", field=field)
        if target.spec.get("keyed") and target.key is None and config.key is None:
            raise InvalidArgument(f"key: window {target.name!r} is keyed; say by what", field="key")
