"""`sash data load`: files of every format, once, also where it is killed in the middle."""

import gzip
import io
import itertools
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import sash_cli.output
from sash_cli import load_files
from sash_cli.wrong_rows import BadRows
from sash_wire.file_formats import Unquoted
from tests.support.forked import Forked
from tests.support.profile import THOROUGH
from tests.support.servers import WAIT_S
from tests.support.waiting import wait_until

SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keyed": True,
    "fields": {"delay": "float64", "seats": "int64", "carrier": "string", "jet": "bool"},
    "aggregates": {
        "n": {"function": "count"},
        "total": {"function": "sum", "field": "delay"},
        "all": {"function": "collect", "field": "carrier"},
    },
}
COLUMNS = ("--time", "at", "--key", "origin", "--field", "delay=dep_delay")


@pytest.fixture
def window(client):
    return client.create_window(SPEC)


@pytest.fixture
def load(sash, service):
    """Runs `sash data load`; returns its output, or its errors where it is to fail."""

    def run_it(*arguments, expect=0):
        done = sash("load", *arguments, service=service, expect=expect)
        return done.err if expect else done.out

    return run_it


def table(n=1000, first=0):
    rows = np.arange(first, first + n)
    return pa.table({
        "unused": pa.array([[1]] * n),
        "at": rows,
        "origin": np.where(rows % 2, "JFK", "LGA"),
        "dep_delay": rows.astype(np.float32),
        "seats": rows.astype(np.int16),
        "carrier": pa.array([f"c{i % 3}" for i in range(n)]).dictionary_encode(),
        "jet": rows % 2 == 0,
    })  # fmt: skip


def plain(found):
    found = found.drop_columns("unused")
    return found.set_column(found.column_names.index("carrier"), "carrier", found["carrier"].cast(pa.string()))


def write(path, found):
    """Write a table in the format that the name says."""
    name = path.name
    data = pa.BufferOutputStream()
    if ".csv" in name:
        pa.csv.write_csv(plain(found), data)
    elif ".jsonl" in name:
        data.write("\n".join(map(str, plain(found).to_pylist())).replace("'", '"').replace("True", "true")
                   .replace("False", "false").encode())  # fmt: skip
    elif ".parquet" in name:
        pa.parquet.write_table(found, data, row_group_size=300)
    else:
        new = pa.ipc.new_stream if ".arrows" in name else pa.ipc.new_file
        with new(data, found.schema) as writer:
            writer.write_table(found, max_chunksize=300)
    content = data.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


NAMES = ["a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.arrows"]


def counted(rows, **given):
    names = ("inserted", "evicted", "late", "duplicates", "too far ahead", "rejected", "loaded before")
    counts = dict.fromkeys(names, 0)
    counts |= {name.replace("_", " "): count for name, count in given.items()}
    return f"{rows:,} rows: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_format_once(load, window, tmp_path, monkeypatch, name):
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 128)
    path = write(tmp_path / name, table())
    assert load("flights", path, *COLUMNS) == f"{path}: " + counted(1000, inserted=1000)
    (jfk,) = window.query(key="JFK")
    assert jfk.aggregates["total"] == sum(range(1, 1000, 2))
    assert sorted(set(jfk.aggregates["all"])) == ["c0", "c1", "c2"]
    before = window.describe()
    assert load("flights", path, *COLUMNS) == f"{path}: " + counted(1000, loaded_before=1000)
    assert window.describe() == before


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_has_changed_is_refused(load, window, tmp_path, monkeypatch, name):
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 128)
    path = write(tmp_path / name, table())
    load("flights", path, *COLUMNS)
    before = window.describe()
    for changed in (table(1001), table(first=1), table(100)):
        write(path, changed)
        said = load("flights", path, *COLUMNS, expect=1)
        assert "changed" in said
        assert "--producer" in said
    write(path, table())
    assert "changed" in load("flights", path, *COLUMNS, "--field", "carrier=origin", expect=1)
    assert window.describe() == before
    assert load("flights", path, *COLUMNS, "--producer", "again").endswith(counted(1000, inserted=1000))


def test_several_files(load, window, tmp_path):
    paths = [write(tmp_path / f"{i}.parquet", table(first=1000 * i)) for i in range(3)]
    assert load("flights", *paths[:2], *COLUMNS).splitlines() == [
        f"{path}: " + counted(1000, inserted=1000).rstrip() for path in paths[:2]
    ]
    assert load("flights", *paths, *COLUMNS).endswith(f"{paths[2]}: " + counted(1000, inserted=1000))
    assert window.describe().entries == 3000
    # One name for all: one sequence of chunks.
    assert load("flights", *paths, *COLUMNS, "--producer", "all").endswith(counted(3000, inserted=3000))
    assert load("flights", *paths, *COLUMNS, "--producer", "all").endswith(counted(3000, loaded_before=3000))
    assert "changed" in load("flights", *paths[:2], *COLUMNS, "--producer", "all", expect=1)


