"""How the command line shows answers: times, chosen aggregates, structured answers."""

import json
import sys

import pytest

from sash_cli.answers import short_form, sparkline
from sash_cli.output import Progress


@pytest.mark.parametrize(
    ("unit", "tick", "shown"),
    [
        ("ns", -1, "1969-12-31T23:59:59.999999999Z"),
        ("us", 1, "1970-01-01T00:00:00.000001Z"),
        ("ms", 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ("s", 2**63 - 3, "292277026596-12-04T15:30:05Z"),
        ("none", 7, "7"),
    ],
)
def test_times_are_shown_in_the_unit_of_the_window(sash, service, client, unit, tick, shown):
    spec = {
        "name": "units",
        "time_unit": unit,
        "order": {"ahead": "none"},
        "aggregates": {"n": {"function": "count"}},
    }
    client.create_window(spec).insert(tick, 1.0)
    assert sash("list", service=service).out.splitlines()[1].split()[8:10] == [shown, shown]
    asked = ("series", "units", "--start", str(tick), "--end", str(tick + 1), "--step", "1")
    assert sash(*asked, service=service).out.splitlines()[1].split()[0] == shown


def test_the_last_hours_of_a_series(sash, service, client):
    """They end with the newest entry, and buckets start at multiples of the step, which is a round one."""
    spec = {"name": "trail", "time_unit": "s", "aggregates": {"n": {"function": "count"}}}
    window = client.create_window(spec)
    assert "no entries" in sash("series", "trail", "--last", "6h", service=service, expect=1).err
    window.bulk_insert([0, 86_400, 86_400 + 3 * 3600], [1.0, 1.0, 1.0])

    def times(*given):
        out = sash("series", "trail", *given, "--json", service=service).out
        return [json.loads(line)["time"] for line in out.splitlines()]

    found = times("--last", "6h")
    assert found == list(range(86_400 - 3 * 3600, 86_400 + 3 * 3600 + 1, 600))
    assert times("--last", "6h", "--step", "4h") == [72_000, 86_400]
    assert times("--last", "1h", "--gap", "5m") == [86_400 + 3 * 3600]
    assert times("--start", "1970-01-02", "--end", "1970-01-02T01:00Z", "--step", "30m") == [86_400, 88_200]
    for wrong in ([], ["--start", "0"], ["--last", "6h", "--end", "now"]):
        assert "--last" in sash("series", "trail", *wrong, "--step", "1h", service=service, expect=1).err


@pytest.fixture
def trips(service, client):
    spec = {
        "name": "trips",
        "time_unit": "s",
        "keys": ["carrier", "airport"],
        "fields": {"delay": "float64", "tail": "string"},
        "nullable": ["tail"],
        "aggregates": {"n": {"function": "count"}, "most": {"function": "max", "field": "delay"}},
    }
    window = client.create_window(spec)
    keys = {"carrier": ["AA", "AA", "UA"], "airport": ["JFK", "LGA", "JFK"]}
    window.bulk_insert([10, 20, 30], {"delay": [1.0, 2.0, 4.0], "tail": ["N1", None, "N3"]}, keys=keys)
    return window


def test_the_aggregates_of_a_range(sash, service, trips):
    def rows(*given):
        return [line.split() for line in sash("range", "trips", *given, service=service).out.splitlines()]

    whole = ("--start", "10", "--end", "30", "--ticks")
    assert rows(*whole, "--all-keys") == [["start", "end", "entries", "most", "n"], ["10", "30", "3", "4", "3"]]
    assert rows(*whole, "--all-keys", "--end-exclusive", "-a", "n")[1] == ["10", "29", "2", "2"]
    assert rows(*whole, "-k", "AA|JFK", "-a", "n")[1][2:] == ["1", "1"]
    assert rows(*whole, "-k", "AA|JFK", "-k", "UA|JFK", "-a", "n")[1][2:] == ["2", "2"]
    assert rows(*whole, "--where", "carrier=AA", "-a", "most")[1][2:] == ["2", "2"]
    assert rows(*whole, "--by", "carrier", "-a", "n") == [
        ["carrier", "start", "end", "entries", "n"],
        ["AA", "10", "30", "2", "2"],
        ["UA", "10", "30", "1", "1"],
    ]
    assert rows("--start", "1970-01-01T00:00:15Z", "--end", "1970-01-01T00:00:30Z", "--all-keys", "-a", "n")[1][:3] == [
        "1970-01-01T00:00:15Z",
        "1970-01-01T00:00:30Z",
        "2",
    ]
    shown = json.loads(sash("range", "trips", *whole[:4], "--all-keys", "--json", service=service).out)
    assert (shown["start"], shown["end"], shown["aggregates"]["n"]) == (10, 30, 3)
    assert "either --key or" in sash("range", "trips", *whole, "--all-keys", "-k", "x", service=service, expect=1).err


def test_the_entries(sash, service, trips):
    def rows(*given):
        return [line.split() for line in sash("entries", "trips", "--ticks", *given, service=service).out.splitlines()]

    everything = [["10", "AA", "JFK", "1", "N1"], ["20", "AA", "LGA", "2", "-"], ["30", "UA", "JFK", "4", "N3"]]
    assert rows() == [["time", "carrier", "airport", "delay", "tail"], *everything]
    assert rows("--limit", "2")[1:] == everything[:2]
    assert rows("-n", "1", "--reverse")[1:] == everything[2:]
    assert rows("--start", "15", "--end", "25")[1:] == everything[1:2]
    assert rows("-k", "AA|JFK", "-k", "UA|JFK")[1:] == everything[::2]
    assert rows("-w", "airport=LGA")[1:] == everything[1:2]
    lines = sash("entries", "trips", "--json", service=service).out.splitlines()
    assert [json.loads(line) for line in lines][1] == {
        "time": 20,
        "carrier": "AA",
        "airport": "LGA",
        "delay": 2.0,
        "tail": None,
    }
    assert sash("entries", "trips", "-n", "1", service=service).out.splitlines()[1].startswith("1970-01-01T00:00:10Z")


def test_the_entries_of_panes(sash, service, client):
    window = client.create_window(
        {
            "name": "panes",
            "time_unit": "s",
            "keyed": True,
            "granularity": "10s",
            "aggregates": {"n": {"function": "count"}, "mean": {"function": "mean"}},
        }
    )
    window.bulk_insert([1, 2, 15], [1.0, 3.0, 5.0], keys=["a"] * 3)
    shown = sash("entries", "panes", "--ticks", service=service).out.splitlines()
    assert shown[0].split()[:3] == ["time", "key", "entries"]
    assert [line.split()[:3] for line in shown[1:]] == [["0", "a", "2"], ["10", "a", "1"]]


SHAPES = {
    "name": "shapes",
    "time_unit": "s",
    "fields": {"delay": "float64", "carrier": "string"},
    "aggregates": {
        "bars": {"function": "histogram", "field": "delay", "bounds": [0, 10]},
        "chart": {"function": "m4", "field": "delay"},
        "run": {"function": "longest_increasing_run", "field": "delay"},
        "items": {"function": "frequent_items", "field": "carrier"},
        "all": {"function": "collect", "field": "delay"},
        "largest": {"function": "largest", "field": "delay", "returns": "carrier", "n": 2},
        "when": {"function": "arg_max", "field": "delay"},
        "least": {"function": "smallest", "field": "delay", "n": 2},
        "seen": {"function": "bloom", "field": "carrier"},
        "n": {"function": "count"},
    },
}


@pytest.fixture
def shapes(service, client):
    window = client.create_window(SHAPES)
    window.bulk_insert([10, 20, 30], {"delay": [5.0, 12.5, -1.0], "carrier": ["UA", "UA", "B6"]})
    return window


def test_only_the_aggregates_that_are_asked_for(sash, service, shapes):
    def header(*arguments):
        return sash(*arguments, service=service).out.splitlines()[0].split()

    chosen = ("--aggregate", "run", "-a", "n", "-a", "run")
    series = ("series", "shapes", "--start", "0", "--end", "40", "--step", "20s")
    assert header("query", "shapes", *chosen) == ["lookback", "entries", "run", "n"]
    assert header("watch", "shapes", "--times", "1", *chosen) == ["lookback", "entries", "run", "n"]
    assert header(*series, *chosen) == ["time", "entries", "run", "n"]
    for asked in (("query", "shapes"), series):
        line = sash(*asked, *chosen, "--json", service=service).out.splitlines()[-1]
        assert list(json.loads(line)["aggregates"]) == ["run", "n"]
        assert list(json.loads(sash(*asked, "--json", service=service).out.splitlines()[0])["aggregates"]) == sorted(
            SHAPES["aggregates"]
        )
        said = sash(*asked, "-a", "mean", service=service, expect=1).err
        assert (
            said
            == "sash: --aggregate mean is none of window shapes; it has all, bars, chart, items, largest, least, n, "
            "run, seen, when\n"
        )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("bars", "<0: 1, 0 to 10: 1, ≥10: 1"),
        (
            "chart",
            "first 5 at 1970-01-01T00:00:10Z, last -1 at 1970-01-01T00:00:30Z, "
            "min -1 at 1970-01-01T00:00:30Z, max 12.5 at 1970-01-01T00:00:20Z",
        ),
        ("run", "2 from 1970-01-01T00:00:10Z to 1970-01-01T00:00:20Z"),
        ("items", "UA: 2, B6: 1"),
        ("all", "[5, 12.5, -1]"),
        ("largest", "UA: 12.5, UA: 5"),
        ("when", "1970-01-01T00:00:20Z"),
        ("least", "1970-01-01T00:00:30Z: -1, 1970-01-01T00:00:10Z: 5"),
        ("n", "3"),
    ],
)
def test_structured_answers_are_short(sash, service, shapes, name, shown):
    assert sash("query", "shapes", "-a", name, service=service).out.splitlines()[1].split(None, 2)[2] == shown
    series = ("series", "shapes", "--start", "0", "--end", "40", "--step", "40", "-a", name)
    assert sash(*series, service=service).out.splitlines()[1].split(None, 2)[2] == shown


