"""Sketches that were damaged are decoded and used, in a process of their own: the library may take it down.

python -m tests.support.damaged SEED MUTANTS
"""

import random
import sys
from collections.abc import Iterator

import datasketches as ds
import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Bloom, CountMin, DistinctCount, FrequentItems, Monoid, Quantile, ThetaSketch

ODD = [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255]
WORDS = [b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\0\x10\0"]


def sketches() -> Iterator[tuple[Monoid, bytes]]:
    """Aggregates, and sound sketches of other people that they read: of all forms, few and many values, other sizes."""
    for lg_k in (4, 8, 12):
        for n in (0, 1, 7, 20, 100, 600, 5000):
            for kind in (ds.HLL_4, ds.HLL_6, ds.HLL_8):
                hll = ds.hll_sketch(lg_k, kind)
                for i in range(n):
                    hll.update(i)
                yield DistinctCount("int64", lg_k=12), hll.serialize_compact()
                yield DistinctCount("int64", lg_k=4), hll.serialize_updatable()
    for k in (8, 200, 5000):
        for n in (0, 1, 2, 9, 300, 5000):
            kll = ds.kll_doubles_sketch(k)
            kll.update(np.random.default_rng(n).normal(size=n))
            yield from [(Quantile(k=ours, q=[0, 0.3, 1]), kll.serialize()) for ours in (8, 200)] * 4
    for lg_k in (3, 10):
        for n in (0, 1, 5, 100):
            strings, numbers = ds.frequent_strings_sketch(lg_k), ds.frequent_items_sketch(lg_k)
            for i in range(n):
                strings.update(f"é{i}", i + 1)
                numbers.update(i, i + 1)
            yield from [(FrequentItems("string"), strings.serialize())] * 4
            yield from [(FrequentItems("int64", lg_max_map_size=3), numbers.serialize(ds.PyLongsSerDe()))] * 4
    for k in (10, 200):
        for n in (1, 2, 300, 20_000):
            digest = ds.tdigest_double(k)
            digest.update(np.random.default_rng(n).normal(size=n))
            yield from [
                (Quantile(k=ours, q=[0, 0.3, 1], accuracy="tail"), digest.serialize()) for ours in (10, 200)
            ] * 4
    for n in (1, 2, 20, 20_000):
        theta = ds.update_theta_sketch(8)
        for i in range(n):
            theta.update(i)
        yield from [(ThetaSketch("int64", lg_k=6), theta.compact().serialize(compress=n < 50))] * 4
    counts = CountMin("int64", error=0.3)
    yield from [(counts, counts.encode(counts.reduce([np.arange(n)]))) for n in (1, 9)] * 4
    for n in (0, 1, 10):
        bloom = Bloom("int64", capacity=10)
        yield from [(bloom, bloom.encode(bloom.reduce([np.arange(n)])))] * 4


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A few bytes are others, mostly in the head, or the end is another."""
    image = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        hot, kind = min(len(image), chance.choice([8, 8, 20, 44, 80, 10**9])), chance.random()
        if not hot:
            break
        at = chance.randrange(hot)
        if kind < 0.6:
            image[at] = chance.choice([*ODD, chance.randrange(256)])
        elif kind < 0.75:
            image[at] ^= 1 << chance.randrange(8)
        elif kind < 0.85:
            image[at : at + 4] = chance.choice(WORDS)
        elif kind < 0.95:
            del image[chance.randrange(len(image) + 1) :]
        else:
            image += bytes(chance.choice([1, 4, 8, 64]))
    return bytes(image)


def use(monoid: Monoid, partial: object) -> None:
    """All that a window does with a partial."""
    values = np.array([f"{i}" for i in range(300)], object) if monoid.types[0] == "string" else np.arange(300)
    other = monoid.reduce([values])
    both = monoid.combine(monoid.combine(partial, other), monoid.combine(other, partial))
    for each in (partial, monoid.combine(partial, partial), both, monoid.fold(monoid.pack([partial, other, partial]))):
        str(monoid.lower(each)).encode()
        monoid.restore(monoid.encode(each))


def main(seed: int, mutants: int) -> None:
    chance, sound, taken = random.Random(seed), list(sketches()), 0
    for monoid, data in sound:
        use(monoid, monoid.decode(data))
    for _ in range(mutants):
        monoid, data = chance.choice(sound)
        image = damaged(data, chance)
        try:
            partial = monoid.decode(image)
        except InvalidArgument:
            continue
        taken += 1
        try:
            use(monoid, partial)
        except Exception as error:
            raise AssertionError(f"{monoid!r} took {image[:400].hex()} of {len(image)} bytes") from error
    print(f"{taken} of {mutants} damaged sketches are plausible")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