def test_timestamps_and_missing_values(load, client, tmp_path):
    client.create_window({"name": "w", "time_unit": "ms", "aggregates": {"n": {"function": "sum"}}})
    path = tmp_path / "a.csv"
    path.write_text("time,value\n2013-01-01T00:00:01Z,5\n2013-01-01T00:00:02Z,\n2013-01-01T00:00:03Z,7\n")
    assert "row 2: column 'value' has no value; --skip-missing" in load("w", path, expect=1)
    assert client.window("w").describe().entries == 0
    assert load("w", path, "--skip-missing") == f"{path}: " + counted(3, inserted=2, rejected=1)
    newest = datetime.fromtimestamp(client.window("w").describe().newest / 1000, UTC)
    assert newest == datetime(2013, 1, 1, 0, 0, 3, tzinfo=UTC)


SPECIALS = {
    "a.csv": "time,value\n1,5\n2,NaN\n3,Infinity\n4,-Infinity\n5,nan\n",
    "a.jsonl": "".join(
        f'{{"time": {at}, "note": "\\"value\\": \\"NaN\\"", "value": {value}}}\n'
        for at, value in enumerate(("5", '"NaN"', '"Infinity"', '"-Infinity"', "NaN"), 1)
    ),
}


@pytest.mark.parametrize("name", SPECIALS)
@pytest.mark.parametrize("nullable", [[], ["value"]])
def test_special_values_are_values(load, client, tmp_path, name, nullable):
    spec = {"name": "w", "fields": {"value": "float64"}, "aggregates": {"all": {"function": "collect"}}}
    spec |= {"time_unit": "s", "nullable": nullable}
    client.create_window(spec)
    path = tmp_path / name
    path.write_text(SPECIALS[name])
    assert load("w", path).endswith(counted(5, inserted=5))
    (answer,) = client.window("w").query()
    assert [str(each) for each in answer.aggregates["all"]] == ["5.0", "nan", "inf", "-inf", "nan"]


CSV, NDJSON = "text/csv", "application/x-ndjson"
WRITTEN = {
    (CSV, "float64"): (
        *("4.5", "-0", "NaN", "nan", "Infinity", "-Infinity", "1e3", "", '""', "NA", "NULL"), *("true!", "x!")),
    (NDJSON, "float64"): (
        *("4.5", "-0.0", '"NaN"', '"Infinity"', '"-Infinity"', "1e3", "null"), *("true!", '"x"!', '"nan"!')),
    (CSV, "bool"): ("true", "True", "TRUE", "false", "False", "FALSE", "1!", "0!", "yes!"),
}  # fmt: skip
"""Values as one may write them, by the kind of file and of field; neither `load` nor REST takes those with a "!"."""


@pytest.mark.parametrize(("kind", "field"), WRITTEN)
def test_the_same_file_by_load_and_by_rest(load, client, service, tmp_path, kind, field):
    spec = {"time_unit": "s", "fields": {"v": field}, "nullable": ["v"] if field == "float64" else []}
    spec["aggregates"] = {"n": {"function": "count"}, "all": {"function": "collect", "field": "v"}}
    path = tmp_path / ("a.csv" if kind == CSV else "a.jsonl")
    http = service.http()
    for at, value in enumerate(WRITTEN[kind, field]):
        taken, value = not value.endswith("!"), value.removesuffix("!")
        windows = [client.create_window({"name": f"{name}{at}", **spec}) for name in ("load", "rest")]
        path.write_text(f"time,v\n7,{value}\n" if kind == CSV else f'{{"time": 7, "v": {value}}}\n')
        load(f"load{at}", path, expect=0 if taken else 1)
        answer = http.post(
            f"/v1/windows/rest{at}/bulk-insert", content=path.read_bytes(), headers={"content-type": kind}
        )
        assert (answer.status_code == 200) == taken, (value, answer.text)
        found = [window.query()[0].aggregates for window in windows]
        assert str(found[0]) == str(found[1]), (value, found)
        if field == "bool":
            assert found[0]["all"] == ([value.lower() == "true"] if taken else [])


