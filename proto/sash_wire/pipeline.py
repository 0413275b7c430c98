"""What documents of pipelines have in common, Spark's and those of `sash ingest`: one validated YAML document.

service: 127.0.0.1:7070          credentials: token_file, tls
time, key, parts                 the mapping of all windows (`mapping.py`)
windows:
  - spec: departures.yaml        a file beside this one, or the spec itself
    fields: {delay: dep_delay}   and time, key, parts where this window has others
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sash_wire.errors import WireError
from sash_wire.mapping import Sources, sources

D = TypeVar("D", bound="PipelineDocument")


class Document(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetDocument(Document):
    """A window that records go to; it is created if it does not exist."""

    spec: dict[str, Any]
    time: str | None = None
    key: str | None = None
    parts: dict[str, str] | None = None
    fields: dict[str, str] | None = None

    @property
    def name(self) -> str:
        """The window's name."""
        return str(self.spec.get("name"))


class Tls(Document):
    """Files for TLS, on the driver and on every executor; an empty mapping: the public authorities."""

    ca: str | None = Field(None, min_length=1, description="The authorities of the service's certificate (PEM).")
    cert: str | None = Field(None, min_length=1, description="The pipeline's own certificate (PEM).")
    key: str | None = Field(None, min_length=1, description="The private key of that certificate (PEM).")
    name: str | None = Field(
        None, min_length=1, description="The name in the service's certificate, if it is not the host of `service`."
    )


class PipelineDocument(Document):
    """A document with windows and a mapping."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,127}$")
    time: str
    key: str | None = None
    parts: dict[str, str] | None = Field(
        None, description="Of windows with `keys`: part -> expression; other parts are columns of their name."
    )
    windows: list[Any]

    def sources(self, i: int, spec: Mapping[str, Any]) -> Sources:
        """Return where the columns of a window come from.

        Args:
            i: its place among the windows.
            spec: as the service has it.

        Raises:
            WireError: the mapping does not fit the window; `field` is the place in the document.
        """
        target: TargetDocument = self.windows[i]
        own_key = target.key is not None or not spec.get("keys")
        key = (self.key if target.key is None else target.key) if own_key else None
        shared = self.parts if target.parts is None else None
        try:
            return sources(spec, target.time or self.time, key, target.parts, target.fields, shared=shared)
        except WireError as error:
            raise _at(f"windows[{i}]", error) from None


def loaded(model: type[D], path: Path) -> D:
    """Read and validate a document.

    Raises:
        WireError: `field` has the path of the first error.
        OSError: there is no such file.
    """
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise WireError(f"config is not UTF-8: {error}", field="config") from None
    return parsed(model, _yaml(text, "config"), path.parent)


def parsed(model: type[D], document: object, beside: Path = Path()) -> D:
    """Validate a document.

    Args:
        model: what it is.
        document: a mapping, as YAML gives it.
        beside: the directory that the names of spec files are relative to.

    Raises:
        WireError: `field` has the path of the first error.
    """
    if not isinstance(document, Mapping):
        raise WireError("a pipeline is a mapping of its parts", field="config")
    windows = document.get("windows")
    if isinstance(windows, list):
        document = {**document, "windows": [_with_spec(each, i, beside) for i, each in enumerate(windows)]}
    try:
        config = model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = _path(first["loc"])
        raise WireError(f"{path}: {first['msg']}", field=path) from None
    _check_windows(config)
    return config


def _at(place: str, error: WireError) -> WireError:
    return WireError(f"{place}.{error.message}", field=f"{place}.{error.field}", limit=error.limit)


def _with_spec(target: Any, i: int, beside: Path) -> Any:
    """Return a target with its spec, read from the file that it names, if it names one."""
    if not isinstance(target, Mapping) or not isinstance(target.get("spec"), str):
        return target
    field = f"windows[{i}].spec"
    try:
        text = (beside / target["spec"]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WireError(f"{field}: {error}", field=field) from None
    return {**target, "spec": _yaml(text, field)}


def _yaml(text: str, field: str) -> Any:
    try:
        return yaml.safe_load(text)
    except Exception as error:  # values of a type that they are not raise errors of any kind: 2020-99-99, !!bool maybe
        raise WireError(f"{field} is not YAML: {error}", field=field) from None


def _path(location: tuple[int | str, ...]) -> str:
    # Within a source, pydantic also says which kind of source it took it for.
    parts = location[:1] + location[2:] if location[:1] == ("source",) else location
    return (
        re.sub(r"\.(\[)", r"\1", ".".join(f"[{part}]" if isinstance(part, int) else part for part in parts)) or "config"
    )


def _check_windows(config: PipelineDocument) -> None:
    seen = set[str]()
    for i, target in enumerate(config.windows):
        if target.name in seen:
            field = f"windows[{i}].spec.name"
            raise WireError(f"{field}: {target.name!r} is there twice", field=field)
        seen.add(target.name)
        if target.key is not None and target.parts is not None:
            field = f"windows[{i}].parts"
            raise WireError(f"{field}: give either key or parts", field=field)
        if target.spec.get("keyed") and target.key is None and config.key is None:
            raise WireError(f"key: window {target.name!r} is keyed; say by what", field="key")
