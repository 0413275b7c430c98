"""The settings of a service, from the environment: ``SASH_GRPC_PORT=7070``, ``SASH_CACHE_BYTES=1GiB`` and so on."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sash_engine.errors import InvalidArgument
from sash_engine.words import first_wrong

MIB = 2**20

_OTHERS = re.compile(
    r"SASH_((TARGET|TOKEN|TOKEN_FILE|TLS|TLS_CA|CLIENT_CERT|CLIENT_KEY)=.*|SERVICE_.*|PORT=tcp://.*|PORT_\d+_.*)",
    re.DOTALL,
)
"""What the command line reads, and what Kubernetes sets for a service that is called sash."""

_UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([kmgt]ib|)", re.IGNORECASE)


def _size(value: Any) -> Any:
    """A size in bytes, where it is written with a unit or without."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    size = Decimal(found[1]) * _UNITS[found[2].lower()] if found else None
    if size is None or size % 1:
        raise ValueError(
            f"must be a size, in bytes (268435456) or in KiB, MiB, GiB or TiB (256MiB), not {value[:40]!r}"
        )
    return int(size)


Size = Annotated[int, BeforeValidator(_size)]
Port = Annotated[int, Field(ge=0, le=65535)]
Processes = Annotated[
    int, BeforeValidator(lambda value: len(os.sched_getaffinity(0)) if value == "auto" else value), Field(ge=1, le=1024)
]


def _numbers(value: Any) -> Any:
    """Numbers, where they are written as `0-15,20`."""
    if not isinstance(value, str):
        return value
    found: set[int] = set()
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if match is None:
            raise ValueError(f"must be numbers of shards, such as 0-15,20, not {value[:80]!r}")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


Owned = Annotated[frozenset[int], BeforeValidator(_numbers)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


LogFormat = Annotated[
    Literal["text", "json"], BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
]

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/,*]+", re.IGNORECASE)


