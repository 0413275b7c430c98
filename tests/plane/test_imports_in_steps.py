"""Imports in steps: a frame with many sketches is loaded some at a time, and the window is as it was exported."""

import numpy as np
import pytest

from sash.durability.images import export as exporting
from sash.durability.images.export import Importer, export
from sash_engine.errors import InvalidArgument
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

SPEC = WindowSpec.parse(
    {
        "name": "w",
        "keyed": True,
        "time_unit": "s",
        "granularity": "1s",
        "fields": {"v": "float64"},
        "aggregates": {
            "sum": {"function": "sum", "field": "v"},
            "users": {"function": "distinct_count", "field": "v"},
        },
    }
)


def filled(panes):
    window = Window(SPEC)
    values, keys = np.arange(panes) % 7.0, [f"k{i % 3}" for i in range(panes)]
    window.bulk_insert(Batch.of(SPEC, np.arange(panes) // 3, {"v": values}, keys))
    return window


def importer():
    return Importer(lambda spec: Window(spec))


def steps_of(made, data):
    return sum(1 for _ in made.feed_steps(data))


@pytest.mark.parametrize("panes", [63, 64, 90, 200])
def test_what_is_imported_in_steps_is_what_was_exported(panes, monkeypatch):
    monkeypatch.setattr(exporting, "_PARTIALS", 8)
    window, made = filled(panes), importer()
    steps = steps_of(made, b"".join(export(window)))
    assert steps >= panes // 8
    question = Query(keys=ALL_KEYS, lookbacks=["5s", "1h"])
    assert made.finish().reader.query(question) == window.reader.query(question)


def test_twice_the_panes_are_at_most_twice_the_steps(monkeypatch):
    monkeypatch.setattr(exporting, "_PARTIALS", 8)
    once, twice = (steps_of(importer(), b"".join(export(filled(panes)))) for panes in (300, 600))
    assert once > 30
    assert twice <= 2.1 * once


def test_a_frame_whose_columns_differ_in_length_is_refused_whole(monkeypatch):
    """The rows beyond the shortest column must not be left out in silence."""
    monkeypatch.setattr(exporting, "_PARTIALS", 8)
    read = exporting.batch_of

    def longer(payload, spec, name):
        batch = read(payload, spec, name)
        partials = {name: tuple(np.append(part, part[:1]) for part in parts) for name, parts in batch.partials.items()}
        return exporting.PartialBatch(batch.times, partials, batch.entries, batch.keys)

    monkeypatch.setattr(exporting, "batch_of", longer)
    with pytest.raises(InvalidArgument, match="rows where time has"):
        importer().feed(b"".join(export(filled(90))))