def test_times_in_structured_answers_may_be_ticks(sash, service, shapes):
    line = sash("query", "shapes", "-a", "run", "--ticks", service=service).out.splitlines()[1]
    assert line.endswith("2 from 10 to 20")
    whole = json.loads(sash("query", "shapes", "-a", "run", "--json", service=service).out)
    assert whole["aggregates"] == {"run": {"length": 2, "start": 10, "end": 20}}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (float("nan"), "nan"),
        ([], "[]"),
        (list(range(40)), "[0, 1, 2, 3, 4, 5, … (40)]"),
        ([[1.5, None], []], "[[1.5, -], []]"),
        ({"bounds": [0.5], "counts": [0, 0], "nan": 0}, "-"),
        ({"bounds": [0.5], "counts": [3, 0], "nan": 2}, "<0.5: 3, NaN: 2"),
        ({"intercept": 1.5, "coefficients": [2.0, 3.0]}, "intercept 1.5, coefficients [2, 3]"),
        ({"a": {"b": 1}}, "a {b 1}"),
        ({"first": 1, "last": 2, "min": 1, "max": 2}, "first 1, last 2, min 1, max 2"),
        ([{"label": True, "entries": 2}, {"label": False, "entries": 1}], "True: 2, False: 1"),
        ([{"x": 1}], "[{x 1}]"),
        ({}, "{}"),
        (b"12345", "5 bytes"),
        (["\x1b[31m"], "[�[31m]"),
    ],
)
def test_short_forms(value, shown):
    assert short_form(value, "s") == shown


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([None, float("nan"), float("inf"), "text", True, [1]], ""),
        ([1, 2, None, float("nan"), 4], "▁▃  █"),
        ([5, 5, float("-inf")], "▄▄ "),
        ([-1.7e308, 0.0, 1.7e308], "▁▅█"),
        ([0, 10**400, 2**70], "▁ █"),
        (list(range(8)), "▁▂▃▄▅▆▇█"),
        ([0] * 60 + [None] * 30 + [3, 5] + [None] * 28, "▁" * 30 + " " * 15 + "█" + " " * 14),
    ],
)
def test_a_sparkline_draws_finite_numbers(values, drawn):
    assert sparkline(values) == drawn


