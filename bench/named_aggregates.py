"""What a question saves that names one of ten aggregates: nothing else is folded.

    window   2^20 entries of one key, or 2^16 keys of eight entries; ten aggregates, two of them sketches
    asked    a lookback of half of it, after each bulk of 1,024; or all keys by one of their parts

Times are of the processor, medians. The answers of both questions are compared.

Run ``python -m bench.named_aggregates`` (half a minute), or with ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import statistics
import sys
from time import thread_time as processor

import numpy as np

from bench.harness import arguments, digest, head, row
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Grouped, Query, selecting
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

BULK, KEY = 1_024, 8
FUNCTIONS = ("sum", "mean", "min", "max", "stddev", "range", "distinct_count", "quantile", "skewness", "kurtosis")


def window_of(keys: list[str] | None, entries: int) -> Window:
    """A window of ten aggregates."""
    aggregates = {name: {"function": name, "field": "v"} for name in FUNCTIONS}
    aggregates["quantile"] |= {"q": 0.99}  # type: ignore[dict-item]
    document = {"name": "w", "time_unit": "none", "fields": {"v": "float64"}, "aggregates": aggregates}
    more = {"slide": {"max_age": entries}} if keys is None else {"keys": keys}
    return Window(WindowSpec.parse(document | more))


def bulk(start: int, n: int, keys: Coded | None = None) -> Batch:
    """Entries of a time each."""
    times = np.arange(start, start + n)
    return Batch(times, {"v": (times * 7919 % 1000).astype(np.float64)}, keys)


def measured(
    window: Window, questions: dict[str, Query], rounds: int, write: bool
) -> tuple[dict[str, float], tuple[float, ...]]:
    """Milliseconds that each question takes, and the last sums; exits where the answers differ."""
    took = {name: list[float]() for name in questions}
    at = 0 if window.mark < 0 else window.mark + 1
    for _ in range(rounds):
        if write:
            window.bulk_insert(bulk(at, BULK))
            at += BULK
        sums = set[tuple[float, ...]]()
        for name, question in questions.items():
            began = processor()
            answers = window.reader.query(question)
            took[name].append(processor() - began)
            sums.add(tuple([round(answer.aggregates["sum"], 3) for answer in answers]))
        if len(sums) > 1:
            sys.exit("the answers differ")
    return {name: 1e3 * statistics.median(each) for name, each in took.items()}, sums.pop()


def main() -> None:
    """Print the figures."""
    smoke = arguments(__doc__).smoke
    entries, keys, rounds = (2**13, 2**8, 3) if smoke else (2**20, 2**16, 50)
    one, many = window_of(None, entries), window_of(["host", "path"], entries)
    for start in range(0, 2 * entries, BULK):
        one.bulk_insert(bulk(start, BULK))
    names = [f"h{i % 64}|p{i}" for i in range(keys)]
    for round_ in range(KEY):
        many.bulk_insert(bulk(round_ * keys, keys, Coded(names, np.arange(keys, dtype=np.uint32))))
    all_sums = []
    head("ms", "all ten", "one, a sum")
    for title, window, question, write in (
        ("a lookback of one key", one, Query(lookbacks=[entries // 2]), True),
        (f"{keys} keys in 64 groups", many, Query(selection=Grouped(by=["host"])), False),
    ):
        questions = {"all": question, "one": selecting(question, aggregates=["sum"])}
        found, sums = measured(window, questions, rounds if write else min(rounds, 5), write)
        all_sums.append(sums)
        row(title, *(f"{ms:,.3f}" for ms in found.values()))
    print(f"\ndigest {digest(all_sums)}")


if __name__ == "__main__":
    main()
