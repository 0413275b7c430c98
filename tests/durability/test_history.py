"""Windows with a history on each tier: the slide and the past after restarts, crashes, exports and loads."""

import numpy as np
import pytest

from sash.durability.images.export import export
from sash.durability.records.commands import (
    BulkEvict,
    BulkInsert,
    Commit,
    EvictRange,
    Insert,
    Retract,
    StageBatch,
    Update,
)
from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, InvalidArgument
from sash_engine.windows.batches.batch import Coded
from sash_engine.windows.questions import Grouped, Query, SeriesQuery
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.exports import imported
from tests.support.historic import same_answers
from tests.support.salvaged import Salvaged
from tests.support.stored import running, write_both
from tests.support.tiers import kinds
from tests.support.twins import alike
from tests.support.viewed import SUMS, names_in, requests, some_requests, twin_spec

SPEC = requests(slide={"max_age": 12}, history=200)
VIEW = WindowSpec.parse({"name": "wide", "of": "requests", "slide": {"max_age": 100}, "aggregates": SUMS})


def twin(max_age, spec=SPEC):
    document = {name: value for name, value in spec.document().items() if name != "history"}
    return Window(WindowSpec.parse(document | {"slide": {"max_age": max_age}}), block=4, clock=ManualClock())


def bulk(random, step):
    return some_requests(random, step, oldest=-60)


def compare(storage, shown, kept):
    window = storage.find("requests")
    same_answers(window, shown, kept, partials=False)
    assert window.info().counts == kept.counts, "what is kept is counted"
    window.check_invariants(alike)


@pytest.mark.parametrize("place", kinds("redis"), indirect=True)
async def test_histories_survive_restarts_and_crashes_on_each_tier(place):
    random = np.random.default_rng(11)
    shown, kept = twin(12), twin(200)
    view = completed(VIEW, SPEC)
    wide = Window(twin_spec(view), block=4, clock=ManualClock())
    kept_wide = twin(200, WindowSpec.parse(twin_spec(view).document()))
    twins = shown, kept, wide, kept_wide
    server, storage = await running(SPEC, VIEW, place=place, cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
    for step in range(9):
        batch = bulk(random, step)
        done = await storage.write("requests", BulkInsert(batch))
        late, _, *_ = [each.bulk_insert(batch).late for each in twins]
        assert done.history == late - done.late, "late for the slide, and taken into the history"
        if step == 4:
            names, changed = names_in(batch, 0, 9), names_in(batch, 10, 19, w=Coded.of(["new"] * 9))
            retracted = await write_both(storage, "requests", twins, Retract(names))
            corrected = await write_both(storage, "requests", twins, Update(changed))
            assert (retracted.retracted, corrected.corrected) == (9, 9), "most are older than the slide"
            more = BulkEvict(-10, "x|y"), EvictRange(24, 27), Insert(-5, {"v": 5, "w": "ü"}, "x|y")
            await write_both(storage, "requests", twins, *more)
        if step == 6:  # years that come in at once, older than what is there
            stages = [bulk(random, step - 12), bulk(random, step - 9)]
            tokens = [(await storage.write("requests", StageBatch(each, "q", 1))).stage for each in stages]
            mark = storage.find("requests").mark
            done = await storage.write("requests", Commit("q", 1, tokens))
            assert done.inserted == done.history > 0, "none of them is in the slide"
            assert storage.find("requests").mark == mark
            for each in twins:
                for stage in stages:
                    each.bulk_insert(stage)
        await server.spilled()
        if step % 2:
            storage = await (server.restart() if step % 4 == 1 else server.crash())
        if step in (3, 4, 6, 7):
            compare(storage, shown, kept)
            same_answers(storage.find("wide"), wide, kept_wide)
    assert (await storage.create(SPEC))[1] is False
    with pytest.raises(AlreadyExists):
        await storage.create(WindowSpec.parse(SPEC.document() | {"history": 201}))


async def test_an_export_has_the_history():
    window = Window(SPEC, block=4, clock=ManualClock())
    random = np.random.default_rng(5)
    shown, kept = twin(12), twin(200)
    for step in range(5):
        batch = bulk(random, step)
        for each in (window, shown, kept):
            each.bulk_insert(batch)
    again = imported(b"".join(export(window)))
    assert again.spec == SPEC
    for each in (window, again):
        same_answers(each, shown, kept, partials=False)
        assert each.info().entries == kept.info().entries
        each.check_invariants(alike)
    again.bulk_insert(batch := bulk(random, -9))
    for each in (shown, kept):
        each.bulk_insert(batch)
    same_answers(again, shown, kept, partials=False)


async def test_a_salvaged_window_has_its_history():
    server, storage = await running(SPEC, store_entries=4)
    batch = bulk(np.random.default_rng(5), 3)
    await storage.write("requests", BulkInsert(batch))
    entries = storage.find("requests").info().entries
    past = await storage.ask("requests", Query("x|y", as_of=100))
    await storage.stop()
    async with Salvaged(server.store.values) as salvaged:
        assert salvaged.storage.find("requests").info().entries == entries
        assert await salvaged.storage.ask("requests", Query("x|y", as_of=100)) == past


async def test_long_questions_about_the_past_are_not_about_the_slide():
    _, storage = await running(SPEC)
    await storage.write("requests", BulkInsert(bulk(np.random.default_rng(5), 3)))
    (every,) = await storage.ask("requests", Query(as_of=100, selection=Grouped(by=[])))
    assert every.entries == 50
    assert (await storage.ask("requests", Query("x|y", as_of=100)))[0].entries == 50, "nor are short ones"
    (slide,) = await storage.ask("requests", Query(selection=Grouped(by=[])))
    assert 0 < slide.entries < 50
    assert (await storage.ask("requests", SeriesQuery(-100, 100, 200, key="x|y"))).entries.sum() < 50
    for question in (Query("x|y", as_of=100), Query("x|y")):
        storage.find("requests")
        readers = {storage.find("requests").reader, storage.find("requests").past}
        assert all(reader._costs.need == storage.need for reader in readers), f"memory is bounded for {question}"


async def test_a_window_that_is_not_stored_keeps_its_history_in_memory():
    _, storage = await running()
    spec = WindowSpec.parse(SPEC.document() | {"durability": "memory"})
    await storage.create(spec)
    await storage.write("requests", BulkInsert(bulk(np.random.default_rng(5), 3)))
    assert (await storage.ask("requests", Query(as_of=100, selection=Grouped(by=[]))))[0].entries == 50
    with pytest.raises(InvalidArgument, match="as_of"):
        await storage.ask("requests", Query("x|y", as_of=2**63 - 1))