def _listed(pattern: re.Pattern[str], what: str) -> BeforeValidator:
    """Read names between commas, each of which matches."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        names = tuple(name.strip().lower() for name in value.split(",") if name.strip())
        for name in names:
            if not pattern.fullmatch(name):
                raise ValueError(f"must be {what}, separated by commas, not {name[:80]!r}")
        return names

    return BeforeValidator(read)


Hosts = Annotated[tuple[str, ...], _listed(_HOST, "host names without ports (sash.example.com, *.example.com, or *)")]
Origins = Annotated[tuple[str, ...], _listed(_ORIGIN, "origins (https://grafana.example.com:3000, or *)")]
Public = Annotated[tuple[str, ...], _listed(re.compile("metrics|docs"), "metrics, docs or both")]


class Settings(BaseModel):
    """The settings of one service; `load_settings` reads each from ``SASH_`` and its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="Address that the service listens on.")
    grpc_port: Port = Field(7070, description="Port of gRPC. 0 takes a free one.")
    rest_port: Port = Field(7071, description="Port of REST, Connect and the page. 0 takes a free one.")
    allowed_hosts: Hosts = Field(
        (),
        description="Host names, separated by commas, by which clients may call REST, Connect and the page, beside "
        "localhost and the address that the service listens on. `*.example.com` allows all names below it, `*` all.",
    )
    cors_origins: Origins = Field(
        (),
        description="Origins of web pages, separated by commas, that may call REST and Connect from a browser, beside "
        "the service's own page: `https://grafana.example.com`. `*` allows all.",
    )
    data: str = Field(
        "sash-data",
        min_length=1,
        description="Where windows are stored: a directory, `redis://…` or `rediss://…`, or `memory`, which stores "
        "nothing.",
    )
    data_max_bytes: Size | None = Field(
        None, ge=MIB, description="How many bytes a data directory may take. If it is not set, as many as the disk has."
    )
    redis_prefix: str = Field(
        "sash", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="The prefix of this service's keys in Redis."
    )
    redis_wait_replicas: int = Field(
        0,
        ge=0,
        le=10,
        description="On the disks of how many replicas of Redis, beside its own, a write must be before it "
        "is acknowledged (`WAITAOF`; Valkey, or Redis 7.2). Needs `appendonly yes` on all of them.",
    )
    lease_s: float = Field(
        5.0,
        ge=1,
        le=3600,
        description="Seconds after which a service that vanished with its machine loses its shards, or its prefix, in "
        "Redis to others.",
    )
    standby: bool = Field(
        False,
        description="`1` waits while another service has the prefix in Redis, and serves it when that one is gone. A "
        "service whose prefix was taken by another ends, so that it can be started again as a standby.",
    )
    shards: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Over how many shards a new store spreads its keys: a few for each process that it may ever have. "
        "It never changes. If it is not set, a new store has as many as processes.",
    )
    processes: Processes = Field(
        1,
        description="How many processes serve the windows of this machine, on the same two ports; `auto` takes one for "
        "each core. Each has a part of the shards.",
    )
    shards_owned: Owned | None = Field(
        None,
        description="In Redis, where processes share the shards: the only shards that this process takes, such as "
        "`0-15,20`. If it is not set, its fair share.",
    )
    address: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.:-]{1,253}$",
        description="The name or address of this machine for other processes, and for clients that go straight to the "
        "owner of a shard. If it is not set, `SASH_HOST`; or the machine's name, if that is all addresses.",
    )
    peer_port: Port = Field(0, description="The port for other processes that share the shards. 0 takes a free one.")
    cache_bytes: Size = Field(
        256 * MIB, ge=0, description="How many bytes of stored blocks the cache may keep in memory."
    )
    checkpoint_bytes: Size = Field(
        64 * MIB,
        ge=4096,
        description="Bytes of journal after which a window is checkpointed. Fewer bytes make a quicker start.",
    )
    store_entries: int = Field(
        32_768,
        ge=1,
        description="Entries in sealed blocks that a window gathers before it stores the blocks; up to four times "
        "as many where entries come out of order.",
    )
    commit_interval_ms: int = Field(
        100, ge=1, le=60_000, description="Milliseconds that writes of durability `interval` wait for a commit."
    )
    memory_bytes: Size | None = Field(
        None,
        ge=64 * MIB,
        description="How many bytes of memory the service may use. Near it, it refuses new entries and large requests. "
        "If it is not set, four fifths of what the machine, the cgroup or `ulimit` allows.",
    )
    max_unread_bytes: Size | None = Field(
        None,
        ge=MIB,
        description="How many bytes of request bodies may be in memory at a time. If it is not set, a quarter of "
        "`SASH_MEMORY_BYTES`.",
    )
    max_staged_bytes: Size | None = Field(
        None,
        ge=MIB,
        description="How many bytes of staged parts there may be that are not committed. If it is not set, half of "
        "`SASH_MEMORY_BYTES`.",
    )
    body_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Seconds that the head of a request, a message of gRPC, or the next part of a body may take. After "
        "that time, a body must have brought 16 KiB a second.",
    )
    max_body_bytes: Size = Field(64 * MIB, ge=1024, le=2**31 - 1, description="How many bytes a request may have.")
    max_entries_per_write: int = Field(4_000_000, ge=1, description="How many entries one write may have.")
    max_windows: int = Field(1000, ge=1, description="How many windows there may be.")
    max_concurrent_calls: int = Field(
        1000,
        ge=1,
        description="How many calls of each edge may be in progress. Further calls are refused at once.",
    )
    max_calls_per_address: int | None = Field(
        None,
        ge=1,
        description="How many of these calls may come from one address; where calls need a token, with tokens of one "
        "name. If it is not set, nine tenths of them.",
    )
    max_connections: int = Field(
        10_000,
        ge=1,
        description="How many connections of HTTP there may be, and how many of gRPC. Further ones are closed at once.",
    )
    max_connections_per_address: int = Field(
        2000,
        ge=1,
        description="How many of those of each edge may come from one address. Of HTTP, a few more are answered on "
        "health and metrics only. Of gRPC, connections with calls count.",
    )
    idle_timeout_s: int = Field(
        75, ge=1, description="Seconds after which a connection of HTTP without a request is closed."
    )
    shutdown_delay_s: float = Field(
        0.0, ge=0, description="Seconds that a stopping service goes on serving while it reports that it is not ready."
    )
    shutdown_grace_s: float = Field(
        10.0, ge=0, description="Seconds that a stopping service gives to calls in progress after that."
    )
    tls_cert: Path | None = Field(
        None,
        description="The certificate for TLS on both ports, and those between it and its authority: a PEM file. It is "
        "read again when it changes, as are those below.",
    )
    tls_key: Path | None = Field(
        None, description="The private key of the certificate: a PEM file, without a password."
    )
    tls_client_ca: Path | None = Field(
        None, description="Authorities, a PEM file. If it is set, clients need a certificate from one of them."
    )
    tls_peer_ca: Path | None = Field(
        None,
        description="Authorities, a PEM file: processes that share shards over a network accept certificates of each "
        "other from these only. If it is not set, `SASH_TLS_CLIENT_CA`; without that, a process accepts what the "
        "system does, and what `SASH_TLS_CERT` has itself, and asks callers for no certificate.",
    )
    tls_peer_name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.:-]{1,253}$",
        description="The name that the certificates of those processes must be for. If it is not set, the "
        "`SASH_ADDRESS` of each.",
    )
    insecure: bool = Field(
        False,
        description="`1` serves other machines although nothing says who may call.",
    )
    tokens: Path | None = Field(
        None, description="A YAML file of tokens. If it is set, calls need a token. It is read again when it changes."
    )
    jwt_jwks: str | None = Field(
        None,
        min_length=1,
        description="The keys of an identity provider (a JSON Web Key Set): a file or an `https://` address. If it is "
        "set, calls need a token, and its JSON Web Tokens are accepted.",
    )
    jwt_issuer: str | None = Field(None, min_length=1, description="The issuer that such a token must name (`iss`).")
    jwt_audience: str | None = Field(None, min_length=1, description="The audience that it must name (`aud`).")
    jwt_role_claim: str = Field(
        "role", min_length=1, description="The claim with the role: `read`, `write` or `admin`, or a list of such."
    )
    jwt_windows_claim: str = Field(
        "windows",
        description="The claim with the patterns of windows: a list, or a text with spaces between. If this is empty, "
        "every window.",
    )
    rate_limits: Path | None = Field(
        None,
        description="A YAML file of limits. If it is set, Envoy's rate limit service is on the port of gRPC, and "
        "decides by them. It is read again when it changes.",
    )
    public: Public = Field(
        (),
        description="What needs no token: `metrics` (`/metrics`), `docs` (`/docs`, `/openapi.json`), or both.",
    )
    log_level: LogLevel = Field("info", description="The least severe messages to log.")
    log_format: LogFormat = Field("text", description="`text`, or `json`: the log as a JSON object a line.")
    traces: Literal["off", "otlp"] = Field(
        "off",
        description="`otlp` sends traces of calls to the OpenTelemetry collector that `OTEL_EXPORTER_OTLP_ENDPOINT` "
        "names. It needs `sash[otel]`.",
    )

    @property
    def calls_per_address(self) -> int:
        """How many calls of each edge may come from one address."""
        return self.max_calls_per_address or math.ceil(self.max_concurrent_calls * 0.9)


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that looks like a setting and is none, in order."""
    known = {f"SASH_{name.upper()}" for name in Settings.model_fields}
    said = []
    for name, value in sorted(environment.items()):
        if name.startswith("SASH_") and name not in known and not _OTHERS.fullmatch(f"{name}={value}"):
            near = get_close_matches(name, known, 1, 0.75)
            said.append(f"{name} is no setting and is ignored" + (f"; is {near[0]} meant?" if near else ""))
    return said


def load_settings(**given: object) -> Settings:
    """Read the environment; what is given (and not None) goes before it.

    Raises:
        InvalidArgument: the first setting that is wrong, by its name.
    """
    environment = {name.upper(): value for name, value in os.environ.items()}
    chosen: dict[str, object] = {
        name: environment[variable]
        for name in Settings.model_fields
        if (variable := f"SASH_{name.upper()}") in environment
    }
    chosen.update((name, value) for name, value in given.items() if value is not None)
    try:
        return Settings.model_validate(chosen)
    except ValidationError as error:
        name, wrong = first_wrong(error)
        raise InvalidArgument(f"SASH_{name.upper()} {wrong}", field=name) from None