def test_long_lines_of_special_values_are_whole():
    lines = b"".join(b'{"time": %d, "v": "NaN", "text": "%s"}\n' % (i, b"x" * (i % 70)) for i in range(200))
    for block_bytes in (1, 10, 64, 1000, 1 << 20):
        for ending in (lines, lines[:-1]):
            found = io.BufferedReader(Unquoted(io.BytesIO(ending), ["v", "text"], block_bytes)).read()
            assert found == ending.replace(b'"NaN"', b"NaN")
    other = '{"é": "NaN", "\\u00e9" : "-Infinity", "e": "NaN", "a.c": "NaN", "abc": "NaN"}'.encode()
    found = Unquoted(io.BytesIO(other), ["é", "a.c"], 100).read()
    assert found.decode() == '{"é": NaN, "\\u00e9" : -Infinity, "e": "NaN", "a.c": NaN, "abc": "NaN"}'
    assert Unquoted(io.BytesIO(other), [], 100).read() == other


def test_late_and_duplicate_rows_are_counted(load, client, tmp_path):
    spec = {"name": "w", "time_unit": "s", "slide": {"max_age": "10s"}, "order": {"equal_times": "first"}}
    client.create_window({**spec, "aggregates": {"n": {"function": "count"}}})
    path = tmp_path / "a.csv"
    path.write_text("time,value\n100,1\n100,2\n101,4\n")
    assert load("w", path).endswith(counted(3, inserted=2, duplicates=1))
    path = tmp_path / "b.csv"
    path.write_text("time,value\n50,1\n102,2\n")
    assert load("w", path).endswith(counted(2, inserted=1, late=1))


def test_standard_input(load, window, tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", table())

    def piped(*more, expect=0):
        with path.open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return load("flights", "-", *COLUMNS, *more, expect=expect)

    assert "--format" in piped(expect=1)
    assert piped("--format", "csv") == "-: " + counted(1000, inserted=1000)
    assert "read from its end" in piped("--format", "parquet", expect=1)
    named = ("--format", "csv", "--producer", "pipe")
    assert piped(*named) == "-: " + counted(1000, inserted=1000)
    assert piped(*named) == "-: " + counted(1000, loaded_before=1000)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("flights", "a.txt"), "--format"),
        (("flights", "none.csv"), "none.csv: No such file or directory"),
        (("flights", "a.csv", "--time", "nothing"), "nothing"),
        (("flights", "a.parquet", "--time", "nothing"), "no column 'nothing'; its columns are"),
        (("flights", "a.csv", *COLUMNS, "--field", "delay=late"), "; --time, --key, --field and --part name others"),
        (("flights", "a.parquet", *COLUMNS, "--field", "delay=origin"), "'origin' is string, which is no float64"),
        (("flights", "a.parquet", *COLUMNS, "--field", "seats=jet"), "'jet' is bool, which is no int64"),
        (
            ("flights", "a.csv", *COLUMNS, "--field", "delay=origin"),
            "row 1: column 'origin': 'LGA' is no float64; --bad-rows",
        ),
        (("flights", "a.csv", *COLUMNS, "--field", "speed=seats"), "--field speed=seats"),
        (("flights", "a.csv", *COLUMNS, "--format", "parquet"), "Parquet"),
        (("flights", "a.csv", *COLUMNS, "--format", "arrow"), "a.csv: "),
        (("flights", "a.parquet", *COLUMNS, "--time", "origin"), "time"),
        (("plain", "a.csv", "--key", "origin"), "not keyed"),
        (("nowhere", "a.csv"), "nowhere"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(load, client, window, tmp_path, monkeypatch, arguments, says):
    client.create_window({"name": "plain", "aggregates": {"n": {"function": "count"}}})
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "a.parquet"):
        write(tmp_path / name, table())
    (tmp_path / "a.txt").write_text("")
    assert says in load(*arguments, expect=1)
    assert [each.entries for each in client.list_windows()] == [0, 0]


def test_an_error_says_what_is_loaded(load, window, tmp_path, monkeypatch):
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 100)
    path = tmp_path / "a.csv"
    good = write(path, table()).read_text()
    path.write_text(good.replace('\n550,"', "\n,"))
    monkeypatch.setattr(load_files, "_BLOCK_BYTES", 2048)
    load("flights", path, *COLUMNS, expect=1)
    applied = window.describe().entries
    assert applied == 500
    path.write_text(good)
    said = load("flights", path, *COLUMNS)
    assert said.endswith(counted(1000, inserted=500, loaded_before=500))


CHUNKS = 12 if THOROUGH else 7


