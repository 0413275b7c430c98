"""Long questions and long writes of few keys and rows, so that tests can act between two of their steps."""

from sash.durability import storage
from sash.runtime import slices
from sash_engine.windows.reading import costs, group_reader, group_series, key_finder
from sash_engine.windows.writing import writer


def small_question_steps(patch):
    """Each step is a slice, a step is of two keys, and a question about two keys is long."""
    patch.setattr(slices, "_SLICE_S", -1.0)
    patch.setattr(key_finder, "_NAMES", 2)
    patch.setattr(group_reader, "_SPANS", 2)
    patch.setattr(group_series, "KEYS", 2)
    patch.setattr(costs, "_STEP_US", 20)


def small_write_steps(patch, long_bytes=1000):
    """Each step is a slice, a step is of two keys, and a write of more than `long_bytes` is long."""
    patch.setattr(slices, "_SLICE_S", -1.0)
    patch.setattr(storage, "_LONG_BYTES", long_bytes)
    patch.setattr(writer, "_KEYS", 2)
    patch.setattr(writer, "ROWS", 1)
