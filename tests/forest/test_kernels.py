"""The loops over rows: what each says, and that C says the same, bit by bit, where the engine is compiled."""

import importlib.util
import itertools
import math
import sys
import warnings

import numpy as np
import pytest

from sash_engine import kernels

ORDERS = (2, 3, 4)


@pytest.fixture(scope="module")
def plain():
    """The functions of kernels.py, also where the module has those in C in their place."""
    spec = importlib.util.spec_from_file_location("plain_kernels", kernels.__file__)
    module = importlib.util.module_from_spec(spec)
    known, sys.modules["sash_engine._kernels"] = sys.modules.get("sash_engine._kernels"), None
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["sash_engine._kernels"]
        if known is not None:
            sys.modules["sash_engine._kernels"] = known
    return module


def columns():
    """Columns of many kinds: values that round, equal ones, special ones, none, long ones, with gaps, other types."""
    random = np.random.default_rng(3)
    for n in (0, 1, 2, 3, 17, 64, 100, 1024, 4096, 4097, 9000):
        yield random.normal(size=n) * 10.0 ** random.integers(-9, 9, n)
        yield np.full(n, 0.1)
        yield 1e9 + random.random(n) * 1e-3
        yield random.normal(size=2 * n)[::2]
        yield random.integers(-(2**63), 2**63 - 1, n)
    for special in (math.nan, math.inf, -math.inf, 1e308, -1e308, -0.0):
        yield np.array([1.0, special, 2.0, special, -3.0])
        yield np.array([special] * 40)
    yield np.array([-0.0, 0.0, -0.0, 0.0])
    unaligned = np.frombuffer(b"\0" + np.arange(9.0).tobytes(), np.uint8)[1:].view(np.float64)
    yield unaligned
    yield np.arange(9.0).astype(">f8")
    yield np.array([True, False, True])


def bits(value):
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    return (type(value), np.float64(value).tobytes()) if isinstance(value, float) else (type(value), value)