def test_killed_in_the_middle_and_run_again(service, client, load, tmp_path):
    """Every row is there once, wherever the kill hits."""
    window = client.create_window(
        {"name": "long", "time_unit": "us", "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}}}
    )
    n = CHUNKS * load_files.CHUNK_ROWS + 17
    values = np.arange(n, dtype=np.int64)
    path = tmp_path / "long.parquet"
    pa.parquet.write_table(pa.table({"time": values, "value": values.astype(np.float64)}), path)
    words = ["load", "long", path, "-t", service.grpc_target]
    killed_at = []
    for goal in (1, CHUNKS // 2):
        process = Forked(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        wait_until(lambda goal=goal: window.describe().entries >= goal * load_files.CHUNK_ROWS)
        process.kill()
        process.wait()
        killed_at.append(window.describe().entries)
    assert 0 < killed_at[0] < n
    assert killed_at == sorted(killed_at)
    load("long", path)
    (answer,) = window.query()
    assert answer.entries == answer.aggregates["n"] == n
    assert answer.aggregates["sum"] == float(values.sum())
    before = window.describe()
    assert load("long", path) == f"{path}: " + counted(n, loaded_before=n)
    assert window.describe() == before


def test_chunks_are_cut_by_bytes(tmp_path, monkeypatch):
    """Long texts make small chunks, which are the same each time."""
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"time": range(1000), "s": ["x" * 1000 + str(i) for i in range(1000)]}), path)
    mapped = load_files.Mapped({"s": "string"}, {"time": "time", "s": "s"})
    monkeypatch.setattr(load_files, "CHUNK_BYTES", 100_000)
    found = list(load_files.chunks(str(path), "parquet", mapped, BadRows()))
    assert sum(chunk.rows for chunk in found) == 1000
    assert max(chunk.table.nbytes for chunk in found) <= 100_000
    assert found[-1].done == 1
    again = list(load_files.chunks(str(path), "parquet", mapped, BadRows()))
    assert [chunk.rows for chunk in again] == [chunk.rows for chunk in found]


def test_names_say_formats():
    assert {name: load_files.format_of(name) for name in ("A.CSV", "x.y.jsonl.gz", "a.pq", "a.gz", "-", "b")} == {
        "A.CSV": "csv", "x.y.jsonl.gz": "ndjson", "a.pq": "parquet", "a.gz": None, "-": None, "b": None,
    }  # fmt: skip


def test_without_pyarrow_it_says_what_to_install(load, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "sash_cli.load_files", raising=False)
    monkeypatch.delattr("sash_cli.load_files")
    assert "pip install 'sash[load]'" in load("w", tmp_path / "a.csv", expect=1)
    assert not Path(tmp_path / "a.csv").exists()


def test_progress_is_lines_where_there_is_no_terminal(load, window, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 500)
    monkeypatch.setattr(sash_cli.output, "_LINE_S", 0.0)
    path = write(tmp_path / "a.parquet", table())
    shown = []
    monkeypatch.setattr(sash_cli.output.typer, "echo", lambda text, err=False, nl=True: shown.append((text, err)))
    load("flights", path, *COLUMNS)
    assert [err for _, err in shown] == [True, True, False]
    assert re.fullmatch(rf"{path}:  50% 500 rows, [\d,]+ rows/s, \d+:\d\d left", shown[0][0])
    assert re.fullmatch(rf"{path}: 100% 1,000 rows, [\d,]+ rows/s, 0:00 left", shown[1][0])


def test_progress_is_a_bar_on_a_terminal(service, window, tmp_path):
    path = write(tmp_path / "a.parquet", table())
    words = ["load", "flights", path, *COLUMNS, "-t", service.grpc_target]
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        process = Forked(words, stdout=subprocess.PIPE, stderr=terminal, env=environment)
    shown = b""
    with suppress(OSError):  # the other end is closed
        while data := os.read(ours, 65_536):
            shown += data
    os.close(ours)
    assert process.communicate(timeout=WAIT_S)[0] == f"{path}: " + counted(1000, inserted=1000)
    assert process.returncode == 0
    assert b"1,000 rows, " in shown
    assert "█".encode() in shown


# ---------------------------------------------------------------- history

HISTORY = {**SPEC, "name": "kept", "slide": {"max_age": 100}, "history": 100_000}


def rows_of(*times):
    few = table(len(times))
    return few.set_column(few.schema.get_field_index("at"), "at", pa.array(times, pa.int64()))


def written(path, *times):
    pa.parquet.write_table(rows_of(*times), path)
    return path


