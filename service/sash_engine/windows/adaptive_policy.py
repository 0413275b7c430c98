"""The part `slide.adaptive` of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import NUMERIC

__all__ = ["AdaptivePolicy", "check_adaptive"]

_PATH = "slide.adaptive"


class AdaptivePolicy(BaseModel):
    """When the mean of a field changes, the entries from before the change leave (ADWIN)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    field: str | None = Field(
        None, description="The numeric field to watch. It may be left out where the window has only one."
    )
    delta: float = Field(
        0.002,
        gt=0,
        lt=1,
        description="How probable it may be that entries leave although nothing has changed. A smaller `delta` needs a "
        "clearer change.",
    )
    every: int = Field(
        32, ge=1, le=1_000_000, description="Test a key after so many of its entries on average; 1: after every write."
    )
    range: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="How far two values may be apart. It matters where the values hardly vary, and in small windows: a "
        "change must be clear compared with it.",
    )


def check_adaptive(policy: AdaptivePolicy | None, fields: Mapping[str, str], **others: Any) -> None:
    """Check that a window can be adaptive.

    Args:
        policy: None: nothing to check.
        fields: the window's fields and their types.
        others: options of the spec that it cannot be combined with.

    Raises:
        InvalidArgument: it has another option that excludes it, or no such numeric field.
    """
    if policy is None:
        return
    for name, value in others.items():
        if value is not None:
            raise InvalidArgument(f"slide.adaptive reads entries: leave {name} out", field=_PATH)
    field = policy.field or (next(iter(fields)) if len(fields) == 1 else None)
    if field is None:
        raise InvalidArgument("slide.adaptive: say which field", field=f"{_PATH}.field")
    if field not in fields:
        raise InvalidArgument(
            f"slide.adaptive: no field {field!r:.80}; the window has {', '.join(fields)}", field=f"{_PATH}.field"
        )
    if fields[field] not in NUMERIC:
        raise InvalidArgument(
            f"slide.adaptive cannot read a {fields[field]} field",
            field=f"{_PATH}.field",
            limit=" or ".join(NUMERIC),
        )
