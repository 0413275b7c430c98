"""The garbage collector, out of the way of what is counted."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["no_collection"]


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect before, and not within: what other tests left may be finalized by functions."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