def test_history_is_loaded_beside_the_live_slide(client, load, tmp_path):
    window = client.create_window(HISTORY)
    live = {"delay": 1.0, "seats": 2, "carrier": "live", "jet": True}
    for key in ("JFK", "LGA"):
        window.insert(50_000, fields=live, key=key)
    before = [window.query(key=key) for key in ("JFK", "LGA")], window.describe().high_water_mark
    years = written(tmp_path / "years.parquet", *range(0, 49_900, 50))
    out = load("kept", years, *COLUMNS, "--history")
    assert out == (
        f"{years}: 998 rows: 998 inserted, 0 evicted, 0 late, 0 duplicates, 0 too far ahead, 0 rejected, "
        "0 loaded before, 0 left out, 998 only in the history\n"
    )
    assert ([window.query(key=key) for key in ("JFK", "LGA")], window.describe().high_water_mark) == before
    assert window.query(key="JFK", as_of=20_000)[0].entries == 200
    assert "998 loaded before" in load("kept", years, *COLUMNS, "--history"), "a second run changes nothing"
    window.insert(60_000, fields=live, key="JFK")
    assert "998 loaded before" in load("kept", years, *COLUMNS, "--history"), "nor when the slide has moved"
    assert window.describe().entries == 998 + 3


def test_rows_of_the_slide_are_no_history(client, load, tmp_path):
    window = client.create_window(HISTORY)
    window.insert(50_000, fields={"delay": 1.0, "seats": 2, "carrier": "live", "jet": True}, key="JFK")
    file = written(tmp_path / "some.parquet", 49_899, 49_900, 49_901, 50_001)
    said = load("kept", file, *COLUMNS, "--history", expect=1)
    assert "a row is of 50001, and the slide begins behind 49900: --before 49901 leaves out what is in" in said
    assert window.describe().entries == 1, "nothing of the chunk is loaded"
    assert "2 inserted" in (out := load("kept", file, *COLUMNS, "--history", "--before", "49901"))
    assert "2 left out, 1 only in the history" in out, "LGA has no slide yet"
    assert "has changed" in load("kept", file, *COLUMNS, "--history", "--before", "49900", expect=1)
    assert "3 inserted" in load("kept", written(tmp_path / "more.parquet", 50_002, 49_901, 49_902), *COLUMNS)


def test_windows_that_take_no_history(client, window, load, tmp_path):
    file = written(tmp_path / "some.parquet", 1)
    assert "window flights has no history" in load("flights", file, *COLUMNS, "--history", expect=1)
    assert "--before goes with --history" in load("flights", file, *COLUMNS, "--before", "5", expect=1)
    final = client.create_window({**HISTORY, "name": "final", "slide": {"max_age": 100, "until": "punctuation"}})
    assert "1 inserted" in load("final", file, *COLUMNS, "--history", "--producer", "first")
    final.punctuate(500)
    assert "is final through 500" in load("final", file, *COLUMNS, "--history", expect=1)
    wall = client.create_window({**HISTORY, "name": "by_wall", "slide": {"max_age": "1h", "clock": "wall"}})
    now = int(datetime.now(UTC).timestamp())
    assert "the slide begins behind" in load(
        "by_wall", written(tmp_path / "now.parquet", now - 60), *COLUMNS, "--history", expect=1
    )
    old = written(tmp_path / "old.parquet", now - 7200, now - 10_800)
    assert "2 inserted" in load("by_wall", old, *COLUMNS, "--history")
    assert wall.query(key="JFK")[0].entries == 0
    assert wall.query(key="JFK", as_of=now)[0].entries == 1