def outcome(call, *arguments):
    """What a call returns, to the bit, or the kind of error; and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return bits(call(*arguments))
        except Exception as error:
            return type(error)


def cuts(n):
    return {(0, n), (0, 0), (n, n), (min(1, n), n), (n // 3, n // 2), (n // 2, n), (0, n + 5), (max(n - 1, 0), n)}


def test_folds_are_the_same_to_the_bit(plain):
    for column in columns():
        for start, stop in cuts(len(column)):
            for name in ("total", "largest", "smallest"):
                call = outcome(getattr(kernels, name), column, start, stop)
                assert call == outcome(getattr(plain, name), column, start, stop), (name, column.dtype, start, stop)
            for order in ORDERS:
                call = outcome(kernels.powers, column, start, stop, order)
                assert call == outcome(plain.powers, column, start, stop, order), (order, column.dtype, start, stop)


def test_folds_are_those_of_the_definition():
    random = np.random.default_rng(5)
    for n in (1, 7, 64, 1024, 5000):
        column = random.normal(size=n) + 3.0
        rows = column.tolist()[n // 3 :]
        assert math.isclose(kernels.total(column, n // 3, n), math.fsum(rows), rel_tol=1e-12)
        assert kernels.largest(column, n // 3, n) == max(rows)
        assert kernels.smallest(column, n // 3, n) == min(rows)
        mean = math.fsum(rows) / len(rows)
        expected = (len(rows), mean, *(math.fsum((x - mean) ** power for x in rows) for power in (2, 3, 4)))
        assert kernels.powers(column, n // 3, n, 4) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert kernels.total(np.empty(0), 0, 0) == 0.0
    assert kernels.largest(np.array([2, 1]), 1, 1) is None
    assert kernels.powers(np.ones(4), 2, 2, 2) is None


@pytest.mark.parametrize("name", ["first_from", "first_after"])
def test_times_are_found(plain, name):
    random = np.random.default_rng(7)
    side = "left" if name == "first_from" else "right"
    for n in (0, 1, 2, 15, 16, 17, 100, 1024, 5000):
        dense = np.sort(random.integers(-n, n + 1, n))
        for times in (dense, dense * 10**14, np.repeat(dense, 2)[::2], np.zeros(n, np.int64)):
            start, stop = n // 5, n - n // 7
            near = [] if not n else random.choice(times, 20).tolist()
            for time in [*near, *(x + 1 for x in near), *(x - 1 for x in near), -(2**63), 2**63 - 1, 0]:
                expected = start + int(times[start:stop].searchsorted(time, side))
                assert getattr(kernels, name)(times, start, stop, time) == expected
                assert getattr(plain, name)(times, start, stop, time) == expected


def test_rows_are_merged(plain):
    random = np.random.default_rng(13)
    last = 2**63 - 1
    sizes = [(0, 0, 1), (0, 3, 1), (5, 0, 1), (1, 1, 1), (40, 7, 1), (40, 90, 3), (1024, 3, 9), (1024, 1024, 1)]
    for rows, k, apart in sizes:
        held, new = np.sort(random.integers(-9 * apart, 9 * apart, rows)), np.sort(random.integers(-9, 9, k) * apart)
        if rows > 1 and k > 1:
            held[-2:], new[-1] = last, last
        others = random.normal(size=rows), random.random(rows) < 0.5, np.array([f"old{i}" for i in range(rows)], object)
        theirs = random.normal(size=k), random.random(k) < 0.5, np.array([f"new{i}" for i in range(k)], object)
        for columns in (0, 1, 2, 3):
            given = [[held, *others[:columns]], [new, *theirs[:columns]]]
            for skip, stop, spare in [(0, rows, 0), (rows // 3, rows, 2), (rows // 2, rows - rows // 4, 0)]:
                before = [skip + int((held[skip:stop] <= time).sum()) for time in new.tolist()]
                for module in (kernels, plain):
                    found = module.merge(given[0], skip, stop, given[1], spare)
                    for column, old, newer in zip(found, *given, strict=True):
                        expected = np.insert(old[:stop], before, newer)
                        assert len(column) == stop + k + spare
                        assert (column.dtype, column[: stop + k].tolist()) == (old.dtype, expected.tolist())
    odd = [np.arange(6), np.ones(6)], [np.array([1, 4]), np.zeros(2)]
    for (held, values), (new, theirs) in (
        (odd[0], (np.array([4, 1]), np.zeros(2))),
        ((np.array([-2.5, -1.5, 3.0]), np.ones(3)), (np.array([-2.0, 1.0]), np.zeros(2))),
        ((odd[0][0], np.arange(12.0)[::2]), odd[1]),
        ((odd[0][0][::2], odd[0][1][:3]), odd[1]),
        (odd[0], (np.array([1, 4]), np.zeros(3))),
        (odd[0], (np.array([1, 4]), np.zeros(2, np.float32))),
        (odd[0], (np.array([1.5, 4.0]), np.zeros(2))),
        ((odd[0][0], odd[0][1][:2]), odd[1]),
    ):
        call = [held, values], 0, len(held), [new, theirs]
        found, expected = (
            outcome(lambda *given, merge=module.merge: [column.tolist() for column in merge(*given)], *call)
            for module in (kernels, plain)
        )
        assert found == expected


def test_names_are_looked_up(plain):
    for n in (0, 1, 70, 100_000):  # the index of the last one is of int32
        numbers = {f"key-{i}": i * i for i in range(n)}
        for i in range(0, n, 3):
            del numbers[f"key-{i}"]
        names = [f"key-{i}" for i in range(0, n + 200, 1 + n // 150)] + ["", "\u20ac"]
        expected = [numbers.get(name, -1) for name in names]
        for module in (kernels, plain):
            found = module.find_each(numbers, names)
            assert (found.dtype, found.tolist()) == (np.int64, expected)
            assert module.find_each(numbers, tuple(names)).tolist() == expected
    many = {i: i for i in range(100_000)}  # no key is a text

    class Odd(str):
        """A name that empties the dictionary when it is looked up."""

        def __hash__(self):
            numbers.clear()
            return 7

    assert kernels.find_each(numbers, [Odd("key-1"), "key-1"]).tolist() == [-1, -1]
    odd = [({"a": 1, 5: 2}, [5, "a", None]), ({"a": "b"}, ["a"]), ({"a": 2**70}, ["a"]), ({}, [[]])]
    for given in (*odd, (many, ["a"]), (many, [7])):
        found, expected = (
            outcome(lambda *both, find=module.find_each: find(*both).tolist(), *given) for module in (kernels, plain)
        )
        assert found == expected


def test_rows_are_found_by_time_and_name(plain):
    random = np.random.default_rng(9)
    for size, spare, strings in [(1, 0, False), (5, 3, True), (40, 0, False), (64, 64, True), (1024, 0, False)]:
        times, names, stops, gone = [], [], [], []
        for block in range(20):
            held = np.sort(random.integers(0, 2 * size, size)) + 2 * size * block
            ids = random.integers(0, 3, size)
            times.append(np.append(held, np.zeros(spare, np.int64)))
            named = np.array([f"n{x}" for x in ids.tolist()], object) if strings else ids
            names.append(np.append(named, named[:1].repeat(spare)))
            stops.append(size)
            gone.append(random.integers(0, size, size // 4).tolist() if block % 2 else None)
        wanted = np.sort(random.integers(0, 2 * size * 20, 150))
        blocks, skip = wanted // (2 * size), size // 3
        values = random.integers(0, 3, 150).tolist()
        values = [f"n{x}" for x in values] if strings else values
        expected = []
        for i, (block, time, value) in enumerate(zip(blocks.tolist(), wanted.tolist(), values, strict=True)):
            first = 0 if block else skip
            rows = first + np.flatnonzero(times[block][first:size] == time)
            if np.count_nonzero(wanted == time) > 1 or len(rows) > 1 or (len(rows) and rows[0] == size - 1):
                expected.append(kernels.UNCLEAR)
            else:
                there = len(rows) and names[block][rows[0]] == value and rows[0] not in (gone[block] or [])
                expected.append(rows[0] if there else kernels.ABSENT)
            if np.count_nonzero(wanted == time) > 1:
                assert time in (wanted[i - 1], wanted[min(i + 1, 149)])
        assert len(set(expected)) > 1
        call = [times, names, stops, gone, skip, blocks, wanted, values]
        for module in (kernels, plain):
            assert module.find_named(*call).tolist() == expected
        strange = [*values[:-1], 2**70]  # no column of int64 has it
        odd = [*call[:7], strange]
        assert (
            kernels.find_named(*odd).tolist()
            == plain.find_named(*odd).tolist()
            == [*expected[:-1], expected[-1] if expected[-1] == kernels.UNCLEAR else kernels.ABSENT]
        )


def test_sorted_is_told_from_unsorted():
    for n in (0, 1, 2, 3, 64, 255, 256, 257, 258, 1024):
        times = np.arange(n) // 2
        assert kernels.is_sorted(times)
        assert kernels.is_sorted(np.repeat(times, 2)[::2])
        for at in {0, 1, n // 2, n - 2} & set(range(n - 1)):
            broken = times.copy()
            broken[at] = broken[at + 1] + 1
            assert not kernels.is_sorted(broken)


def test_rows_are_appended_and_copied(plain):
    def room():
        return [np.zeros(8, np.int64), np.zeros(8), np.empty(8, object), np.zeros(8, np.bool_), np.zeros(8, np.int64)]

    for module in (kernels, plain):
        columns = room()
        module.append_row(columns, 2, 7, (1.5, "x", True, -3))
        module.append_row(columns, 3, np.int64(8), [2, None, False, np.int64(4)])
        assert [column[2:4].tolist() for column in columns] == [[7, 8], [1.5, 2.0], ["x", None], [True, False], [-3, 4]]
        into = room()
        module.copy_rows(into, 5, columns, 2, 4)
        assert [column[5:7].tolist() for column in into] == [column[2:4].tolist() for column in columns]
        assert not any(column[4] or column[7] for column in into)
        numbers, wider = [np.arange(4), np.arange(4.0)], [np.zeros(9, np.int64), np.zeros(9)]
        module.copy_rows(wider, 1, [column[1:] for column in numbers], 0, 3)
        module.copy_rows(wider, 6, [np.repeat(column, 2)[::2] for column in numbers], 1, 3)
        assert [column.tolist() for column in wider] == [[0, 1, 2, 3, 0, 0, 1, 2, 0]] * 2


def test_rows_that_cannot_be_written_are_refused(plain):
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    for module in (kernels, plain):
        for columns, row, time, values, error in [
            ([np.zeros(4, np.int64), np.zeros(4)], 4, 1, (1.0,), IndexError),
            ([np.zeros(4, np.int64), np.zeros(4)], 0, 2**63, (1.0,), OverflowError),
            ([np.zeros(4, np.int64), np.zeros(4)], 0, 1, (1.0, 2.0), IndexError),
            ([np.zeros(4, np.int64), np.zeros(4)], 0, 1, ("x",), ValueError),
            ([np.zeros(4, np.int64), frozen], 0, 1, (1.0,), ValueError),
        ]:
            with pytest.raises(error):
                module.append_row(columns, row, time, values)
        for into, at in (([np.zeros(4)], 3), ([frozen], 0)):
            with pytest.raises(ValueError, match=r"broadcast|read-only"):
                module.copy_rows(into, at, [np.ones(3)], 0, 3)
        assert not frozen.any()


def test_moments_are_joined_the_same_to_the_bit(plain):
    random = np.random.default_rng(9)
    runs = [kernels.powers(random.normal(size=n) * 10.0 ** random.integers(-200, 200), 0, n, 2) for n in range(1, 60)]
    runs += [None, (1, math.nan, math.nan), (1, math.inf, math.nan), (2**51, 0.1, 1e300), (2**70, 0.1, 1e300)]
    runs += [(3, 1e308, 1e308), (3, -1e308, 1e308), (2, 1, 1.0), (np.int64(2), np.float64(0.5), 0.25)]
    for older in runs:
        for newer in runs:
            assert outcome(kernels.join_powers, older, newer) == outcome(plain.join_powers, older, newer), (
                older,
                newer,
            )
    for n in (2, 5, 64):
        column = random.normal(size=n) + 3.0
        joined = kernels.join_powers(kernels.powers(column, 0, n // 2, 2), kernels.powers(column, n // 2, n, 2))
        assert joined == pytest.approx(kernels.powers(column, 0, n, 2), rel=1e-12)


def many_ranges(n, k, least, seed):
    """k ranges of n rows, of `least` rows at least; with none, all and single rows among them."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, n - least + 1, k)
    stops = np.minimum(starts + least + random.integers(0, n + 1, k), n)
    return np.append(starts, [0, n - least]), np.append(stops, [n, n])


