"""What was known then: logged answers that are given again, and what it costs to keep arrivals.

    writes ──▶ window ──▶ answers, logged ──▶ restart ──▶ writes … ──▶ answers_at(key, end, known_at) = the log

1. Answers of a service of two processes are logged while entries come: 5 % of them up to a day late, 1 % are retracted
   or corrected later. The service is restarted three times. Then the whole log is asked about with `answers_at`. Every
   answer must be what was logged, bit for bit.
2. The processor time of a pair with `known_at` and without it, beside a window without `known` that has the same
   entries: of many small keys, of fewer with some blocks, and of one. And the bytes of an entry in both: in memory, and
   in a block on the tier, with what was removed. In process; the pairs are answers as they would have been logged after
   one of the writes of 20,000 entries, which many pairs of one key share; and of one key also after any entry.

Run ``python -m bench.known`` (some minutes), or with ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.harness import arguments, head, row, service, timed
from sash_client import Client
from sash_engine.forest import BLOCK
from sash_engine.steps import finished
from sash_engine.version import compiled
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import AnswersAt
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.coded import Coded

SPEC: dict[str, Any] = {
    "name": "cards",
    "time_unit": "s",
    "keyed": True,
    "fields": {"amount": "float64", "id": "int64"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "amount"},
        "most": {"function": "max", "field": "amount"},
        "last": {"function": "last", "field": "amount"},
    },
    "identity": "id",
    "slide": {"max_age": "1d"},
    "history": "400d",
}
LOOKBACKS, SPANS = ["1h", "1d"], (3_600, 86_400)
LATE, TAKEN_BACK, LATE_S = 0.05, 0.01, 86_400
PARTS, ASKED, BULK = 4, 100, 1_000
Array = Any


class Stream:
    """Entries as they come, and names of earlier ones to be taken back. Sums of the amounts are exact.

    Args:
        n: how many entries there are, over 30 days.
        keys: of how many keys.
    """

    def __init__(self, n: int, keys: int, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        times = np.sort(random.integers(0, 30 * 86_400, n))
        late = np.where(random.random(n) < LATE, random.integers(1, LATE_S, n), 0)
        order = np.argsort(times + late, kind="stable")
        self.times, self.names = times[order], [f"card {i}" for i in range(keys)]
        self.codes, self.ids = random.integers(0, keys, n), np.arange(n)
        self.amounts, self._random = random.integers(1, 100_000, n) / 64, random

    def bulks(self, size: int) -> Iterator[tuple[slice, Array, Array]]:
        """Yield the rows of each bulk, and those before it that are retracted, and that are corrected, after it."""
        for a in range(0, len(self.times), size):
            b = min(a + size, len(self.times))
            some = np.unique(self._random.integers(max(0, a - 20 * size), b, max(int(TAKEN_BACK * (b - a)), 2)))
            yield slice(a, b), some[::2], some[1::2]


def main() -> None:
    """Measure and print."""
    smoke = arguments(__doc__).smoke
    print(f"compiled: {compiled()}, load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory() as folder:
        again(folder, *((4_000, 50, 2_000) if smoke else (500_000, 5_000, 1_000_000)))
    print()
    bytes_of = ("bytes an entry on the tier", "in memory")
    head(
        "keys", "entries", "µs a pair, without known", "with it, as of now", "with known_at", "times as long", *bytes_of
    )
    small = (200, 4_000), (4, 8_000), (1, 3_000)
    for keys, n in small if smoke else ((10_000, 2_000_000), (100, 1_000_000), (1, 1_000_000)):
        for each in (False, True)[: 1 + (keys == 1)]:
            cost(keys, n, 500 if smoke else 100_000, each)


def again(folder: str, entries: int, keys: int, answers: int) -> None:
    """Log answers of a service that is restarted, and ask for them again; raises AssertionError."""
    stream, log = Stream(entries, keys), list[Any]()
    bulks, per_bulk = list(stream.bulks(BULK)), -(-answers // (-(-entries // BULK) * ASKED * len(LOOKBACKS)))
    random, begun = np.random.default_rng(2), time.perf_counter()
    for part in range(PARTS):
        given = ("--data", folder, "--processes", "2", "--shards", "4")
        with service(*given) as running, Client(running.grpc_target) as client:
            window = client.create_window({**SPEC, "known": "arrival"})
            for rows, retracted, corrected in bulks[part * len(bulks) // PARTS : (part + 1) * len(bulks) // PARTS]:
                columns = {"amount": stream.amounts[rows], "id": stream.ids[rows]}
                window.bulk_insert(stream.times[rows], columns, keys=_keys(stream, rows))
                window.retract(stream.times[retracted], stream.ids[retracted], keys=_keys(stream, retracted))
                other = {"amount": stream.amounts[corrected] + 1, "id": stream.ids[corrected]}
                window.update(stream.times[corrected], other, keys=_keys(stream, corrected))
                for _ in range(per_bulk):
                    some = [stream.names[code] for code in random.integers(0, keys, ASKED).tolist()]
                    log += [each for each in window.query(keys=some, lookbacks=LOOKBACKS) if each.end is not None]
            if part == PARTS - 1:
                asked = time.perf_counter()
                equal = _asked_again(window, log)
                took = time.perf_counter() - asked
                info = window.describe()
    counts = info.counts
    print(
        f"{len(log):,} answers of {keys:,} keys logged beside {counts.inserted:,} entries, {counts.retracted:,} "
        f"retractions and {counts.corrected:,} corrections, over {PARTS - 1} restarts of 2 processes, in "
        f"{asked - begun:.0f} s; asked again in {took:.0f} s: {equal:,} are the same, bit for bit"
    )
    assert equal == len(log) >= answers // 2, "not all of them are the same"


def _keys(stream: Stream, rows: Any) -> list[str]:
    return [stream.names[code] for code in stream.codes[rows].tolist()]


def _asked_again(window: Any, log: list[Any]) -> int:
    """How many logged answers are given again."""
    equal = 0
    for lookback in LOOKBACKS:
        mine = [each for each in log if each.lookback == lookback]
        ends, known = (np.array([getattr(each, name) for each in mine]) for name in ("end", "known_at"))
        keys = [each.key for each in mine]
        found = window.answers_at(ends, keys=keys, lookbacks=[lookback], known_at=known).columns
        same = found[f"entries_{lookback}"] == np.array([each.entries for each in mine])
        for name in SPEC["aggregates"]:
            logged = np.array([each.aggregates[name] for each in mine], object)
            same &= np.array([_bits(a) == _bits(b) for a, b in zip(found[f"{name}_{lookback}"], logged, strict=True)])
        equal += int(same.sum())
    return equal


def _bits(value: Any) -> bytes | None:
    return None if value is None or value is np.ma.masked else np.float64(value).tobytes()


def cost(keys: int, n: int, pairs: int, each: bool) -> None:
    """Print what a pair costs with and without what was known, of windows in process; logged after `each` entry."""
    stream, random, ends, numbers = Stream(n, keys), np.random.default_rng(3), list[Array](), list[Array]()
    newest = np.maximum.accumulate(stream.times)
    windows = [Window(WindowSpec.parse({**SPEC, "known": known})) for known in (None, "arrival")]
    for rows, retracted, corrected in stream.bulks(20 * BULK):
        assert windows[1].known is not None
        before = windows[1].known.number
        for window in windows:
            window.bulk_insert(_batch(stream, rows, 0))
            window.retract(_batch(stream, retracted, None))
            window.update(_batch(stream, corrected, 1))
        ends.append(newest[rows][0 if each else -1 :])
        numbers.append(
            np.arange(before + 1, before + 1 + len(ends[-1])) if each else np.array([windows[1].known.number])
        )
    all_ends, all_numbers = np.concatenate(ends), np.concatenate(numbers)
    at = random.integers(0, len(all_ends), pairs)
    codes = np.sort(random.integers(0, keys, pairs))
    times, known, coded = all_ends[at], all_numbers[at], Coded(stream.names, codes)
    plain, now, then = (
        _processor_us(window, AnswersAt(times, coded, SPANS, known_at=at), pairs)
        for window, at in ((windows[0], None), (windows[1], None), (windows[1], known))
    )
    tier, memory = (" -> ".join(f"{each:.1f}" for each in sizes) for sizes in zip(*map(_bytes, windows), strict=True))
    name = f"{keys:,}{', any entry' if each else ''}"
    row(name, f"{n:,}", f"{plain:.2f}", f"{now:.2f}", f"{then:.2f}", f"{then / plain:.1f}", tier, memory)


def _bytes(window: Window) -> tuple[float, float]:
    """The bytes of an entry in blocks on the tier, and in memory, with those of what was removed."""
    tier = memory = 0
    for each in (window, window.removed):
        for number in [] if each is None else each.keys.numbers().tolist():
            columns = each.keys.columns(number)
            memory += sum(column.nbytes for column in columns)
            for a in range(0, len(columns[0]), BLOCK):
                tier += sum(c.nbytes for c in each.keys.layout.stored([column[a : a + BLOCK] for column in columns]))
    return tier / window.counts.present, memory / window.counts.present


def _batch(stream: Stream, rows: Any, more: int | None) -> Batch:
    columns = {"id": stream.ids[rows]} | ({} if more is None else {"amount": stream.amounts[rows] + more})
    return Batch(stream.times[rows], columns, Coded(stream.names, stream.codes[rows]))


def _processor_us(window: Window, question: AnswersAt, pairs: int) -> float:
    asked = [timed(lambda: finished(window.past.answers_at_steps(question)), time.process_time) for _ in range(3)]
    return sorted(asked)[1] / pairs * 1e6


if __name__ == "__main__":
    main()