def test_a_history_of_many_keys_is_loaded_key_by_key(client, load, tmp_path, monkeypatch):
    """Each key's rows come together, in the order of the file; the same chunks each time."""
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 700)
    monkeypatch.setattr(load_files, "_SORTED_BYTES", 2_000)
    rows = table(5_000)
    rows = rows.set_column(
        rows.schema.get_field_index("origin"), "origin", pa.array([f"k{i % 97}" for i in range(5_000)])
    )
    rows = rows.append_column("same", pa.array([3 * (i // 300) for i in range(5_000)], pa.int64()))
    pa.parquet.write_table(rows, file := tmp_path / "many.parquet")
    columns = ("--time", "same", *COLUMNS[2:])
    window = client.create_window({**HISTORY, "name": "many"})
    plain = client.create_window({**HISTORY, "name": "plain"})
    assert "5,000 inserted" in load("many", file, *columns, "--history")
    assert "5,000 loaded before" in load("many", file, *columns, "--history")
    assert "5,000 inserted" in load("plain", file, *columns)
    for key in ("k0", "k13", "k96"):
        assert window.query(key=key, as_of=100_000) == plain.query(key=key, as_of=100_000)
    mapped = load_files.Mapped(
        {"key": "string", "seats": "int64"}, {"time": "same", "key": "origin", "seats": "seats"}, frozenset()
    )
    found = list(load_files.by_key(load_files.chunks(str(file), "parquet", mapped, BadRows())))
    sent = [chunk for chunk in found if chunk.rows]
    assert [chunk.rows for chunk in sent] == [700] * 7 + [100]
    assert not any(chunk.table.num_rows for chunk in found if not chunk.rows)
    assert [chunk.done for chunk in found] == sorted(chunk.done for chunk in found)
    assert sent[-1].done == 1
    keys = [key for chunk in sent for key in chunk.table["key"].to_pylist()]
    assert 97 < sum(a != b for a, b in itertools.pairwise(keys)) < 97 * 3, "keys come in runs, of so many bytes at once"
    seats = [
        seat
        for chunk in sent
        for seat, key in zip(chunk.table["seats"].to_pylist(), chunk.table["key"].to_pylist(), strict=True)
        if key == "k5"
    ]
    assert seats == sorted(seats) == list(range(5, 5_000, 97)), "in the order of the file"


def test_a_history_with_rows_that_are_left_out(client, load, tmp_path, monkeypatch):
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 1)  # they count once, however many chunks there are
    window = client.create_window({**HISTORY, "name": "some"})
    rows = table(4)
    rows = rows.set_column(rows.schema.get_field_index("seats"), "seats", pa.array([1, None, 3, None], pa.int16()))
    pa.parquet.write_table(rows, file := tmp_path / "gaps.parquet")
    out = load("some", file, *COLUMNS, "--history", "--skip-missing")
    assert "4 rows: 2 inserted" in out
    assert "2 rejected" in out
    rows = rows.set_column(rows.schema.get_field_index("seats"), "seats", pa.array([None] * 4, pa.int16()))
    pa.parquet.write_table(rows, file := tmp_path / "none.parquet")
    assert "4 rows: 0 inserted" in (out := load("some", file, *COLUMNS, "--history", "--skip-missing"))
    assert "4 rejected" in out
    out = load("some", written(tmp_path / "late.parquet", 5, 6), *COLUMNS, "--history", "--before", "0")
    assert "2 rows: 0 inserted" in out
    assert "2 left out" in out
    assert window.describe().entries == 2


def test_one_mapping_names_key_parts_and_the_unit_of_times(client, load, tmp_path):
    client.create_window(SPEC | {"name": "parted", "keys": ["airport", "carrier_name"], "fields": {"delay": "float64"},
                                 "aggregates": {"n": {"function": "count"}}})  # fmt: skip
    file, mapping = tmp_path / "f.ndjson", tmp_path / "m.yaml"
    file.write_text('{"ms": 5000, "from": "JFK", "carrier_name": "AA", "late": 1.5}\n')
    mapping.write_text("time: timestamp_millis(ms)\nparts: {airport: from}\nfields: {delay: late}\n")
    assert "1 inserted" in load("parted", file, "--mapping", mapping)
    file.write_text('{"time": 6, "from": "JFK", "c": "AA", "late": 1.5}\n')
    columns = ("--time", "time", "--part", "carrier_name=c", "--field", "delay=late")
    assert "1 inserted" in load("parted", file, "--mapping", mapping, *columns, "--producer", "two")
    entries = client.window("parted").entries(key={"airport": "JFK", "carrier_name": "AA"})
    assert [time for bulk in entries for time in bulk.times] == [5, 6]
    for text, told in (
        ("time: a + b\n", "needs Spark"),
        ("times: at\n", "times: write time and key as texts"),
        ("fields: {nope: a}\n", "has the fields delay"),
        ("fields: {delay: a.b}\n", "is no column"),
        ("[1]", "write a mapping"),
        ("parts: {airport: 1}\n", "write a text for each name"),
    ):
        mapping.write_text(text)
        assert told in load("parted", file, "--mapping", mapping, expect=1)
    assert "--part nope=c: write PART=COLUMN" in load("parted", file, "--part", "nope=c", expect=1)


# ---------------------------------------------------------------- rows that are wrong

TYPED = {
    "name": "typed",
    "time_unit": "s",
    "fields": {"x": "float64", "n": "int64", "s": "string", "b": "bool"},
    "aggregates": {"c": {"function": "count"}},
}
GOOD = 400


def lines_of(kind, wrong, at):
    """A file of right rows, and one that is wrong in front of row `at`, from 0 on."""
    rows = [{"time": i, "x": i / 2, "n": i, "s": "w", "b": True} for i in range(GOOD)]
    if kind == "csv":
        lines = [",".join(str(value).lower() for value in row.values()) for row in rows]
        return "\n".join(["time,x,n,s,b", *lines[:at], wrong, *lines[at:]]) + "\n"
    lines = [json.dumps(row) for row in rows]
    return "\n".join([*lines[:at], wrong, *lines[at:]]) + "\n"


WRONG = [
    ("csv", "5,abc,1,w,true", "column 'x': 'abc' is no float64"),
    ("csv", "5,1,zz,w,true", "column 'n': 'zz' is no int64"),
    ("csv", "5,1,99999999999999999999,w,true", "column 'n': '99999999999999999999' is no int64"),
    ("csv", "5,1,1,w,maybe", "column 'b': 'maybe' is no bool"),
    ("csv", "5,1,1,\udcff,true", "column 's': '\ufffd' is no UTF-8"),
    ("csv", "5,1", "'5,1' has 2 values, and the first line names 5 columns"),
    ("csv", '5,1,1,"w, w",true,7', "has 6 values"),
    ("csv", "5,,1,w,true", "column 'x' has no value; --skip-missing"),
    ("csv", "soon,1,1,w,true", "column 'time': 'soon' is no"),
    ("csv", "9999999999999999999,1,1,w,true", "column 'time': '9999999999999999999' is no"),
    ("csv", "-9223372036854775808,1,1,w,true", "column 'time': '-9223372036854775808' is out of range"),
    ("ndjson", '{"time": 5, "x": "abc", "n": 1, "s": "w", "b": true}', "column 'x': 'abc' is no float64"),
    ("ndjson", '{"time": 5, "x": 1, "n": 1.5, "s": "w", "b": true}', "column 'n': '1.5' is no int64"),
    ("ndjson", '{"time": 5, "x": 1, "n": 1, "s": 7, "b": true}', "column 's': '7' is no string"),
    ("ndjson", '{"time": 5, "x": 1, "n": 1, "s": "w", "b": 1}', "column 'b': '1' is no bool"),
    ("ndjson", '{"time": 5, "x": 1, "n": 1, "s": "w"}', "column 'b' has no value"),
    ("ndjson", '{"time": null, "x": 1, "n": 1, "s": "w", "b": true}', "column 'time' has no value"),
    ("ndjson", '{"time": 5, "x"', "is no JSON"),
    ("ndjson", "[1, 2]", "is no object"),
    ("ndjson", "hello", "is no JSON"),
    ("ndjson", '{"time": 5, "x": true, "n": 1, "s": "w", "b": true}', "column 'x': 'True' is no float64"),
]


@pytest.mark.parametrize(
    ("at", "kind", "wrong", "says"),
    [
        pytest.param(at, *each, marks=() if number % 3 == place else pytest.mark.soak)
        for number, each in enumerate(WRONG)
        for place, at in enumerate((0, 37, GOOD))
    ],
)
def test_the_first_wrong_row_is_named_or_left_out(load, client, tmp_path, monkeypatch, at, kind, wrong, says):
    monkeypatch.setattr(load_files, "CHUNK_ROWS", 90)
    monkeypatch.setattr(load_files, "_BLOCK_BYTES", 1024)
    window = client.create_window(TYPED)
    path, kept = tmp_path / f"a.{kind}", tmp_path / "kept"
    path.write_bytes(lines_of(kind, wrong, at).encode("utf-8", "surrogateescape"))
    said = load("typed", path, expect=1)
    assert f"row {at + 1}: " in said, said
    assert says in said, said
    assert window.describe().entries == at // 90 * 90, "what is before its chunk"
    assert load("typed", path, "--bad-rows", "skip", "--producer", "skip") == f"{path}: " + counted(
        GOOD + 1, inserted=GOOD, rejected=1
    )
    before = window.describe().entries
    for _ in range(2):
        load("typed", path, "--bad-rows", kept, "--producer", "skip")
        told = [json.loads(line) for line in kept.read_text().splitlines()]
        assert [(each["file"], each["row"]) for each in told] == [(str(path), at + 1)]
        assert says.partition(";")[0] in told[0]["reason"]
        assert told[0]["record"]
    assert window.describe().entries == before


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_several_wrong_rows(load, client, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(load_files, "_BLOCK_BYTES", 512)
    client.create_window(TYPED)
    wrong = [each for each, text, _ in WRONG if each == kind]
    texts = [text for each, text, _ in WRONG if each == kind]
    path, kept = tmp_path / f"a.{kind}", tmp_path / "kept"
    good = lines_of(kind, "", 0).encode().split(b"\n")[:-1]
    head, rows = ([good[0]], good[2:]) if kind == "csv" else ([], good[1:])
    for i, text in enumerate(texts):
        rows.insert(i * 31, text.encode("utf-8", "surrogateescape"))
    path.write_bytes(b"\n".join([*head, *rows]))  # no line break at the end
    said = load("typed", path, "--bad-rows", kept)
    assert said == f"{path}: " + counted(GOOD + len(wrong), inserted=GOOD, rejected=len(wrong))
    assert [json.loads(line)["row"] for line in kept.read_text().splitlines()] == [
        i * 31 + 1 for i in range(len(wrong))
    ]


def test_wrong_values_of_arrow(load, client, tmp_path):
    client.create_window(TYPED)
    path = tmp_path / "a.parquet"
    columns = {"time": [1, 2, None], "x": [1.0, 2.0, 3.0], "n": [1.0, 2.5, 3.0], "s": ["a"] * 3, "b": [True] * 3}
    pa.parquet.write_table(pa.table(columns), path)
    assert "row 2: column 'n': '2.5' is no int64" in load("typed", path, expect=1)
    assert load("typed", path, "--bad-rows", "skip").endswith(counted(3, inserted=1, rejected=2))


def test_a_row_behind_those_that_are_left_out_has_its_number(load, client, tmp_path):
    client.create_window(TYPED)
    path = tmp_path / "a.csv"
    path.write_text("time,x,n,s,b\n1,,1,w,true\n2,1,1,w,true\n3,1,,w,true\n-9223372036854775808,1,1,w,true\n")
    assert "row 4: column 'time'" in load("typed", path, "--skip-missing", expect=1)


def test_keys_that_no_window_takes(load, client, tmp_path):
    client.create_window({"name": "w", "time_unit": "s", "keyed": True, "aggregates": {"n": {"function": "count"}}})
    path = tmp_path / "a.csv"
    path.write_text(f"time,key,value\n1,a,1\n2,,1\n3,{'x' * 513},1\n")
    assert "row 2: column 'key': '' is empty" in load("w", path, expect=1)
    assert load("w", path, "--bad-rows", "skip").endswith(counted(3, inserted=1, rejected=2))


def test_rows_with_line_breaks_in_quotes(load, client, tmp_path, monkeypatch):
    client.create_window({"name": "w", "time_unit": "s", "fields": {"s": "string"}, "aggregates": {
        "all": {"function": "collect", "field": "s"}}})  # fmt: skip
    texts = ["a\nb", 'say "hi"', "", ",", "\n", '5" pipe', "end"]
    path = tmp_path / "a.csv"
    rows = [f'{i},"{text.replace(chr(34), chr(34) * 2)}"' if '5"' not in text else f"{i},{text}"
            for i, text in enumerate(texts)]  # fmt: skip
    path.write_text("time,s\n" + "\n".join(rows) + "\n")
    for size in (1, 7, 16, 1000):
        monkeypatch.setattr(load_files, "_BLOCK_BYTES", size)
        load("w", path, "--producer", f"p{size}")
        (answer,) = client.window("w").query()
        assert sorted(answer.aggregates["all"][-1:]) == ["end"]
        assert len(answer.aggregates["all"]) % len(texts) == 0
        assert set(answer.aggregates["all"]) == set(texts)


def test_a_quote_that_is_left_open(load, client, tmp_path, monkeypatch):
    client.create_window(TYPED)
    path = tmp_path / "a.csv"
    path.write_text(lines_of("csv", '1,2,3,"open,true', 9))
    assert "row 10: " in load("typed", path, expect=1)
    monkeypatch.setattr(load_files, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(load_files, "_ROW_BYTES_MAX", 2**10)
    assert "is a quote left open?" in load("typed", path, "--producer", "again", expect=1)


def test_a_file_for_wrong_rows_that_cannot_be_written(load, window, tmp_path):
    path = write(tmp_path / "a.csv", table())
    assert "No such file" in load("flights", path, *COLUMNS, "--bad-rows", tmp_path / "no" / "kept", expect=1)
    assert window.describe().entries == 0


ENDS = 30 if THOROUGH else 3


def test_a_load_that_fails_ends_by_itself(service, client, tmp_path):
    """Processes that stop at a wrong row: none is aborted, whatever its threads do."""
    client.create_window(TYPED)
    path = tmp_path / "a.csv"
    path.write_text(lines_of("csv", "5,abc,1,w,true", 3) * 200)
    script = f"""
import os, sys
import grpc, sash_cli.load_files, sash_client.client
from sash.main import run
for i in range({ENDS}):
    if not os.fork():
        sys.argv = ["sash", "data", "load", "typed", {str(path)!r}, "-t", {service.grpc_target!r}]
        run()
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.split() == ["1"] * ENDS, done.stderr
    assert done.stderr.count("row 4: column 'x': 'abc' is no float64") == ENDS, done.stderr
    assert "terminate" not in done.stderr