@pytest.mark.parametrize(
    ("ranged", "single"), [("totals", "total"), ("largests", "largest"), ("smallests", "smallest")]
)
def test_folds_of_many_ranges_are_those_of_each(plain, ranged, single):
    for column in columns():
        if column.dtype not in (np.float64, np.int64) or (single == "total" and column.dtype != np.float64):
            continue
        least = 0 if single == "total" else 1
        if len(column) < least:
            continue
        starts, stops = many_ranges(len(column), 30, least, 11)
        for module in (kernels, plain):
            found = getattr(module, ranged)(column, starts, stops)
            expected = [
                getattr(plain, single)(column, a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
            assert found.dtype == column.dtype
            assert [bits(each) for each in found.tolist()] == [bits(each) for each in expected], (ranged, column.dtype)
            assert getattr(module, ranged)(column, starts[:0], stops[:0]).tolist() == []
        if least:
            with pytest.raises(TypeError):  # as in Python: nothing is the largest of no rows
                getattr(kernels, ranged)(np.arange(3), np.array([1]), np.array([1]))


def test_times_are_found_in_ranges_of_many_columns(plain):
    random = np.random.default_rng(13)
    sizes = [0, 1, 2, 3, 16, 17, 100, 1000]
    times = [np.append(np.sort(random.integers(0, 2 * n + 1, n)), random.integers(0, 50, 5)) for n in sizes]
    of = np.sort(random.integers(0, len(sizes), 900))
    ends = np.array(sizes)[of]
    first = (ends * random.random(900) * (random.random(900) < 0.5)).astype(np.int64)
    stop = np.maximum(first, ends - random.integers(0, 3, 900))
    wanted = random.integers(-2, 2 * ends + 4)
    wanted[::3] = wanted[1::3]  # asked twice in the same rows, and in others
    first[::3], stop[::3] = first[1::3], np.maximum(stop[1::3] - random.integers(0, 2, 300), first[1::3])
    of[::3] = of[1::3]
    wanted[5], wanted[6] = -(2**63), 2**63 - 1
    each = list(zip(of.tolist(), first.tolist(), stop.tolist(), wanted.tolist(), strict=True))
    expected = [a + int(times[i][a:b].searchsorted(time)) for i, a, b, time in each]
    for module in (kernels, plain):
        assert module.rows_at(times, of, first, stop, wanted).tolist() == expected
        assert module.rows_at(times[7:], of[of == 7] - 7, first[of == 7], stop[of == 7], wanted[of == 7]).tolist() == [
            row for row, i in zip(expected, of.tolist(), strict=True) if i == 7
        ]
        assert module.rows_at(times, *[np.empty(0, np.int64)] * 4).tolist() == []


@pytest.mark.parametrize("kind", ["float64", "int64", "bool", "object", "mixed"])
def test_rows_are_gathered(plain, kind):
    random = np.random.default_rng(17)
    held = [random.integers(0, 2, n) for n in (3, 1, 40, 0, 7)]
    if kind != "mixed":
        held = [column.astype(kind) for column in held]
    else:
        held[2] = np.repeat(held[2], 2)[::2]  # a column with gaps
    of, starts, stops = (
        np.array([2, 2, 0, 4, 1, 3, 2]),
        np.array([5, 30, 0, 2, 0, 0, 7]),
        np.array([9, 40, 3, 7, 1, 0, 7]),
    )
    expected = np.concatenate([held[i][a:b] for i, a, b in zip(of, starts, stops, strict=True)])
    for module in (kernels, plain):
        found = module.gather(held, of, starts, stops)
        assert found.dtype == held[0].dtype
        assert found.tolist() == expected.tolist()
        assert module.gather(held, *[np.empty(0, np.int64)] * 3).dtype == held[0].dtype


def test_distinct_values_of_ranges(plain):
    random = np.random.default_rng(19)
    values = np.append(random.integers(-(2**63), 2**63 - 1, 3000), [0, -1, 2**63 - 1, -(2**63), *range(2000)])
    noted = kernels.coupons(values.view(np.uint64))
    assert noted.tolist() == plain.coupons(values.view(np.uint64)).tolist()
    assert kernels.coupons(values[::2].view(np.uint64)).tolist() == noted[::2].tolist()  # no rows side by side
    for codes in (noted, noted % 7, random.integers(-3, 300, 2000) << 40, np.zeros(9, np.int64), noted[:0], noted[:1]):
        last, before = {}, []
        for row, code in enumerate(codes.tolist()):
            before.append(last.get(code, -1))
            last[code] = row
        assert kernels.last_before(codes).tolist() == before == plain.last_before(codes).tolist()
        if len(codes):
            starts, stops = many_ranges(len(codes), 50, 1, 23)
            expected = [len(set(codes[a:b].tolist())) for a, b in zip(starts, stops, strict=True)]
            for module in (kernels, plain):
                assert module.count_new(np.array(before), starts, stops).tolist() == expected


def slid_in_parts(module, noted, starts, stops, lg_k, most):
    """How much `slide_registers` finds in each of some calls with a bound, and what.

    Each does as much as it may, or one answer more.
    """
    parts, held, done = [], None, 0
    while done < len(starts):
        *part, held = module.slide_registers(noted, starts[done:], stops[done:], lg_k, held, most)
        parts.append(part)
        done += len(part[0])
    ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
    work = 32 * len(ranges)
    for (a, b), (c, d) in itertools.pairwise([(0, 0), *ranges]):
        work += min(abs(c - a) + abs(d - b), b - a + d - c)
    assert work / (most + 31) <= len(parts) <= work / most + 1
    return [len(part[0]) for part in parts], [np.concatenate(each) for each in zip(*parts, strict=True)]


@pytest.mark.parametrize("lg_k", [4, 10])
@pytest.mark.parametrize("values", [3, 300, 2**40])
def test_registers_slide(plain, lg_k, values):
    random = np.random.default_rng(values % 97)
    noted = kernels.coupons(random.integers(0, values, 300).view(np.uint64))
    starts, stops = many_ranges(300, 40, 1, 29)
    starts, stops = (
        np.append(np.sort(starts), starts),
        np.append(np.maximum(np.sort(stops), np.sort(starts) + 1), stops),
    )
    ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))
    expected = [registers_of(noted[a:b].tolist(), lg_k) for a, b in ranges]
    sizes = dict[int, list[int]]()
    for module, most in itertools.product((kernels, plain), (1, 31, 32, 33, 500, 1 << 40)):
        found, (counts, zeros, low, high) = slid_in_parts(module, noted, starts, stops, lg_k, most)
        assert sizes.setdefault(most, found) == found
        assert list(zip(counts, zeros, low + high, high, strict=True)) == expected


