"""What an operator can set, from the environment: ``SASH_GRPC_PORT=7070`` and so on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from sash.errors import InvalidArgument

__all__ = ["MIB", "Settings", "load_settings"]

MIB = 2**20

Port = Annotated[int, Field(ge=0, le=65535)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class Settings(BaseSettings):
    """The settings of one service; each is read from ``SASH_`` and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="SASH_", frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", min_length=1, description="Address that both edges listen on.")
    grpc_port: Port = Field(7070, description="Port of gRPC; 0 takes a free one.")
    rest_port: Port = Field(7071, description="Port of REST and the page; 0 takes a free one.")
    data: str = Field(
        "sash-data",
        min_length=1,
        description="Where windows are kept: a directory, redis://… or rediss://…, or `memory`, which keeps nothing.",
    )
    data_max_bytes: int | None = Field(
        None, ge=MIB, description="Most bytes that a data directory may take; as many as the disk has if not set."
    )
    redis_prefix: str = Field(
        "sash", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="What the keys of this service begin with in Redis."
    )
    cache_bytes: int = Field(
        256 * MIB, ge=0, description="Most bytes of sealed blocks in memory that the tier has as well."
    )
    checkpoint_bytes: int = Field(
        64 * MIB, ge=4096, description="Bytes of journal after which a window is checkpointed: less is a quicker start."
    )
    store_entries: int = Field(
        32_768, ge=1, description="Entries in sealed blocks that a window gathers before it writes them to the tier."
    )
    commit_interval_ms: int = Field(
        100, ge=1, le=60_000, description="Milliseconds that writes of durability `interval` may gather."
    )
    max_body_bytes: int = Field(
        64 * MIB, ge=1024, le=2**31 - 1, description="Largest request of either edge, in bytes."
    )
    max_entries_per_write: int = Field(4_000_000, ge=1, description="Most entries that one write may carry.")
    max_windows: int = Field(1000, ge=1, description="Most windows there may be.")
    max_concurrent_calls: int = Field(
        1000, ge=1, description="Most calls in progress, for each edge; further ones are refused at once."
    )
    shutdown_delay_s: float = Field(
        0.0, ge=0, description="Seconds to go on serving, reported as not ready, before the edges close."
    )
    shutdown_grace_s: float = Field(
        10.0, ge=0, description="Seconds that calls in progress have to finish once the edges close."
    )
    log_level: LogLevel = Field("info", description="Least severe messages to log.")


def load_settings(**given: object) -> Settings:
    """Read the environment; what is given (and not None) goes before it.

    Raises:
        InvalidArgument: the first setting that is wrong, by its name.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**chosen)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(f"SASH_{name.upper()}: {first['msg']}", field=name) from None