def test_a_series_has_sparklines_where_they_are_asked_for(sash, service, shapes, monkeypatch):
    series = ("series", "shapes", "--start", "0", "--end", "40", "--step", "10", "-a", "n", "-a", "run", "-a", "when")
    plain = sash(*series, service=service).out
    drawn = sash(*series, "--sparkline", service=service).out
    assert drawn == plain + "\nn     ▁███\nwhen   ▁▅█\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert sash(*series, service=service).out == drawn
    assert sash(*series, "--no-sparkline", service=service).out == plain
    assert "▁" not in sash(*series, "--json", service=service).out


# ---------------------------------------------------------------- progress


@pytest.fixture
def progress(monkeypatch, capsys):
    """Returns what stands on standard error after some steps of (seconds, name, amount, share)."""

    def run(steps, terminal, **options):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
        seconds = [0.0]
        with Progress(now_s=lambda: seconds[0], **options) as shown:
            for now_s, *given in steps:
                seconds[0] = now_s
                shown(*given)
        return capsys.readouterr().err

    return run


MIB = 1 << 20


def test_a_bar_on_a_terminal(progress):
    steps = [(0.05, "a", MIB, 0.25), (10.0, "a", 20 * MIB, 0.5), (10.05, "a", 21 * MIB, 0.5), (7210.0, "b", MIB, 0.5)]
    drawn = progress(steps, True).split("\r")
    assert drawn == [
        "",
        "a: ██████████░░░░░░░░░░  50% 20.0 MiB, 2.0 MiB/s, 0:10 left\x1b[K",
        "\x1b[Ka: 21.0 MiB\n",
        "b: ██████████░░░░░░░░░░  50% 1.0 MiB, 3,199 bytes/s, 2:00:10 left\x1b[K",
        "\x1b[Kb: 1.0 MiB\n",
    ]