def registers_of(coupons, lg_k):
    """How many there are, how many registers are zero, the sum of their powers, and that of the least."""
    registers = [0] * (1 << lg_k)
    for coupon in coupons:
        number = coupon % (1 << lg_k)
        registers[number] = max(registers[number], coupon >> 26)
    powers = [0.5**r for r in registers]
    return len(set(coupons)), registers.count(0), sum(powers), sum(each for each in powers if each < 0.5**31)


@pytest.mark.parametrize("top", [31, 32, 33, 63])
def test_registers_of_large_values(plain, top):
    coupons, one = np.array([5 | top << 26, 6 | 1 << 26]), np.array([0, 0, 1])
    for module in (kernels, plain):
        counts, zeros, low, high, _ = module.slide_registers(coupons, one, np.array([1, 2, 2]), 4, None, 1 << 40)
        assert (counts.tolist(), zeros.tolist()) == ([1, 2, 1], [15, 14, 15])
        small, large = (0.5**top, 0) if top < 32 else (0, 0.5**top)
        assert low.tolist() == [15 + small, 14.5 + small, 15.5]
        assert high.tolist() == [large, large, 0]


def test_ranges_that_are_no_rows_are_not_read():
    column, one = np.arange(4.0), np.array([1])
    for start, stop in [(-1, 2), (3, 2), (2, 5), (5, 6)]:
        a, b = np.array([start]), np.array([stop])
        plainly = [kernels.total(column, start, stop)]
        assert kernels.totals(column, a, b).tolist() == plainly
        assert outcome(lambda a=a, b=b: len(kernels.gather([column], one - 1, a, b))) == outcome(
            lambda start=start, stop=stop: len(column[start:stop])
        )
    with pytest.raises(IndexError):
        kernels.gather([column], one, one, one)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        kernels.totals(column, np.array([0, 1]), one)


@pytest.mark.parametrize("n", [0, 1, 500])
def test_rows_that_are_there_at_a_number(plain, n):
    random = np.random.default_rng(n)
    since = random.integers(0, 20, n)
    until = np.where(random.random(n) < 0.5, since + random.integers(1, 9, n), 2**63 - 1)
    starts, stops = many_ranges(n, 60, 0, 3)
    for known in (random.integers(-1, 30, len(starts)), np.full(len(starts), 2**63 - 1)):
        each = list(zip(starts.tolist(), stops.tolist(), known.tolist(), strict=True))
        expected = [[row for row in range(a, b) if since[row] <= at < until[row]] for a, b, at in each]
        for module in (kernels, plain):
            rows, counts = module.known_rows(since, until, starts, stops, known)
            assert rows.tolist() == [row for some in expected for row in some]
            assert counts.tolist() == [len(some) for some in expected]
    apart, _ = kernels.known_rows(np.repeat(since, 2)[::2], until, starts, stops, known)  # no rows side by side
    assert apart.tolist() == rows.tolist()
