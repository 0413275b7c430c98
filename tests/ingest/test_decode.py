"""Records as columns: the quick way and the slow one make the same table, and odd records have a reason."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_ingest.decode import Csv, Json, Wanted
from sash_wire.mapping import Source, source_of

KINDS = {"at": "time", "who": "key", "v": "float64", "n": "int64", "b": "bool", "s": "string"}
WANTED = [Wanted(Source((name,)), kind) for name, kind in KINDS.items()]
GOOD = {"at": 1, "who": "a", "v": 1.5, "n": 2, "b": True, "s": "x"}


def text(**more):
    return json.dumps(GOOD | more).encode()


def lists(decoded):
    return [column.to_pylist() for column in decoded.columns]


VALUES = st.fixed_dictionaries(
    {
        "at": st.none() | st.integers(-(2**62), 2**62),
        "who": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        "v": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.booleans(),
        "s": st.none() | st.text(alphabet='a{}[]"\\\n,é', max_size=6),
        "other": st.none()
        | st.lists(st.integers(), max_size=2)
        | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    }
)


@given(st.lists(VALUES, min_size=1, max_size=8), st.booleans())
def test_quick_and_slow_make_the_same_table(rows, ascii_):
    values = [json.dumps(row, ensure_ascii=ascii_).encode() for row in rows]
    form = Json()
    slow = form._slow(values, WANTED)
    assert slow.rejects == []
    found = form.decode(values, WANTED)
    assert lists(found) == lists(slow) == [[row[name] for row in rows] for name in KINDS]
    assert found.rows in (None, list(range(len(rows))))


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        (None, None, "is empty"),
        (b"", None, "is empty"),
        (b" \n", None, "is empty"),
        (b"{", None, "is no JSON"),
        (b'{"s": "\xff"}', None, "is no JSON"),
        (b"[1]", None, "is JSON, and no object"),
        (b"7", None, "is JSON, and no object"),
        (text() + text(), None, "is no JSON"),
        (text() + b"\n" + text(), None, "is no JSON"),
        (text(v="fast"), "v", "is 'fast', a str, and no float64"),
        (text(v=True), "v", "a bool, and no float64"),
        (text(n=1.5), "n", "a float, and no int64"),
        (text(n=2**63), "n", "out of range|no int64"),
        (text(b=1), "b", "an int, and no bool"),
        (text(s=1), "s", "an int, and no string"),
        (text(who=1.5), "who", "a float, and no key"),
        (text(at="today"), "at", "no time of ISO 8601"),
        (text(at=1.5), "at", "a float, and no time"),
        (text(at="2013-01-01T00:00:00Z"), "at", "is an instant, and not as in other records"),
    ],
    ids=str,
)
def test_an_odd_record_is_left_out_with_a_reason(value, field, reason):
    values = [text(n=0), value, text(n=2)]
    found = Json().decode(values, WANTED)
    (reject,) = found.rejects
    assert (reject.row, reject.field, found.rows) == (1, field, [0, 2])
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(reject.reason)
    assert found.columns[3].to_pylist() == [0, 2]


def test_halves_of_an_object_are_no_record():
    """Joined they are objects, and as many as there are records."""
    for values in (
        [b'{"n": 1,', b'"v": 2}', text(n=3) + text(n=4)],
        [b'{"n": 1, "o": [{}', b"{}]}", text(n=3) + b" " + text(n=4)],
        [b'{"s": "}', b'{"}', text(n=3) + b"\t" + text(n=4)],
        [b"", text(n=3) + b"\n" + text(n=4)],
    ):
        found = Json().decode(values, WANTED)
        assert len(found.rejects) == len(values)
        assert found.rows == []


def test_records_over_several_lines_and_special_numbers():
    values = [json.dumps(GOOD, indent=1).encode(), text(v="NaN"), text(v="-Infinity"), text(who=17), text(v=3)]
    found = Json().decode(values, WANTED)
    assert found.rejects == []
    assert [str(each) for each in found.columns[2].to_pylist()] == ["1.5", "nan", "-inf", "1.5", "3.0"]
    assert found.columns[1].to_pylist() == ["a", "a", "a", "17", "a"]


def test_paths_instants_and_whole_numbers_as_keys():
    wanted = [Wanted(source_of(each, ""), kind) for each, kind in (
        ("timestamp_millis(e.at)", "time"), ("e.who.id", "key"), ("v", "float64"))]  # fmt: skip
    values = [b'{"e": {"at": 1500, "who": {"id": %d}}, "v": 1}' % i for i in (7, 8)]
    for more in ([], [b"{"]):
        found = Json().decode(values + more, wanted)
        times, keys, numbers = lists(found)
        assert times == [datetime.fromtimestamp(1.5, UTC)] * 2
        assert (keys, numbers) == (["7", "8"], [1.0, 1.0])
        assert len(found.rejects) == len(more)
    for missing in (b'{"e": 1}', b'{"e": {"who": 2}}', b"{}"):
        assert lists(Json()._slow([missing], wanted)) == [[None], [None], [None]]


def test_one_value_in_two_types_and_an_object_that_is_a_value():
    for paths, kinds, value, columns in (
        (("n", "n"), ("int64", "float64"), b'{"n": 7}', [[7], [7.0]]),
        (("n", "n.deep"), ("int64", "int64"), b'{"n": 7}', [[7], [None]]),
        (("n.deep", "n"), ("int64", "int64"), b'{"n": 7}', [[None], [7]]),
    ):
        wanted = [Wanted(source_of(path, ""), kind) for path, kind in zip(paths, kinds, strict=True)]
        found = Json().decode([value], wanted)
        assert (lists(found), [str(each.type) for each in found.columns]) == (
            columns,
            [*map({"float64": "double", "int64": "int64"}.get, kinds)],
        )


@pytest.mark.parametrize("texts", [("2013-01-01T05:00:00Z", "2013-01-01T06:00:00+01:00"), ("2013-01-01T05:00:00",) * 2])
def test_times_as_texts(texts):
    wanted = [Wanted(Source(("at",)), "time")]
    values = [b'{"at": "%s"}' % each.encode() for each in texts]
    quick, slow = Json().decode(values, wanted), Json()._slow(values, wanted)
    expected = int(datetime(2013, 1, 1, 5, tzinfo=UTC).timestamp()) * 10**6
    for found in (quick, slow):
        assert found.columns[0].cast(pa.int64()).to_pylist() == [expected] * 2
    assert quick.rows is None


def test_csv():
    form = Csv(["at", "who", "v", "n", "b", "s"])
    values = [b"1,a,1.5,2,true,x", b'2,7,NA,,FALSE,"p,q"', b"3,NA,1,1,true,NA"]
    for more in ([], [b"1,2"]):
        found = form.decode(values + more, WANTED)
        assert lists(found)[:3] == [[1, 2, 3], ["a", "7", "NA"], [1.5, None, 1.0]]
        assert lists(found)[3:] == [[2, None, 1], [True, False, True], ["x", "p,q", "NA"]]
        assert [(each.row, each.reason) for each in found.rejects] == [(3, "has 2 columns, and not 6")][: len(more)]
    for value, field in (
        (b"x,a,1,1,true,x", "at"),
        (b"1,a,x,1,true,x", "v"),
        (b"1,a,1,1.5,true,x", "n"),
        (b"1,a,1,1,yes,x", "b"),
    ):
        (reject,) = form.decode([*values, value], WANTED).rejects
        assert (reject.row, reject.field) == (3, field)
    for value in (b'1,"a,1,1,true,x', b"1,a,1,1,true,x\n2,b,1,1,true,x", b"", None, b"1,a,1,1,true,\xff"):
        (reject,) = form.decode([*values, value], WANTED).rejects
        assert reject.row == 3
    assert Csv(["at", "s"], ";").decode([b"1;x"], [WANTED[0], WANTED[5]]).columns[1].to_pylist() == ["x"]