def test_lines_where_there_is_no_terminal(progress):
    rows = {"amount_text": lambda rows: f"{rows:,} rows", "ends": False}
    steps = [(1.0, "a", 100), (6.0, "a", 600), (10.9, "a", 700), (11.1, "a", 1110, 2.0)]
    assert progress(steps, False, **rows).splitlines() == [
        "a: 600 rows, 100 rows/s",
        "a: 100% 1,110 rows, 100 rows/s, 0:00 left",
    ]
    assert progress([(1.0, "a", 100), (2.0, "b", 5)], False) == "a: 100 bytes\nb: 5 bytes\n"
    assert progress([(6.0, "a", 600, 0.6)], False, **rows) == "a:  60% 600 rows, 100 rows/s, 0:04 left\n"


def test_entries_with_what_is_known_of_them(sash, service, client):
    spec = {"name": "known", "time_unit": "s", "fields": {"x": "float64", "id": "int64"}, "identity": "id"}
    window = client.create_window({**spec, "aggregates": {"n": {"function": "count"}}, "known": "arrival"})
    window.bulk_insert([10, 20, 30], {"x": [1.0, 2.0, 3.0], "id": [1, 2, 3]})
    window.retract([10], [1])
    window.update([20], {"x": [9.0], "id": [2]})

    def rows(*given):
        return [line.split() for line in sash("entries", "known", "--ticks", *given, service=service).out.splitlines()]

    assert rows() == [["time", "id", "x"], ["20", "2", "9"], ["30", "3", "3"]]
    assert [row[:3] for row in rows("--known", "kept")] == rows()
    assert rows("--known", "kept")[0][3:] == ["arrival!"]
    removed = rows("--known", "removed")
    assert removed[0] == ["time", "id", "x", "arrival!", "placed!", "removed!"]
    assert [row[:3] for row in removed[1:]] == [["10", "1", "1"], ["20", "2", "2"]]
    assert [int(row[3]) < int(row[5]) for row in removed[1:]] == [True, True]
    refused = sash("entries", "known", "--known", "gone", service=service, expect=1)
    assert "known 'gone' is unknown" in refused.err
    assert "kept or removed" in refused.err
