"""The command line against a service in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress

import grpc
import pytest

from sash_client.client import Window
from sash_engine.version import engine, version
from tests.support.forked import Forked, command
from tests.support.numbered import Numbered, serving
from tests.support.recorder import status
from tests.support.servers import WAIT_S, Running

SPEC = """name: demo
time_unit: s
keyed: true
aggregates:
  n: {function: count}
  mean: {function: mean}
"""


@pytest.fixture
def demo(client, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    client.create_window(SPEC).bulk_insert([0, 50, 100], [1.0, 4.0, 9.0], keys=["JFK", "JFK", "LGA"])
    return path


def test_create_list_query_delete(sash, service, demo):
    for source, text in ((str(demo), None), ("-", SPEC)):  # it is there already: no error
        assert "demo" in sash("create", source, service=service, text=text).out
    header, line = sash("list", service=service).out.splitlines()
    assert header.split()[:3] == ["window", "entries", "keys"]
    assert line.split() == ["demo", "3", "2", "3", "0", "0", "0", "0", "-", "1970-01-01T00:01:40Z", "memory"]
    assert sash("list", "--ticks", service=service).out.splitlines()[1].split()[9] == "100"
    assert json.loads(sash("list", "--json", service=service).out)["newest"] == 100
    asked = ("query", "demo", "--key", "JFK", "--lookback", "10s", "-l", "1m")
    table = sash(*asked, service=service).out.splitlines()
    assert [line.split() for line in table] == [
        ["lookback", "entries", "mean", "n"],
        ["10s", "1", "4", "1"],
        ["1m", "2", "2.5", "2"],
    ]
    first, second = map(json.loads, sash(*asked, "--json", service=service).out.splitlines())
    assert (first["lookback"], first["aggregates"]) == ("10s", {"mean": 4.0, "n": 1})
    assert second["entries"] == 2
    assert json.loads(sash("list", "--json", service=service).out)["entries"] == 3
    assert "3 entries" in sash("delete", "demo", service=service).out
    assert "no window" in sash("delete", "demo", service=service, expect=1).err


def test_several_keys(sash, service, demo):
    table = sash("query", "demo", "--all-keys", "-l", "10s", service=service).out.splitlines()
    assert [line.split() for line in table] == [
        ["key", "lookback", "entries", "mean", "n"],
        ["JFK", "10s", "1", "4", "1"],
        ["LGA", "10s", "1", "9", "1"],
    ]
    several = sash("query", "demo", "-k", "LGA", "-k", "JFK", "--json", service=service).out.splitlines()
    assert [json.loads(line)["key"] for line in several] == ["LGA", "JFK"]
    for which in (("--all-keys",), ("-k", "JFK", "-k", "LGA")):
        table = sash("query", "demo", *which, "--combine", service=service).out.splitlines()
        assert [line.split() for line in table][1:] == [["all", "3", "4.66667", "3"]]
    one = json.loads(sash("query", "demo", "-k", "LGA", "--combine", "--json", service=service).out)
    assert (one["key"], one["entries"]) == (None, 1)


def test_series(sash, service, demo):
    asked = ("series", "demo", "--start", "0", "--end", "1970-01-01T00:02Z", "--step", "50s", "-k", "JFK")
    table = sash(*asked, "--width", "51", service=service).out.splitlines()
    assert [line.split() for line in table] == [
        ["time", "entries", "mean", "n"],
        ["1970-01-01T00:00:00Z", "2", "2.5", "2"],
        ["1970-01-01T00:00:50Z", "1", "4", "1"],
        ["1970-01-01T00:01:40Z", "0", "-", "0"],
    ]
    table = sash(*asked, "--ticks", service=service).out.splitlines()
    assert [line.split()[0] for line in table] == ["time", "0", "50", "100"]
    lines = sash(*asked, "--json", service=service).out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"time": 0, "entries": 1, "aggregates": {"mean": 1.0, "n": 1}},
        {"time": 50, "entries": 1, "aggregates": {"mean": 4.0, "n": 1}},
        {"time": 100, "entries": 0, "aggregates": {"mean": None, "n": 0}},
    ]


def test_sessions(sash, service, demo):
    asked = ("series", "demo", "--start", "0", "--end", "200", "--gap", "20s", "-k", "JFK", "--json")
    lines = [json.loads(line) for line in sash(*asked, service=service).out.splitlines()]
    assert [(line["time"], line["last"], line["entries"]) for line in lines] == [(0, 0, 1), (50, 50, 1)]
    header = sash(*asked[:-1], service=service).out.splitlines()[0]
    assert header.split() == ["time", "last", "entries", "mean", "n"]
    assert sash(*asked[:-1], "--ticks", service=service).out.splitlines()[2].split()[:2] == ["50", "50"]


def test_keys(sash, service, demo):
    assert sash("keys", "demo", service=service).out.split() == ["JFK", "LGA"]
    assert sash("keys", "demo", "--prefix", "L", "--json", service=service).out == '"LGA"\n'
    assert sash("keys", "demo", "--limit", "1", service=service).out.split() == ["JFK"]


def test_evict(sash, service, demo):
    assert sash("evict", "demo", "--start", "50", "--end", "60", service=service).out == "1 entries are evicted\n"
    assert sash("evict", "demo", "--through", "99", "-k", "JFK", service=service).out == "1 entries are evicted\n"
    assert [line.split()[0] for line in sash("keys", "demo", service=service).out.splitlines()] == ["LGA"]
    assert "give a time, or start and end" in sash("evict", "demo", service=service, expect=1).err


def test_refusals_are_one_line(sash, service, demo, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: bad name\naggregates: {n: {function: count}}\n")
    for arguments, words in (
        (("create", str(bad)), "name"),
        (("create", str(tmp_path / "nowhere.yaml")), "nowhere.yaml: No such file or directory"),
        (("query", "nope"), "no window"),
        (("query", "demo"), "key"),
        (("query", "demo", "-k", "JFK", "-l", "soon"), "lookback"),
        (("query", "demo", "-k", "JFK", "--all-keys"), "either"),
        (("query", "demo", "--combine"), "combine"),
        (("series", "demo", "-k", "JFK", "--start", "0", "--end", "then", "--step", "1s"), "'then' is not a time"),
        (("series", "demo", "-k", "JFK", "--start", "0", "--end", "5", "--step", "soon"), "step"),
        (("keys", "nope"), "no window"),
    ):
        done = sash(*arguments, service=service, expect=1)
        assert done.out == ""
        assert done.err.startswith("sash: ")
        assert words in done.err
        assert done.err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_one_line(service, demo):
    environment = {**os.environ, "SASH_TARGET": service.grpc_target}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sash.main", "list"],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=240,
        )
    assert (done.returncode, done.stderr) == (1, b"sash: No space left on device\n")


def test_no_service(sash):
    for target in ("localhost:1", "http://127.0.0.1:1"):
        said = sash("list", "--target", target, expect=1).err
        assert said == f"sash: nothing listens on {target}; is `sash serve` running?\n"
    said = sash("list", "--target", "ftp://127.0.0.1:7071", expect=1).err
    assert re.fullmatch(r"sash: 'ftp://127.0.0.1:7071' is no address of a service: write HOST:PORT, .+\n", said)


def test_version(sash):
    assert sash("--version").out == f"sash {version()} (engine: {engine()})\n"


def test_as_of_is_ticks_or_an_instant(sash, service, demo):
    asked = ("query", "demo", "-k", "JFK", "-l", "60s", "--json", "--as-of")
    answers = [
        sash(*asked, end, service=service).out for end in ("55", "1970-01-01T00:00:55Z", "1970-01-01T01:00:55+01:00")
    ]
    assert [json.loads(answer)["end"] for answer in answers] == [55] * 3
    assert len(set(answers)) == 1
    assert "'noon' is not a time" in sash(*asked, "noon", service=service, expect=1).err


def test_watch_shows_changes_only(sash, service, client, demo):
    words, env = ("watch", "demo", "-k", "JFK", "--every", "0.05"), os.environ | {"SASH_TARGET": service.grpc_target}
    with Forked([*words, "--json"], stdout=subprocess.PIPE, env=env) as watching:
        assert json.loads(watching.stdout.readline())["entries"] == 2
        client.window("demo").insert(60, 7.0, key="JFK")
        assert json.loads(watching.stdout.readline())["entries"] == 3
        watching.send_signal(signal.SIGINT)
        assert watching.wait(WAIT_S) == 130
    looks = sash(*words, "--times", "5", "--json", service=service)
    assert len(looks.out.splitlines()) == 1


def test_an_interrupt_that_grpc_swallows_ends_a_watch(sash, service, demo, monkeypatch):
    ask = Window.query
    looks = []

    def interrupted(window, **options):
        looks.append(1)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return ask(window, **options)

    def before(number, frame):
        raise AssertionError("the command hears it")

    monkeypatch.setattr(Window, "query", interrupted)
    usual = signal.signal(signal.SIGINT, before)  # a shell's background jobs ignore it
    try:
        sash("watch", "demo", "-k", "JFK", "--every", "0.05", "--times", "3", service=service, expect=130)
        assert len(looks) == 1
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, usual)


def test_export_and_import(sash, service, demo, tmp_path):
    path = tmp_path / "demo.window"
    assert str(path) in sash("export", "demo", str(path), service=service).out
    assert "window copy is there: 3 entries" in sash("import", str(path), "--name", "copy", service=service).out
    answers = [sash("query", name, "-k", "JFK", "--json", service=service).out for name in ("demo", "copy")]
    assert answers[0] == answers[1]
    assert "copy" in sash("import", str(path), "--name", "copy", service=service, expect=1).err


def test_backup_and_restore(sash, service, client, demo, tmp_path):
    path = tmp_path / "all.sash"
    client.create_window(SPEC.replace("demo", "other"))
    done = sash("backup", str(path), service=service)
    assert done.out.startswith(f"2 windows are in {path}: ")
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["demo", "other"]
    before = sash("query", "demo", "--all-keys", "--json", service=service).out
    sash("delete", "demo", service=service)
    assert sash("restore", str(path), "--only", "demo", service=service).out == "1 of 1 windows are restored\n"
    assert sash("query", "demo", "--all-keys", "--json", service=service).out == before
    sash("delete", "demo", service=service)
    done = sash("restore", str(path), service=service, expect=1)  # the other one is there
    assert done.out == "1 of 2 windows are restored\n"
    assert "sash: other: " in done.err
    assert sash("query", "demo", "--all-keys", "--json", service=service).out == before


@pytest.fixture
def files():
    """A service that does nothing but export and import."""
    servicer = Numbered()
    servicer.files = {"a": b"x" * 2_500, "b": b"y" * 2**20}
    with serving(servicer) as port:
        yield servicer, Running(port, 0)


def test_files_that_fail_leave_nothing_behind(sash, files, tmp_path):
    servicer, service = files
    lost = ("before", status(grpc.StatusCode.DATA_LOSS, "block 7 is damaged"))
    path = tmp_path / "file"
    for words in (("export", "b", str(path)), ("backup", str(path))):
        servicer.script.append(lost)
        done = sash(*words, service=service, expect=1)
        assert (done.out, done.err.splitlines()[-1]) == ("", "sash: block 7 is damaged")
        assert list(tmp_path.iterdir()) == []
    path.write_text("nothing of the kind")
    nowhere = tmp_path / "nowhere" / "file"
    for words, said in (
        (("export", "c", str(path)), "no window"),
        (("export", "a", str(nowhere)), "No such file"),
        (("import", str(nowhere)), "No such file"),
        (("import", str(path), "--name", "a"), "is there"),
        (("backup", str(nowhere)), "No such file"),
        (("restore", str(nowhere)), "No such file"),
        (("restore", str(path)), "no backup"),
    ):
        done = sash(*words, service=service, expect=1)
        assert done.out == ""
        assert said in done.err.splitlines()[-1]
    assert path.read_text() == "nothing of the kind"
    sash("backup", str(path), service=service)
    assert "'c' is not in" in sash("restore", str(path), "--only", "c", service=service, expect=1).err


def test_progress_is_a_line_that_grows_on_a_terminal(sash, files, tmp_path, monkeypatch):
    servicer, service = files
    plain = sash("backup", str(tmp_path / "all"), service=service).err
    assert plain == "a: 2,500 bytes\nb: 1.0 MiB\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    lines = sash("backup", str(tmp_path / "all"), service=service).err.split("\n")[:-1]
    assert [line.split("\x1b[K")[-1] for line in lines] == ["a: 2,500 bytes", "b: 1.0 MiB"]
    servicer.files.clear()
    assert sash("restore", str(tmp_path / "all"), service=service).out == "2 of 2 windows are restored\n"
    assert len(servicer.files["b"]) == 2**20


def test_progress_says_how_much_is_done_of_all(sash, service, client, demo, tmp_path, monkeypatch):
    client.create_window(SPEC.replace("demo", "other")).insert(7, 1.0, key="JFK")
    path = str(tmp_path / "all.sash")
    sash("backup", path, service=service)
    monkeypatch.setattr("sash_cli.output._LINE_S", -1.0)

    def shares(*words):
        lines = sash(*words, service=service).err.splitlines()
        return [(found[1], found[2]) for line in lines if (found := re.match(r"(\w+): +(\d+)% ", line))]

    assert set(shares("backup", path)) == {("demo", "0"), ("other", "75")}
    for name in ("demo", "other"):
        client.delete_window(name)
    told = shares("restore", path)
    with zipfile.ZipFile(path) as archive:  # the list of windows is its last member, and is read before all
        sizes = [each.file_size for each in archive.infolist()]
    assert told[-1] == ("other", f"{sum(sizes[:2]) / sum(sizes):.0%}".removesuffix("%"))
    assert [int(share) for _, share in told] == sorted(int(share) for _, share in told)
    client.delete_window("other")
    assert not shares("restore", path, "--only", "other")


def test_a_window_through_a_pipe(files, tmp_path):
    servicer, service = files
    forks, env = command(tmp_path), os.environ | {"SASH_TARGET": service.grpc_target}
    script = f"{tmp_path}/sash export a - | {tmp_path}/sash import - --name c"
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=env, pass_fds=[forks], check=True, timeout=240)
    assert servicer.files["c"] == servicer.files["a"]


def test_a_taken_port_is_one_line(sash, service):
    for option, port in (("--grpc-port", service.grpc_port), ("--rest-port", service.rest_port)):
        done = sash("serve", "--grpc-port", "0", "--rest-port", "0", option, str(port), expect=1)
        assert re.search(rf"cannot listen on 127\.0\.0\.1, port {port}", done.err)


def test_questions_by_parts_of_keys(sash, service, client):
    """`where`, `by`, `top` and `having`, of queries, series, keys and watches."""
    spec = {
        "name": "flights",
        "time_unit": "s",
        "keys": ["airport", "carrier"],
        "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
    }
    keys = {"airport": ["JFK", "JFK", "LGA"], "carrier": ["AA", "B6", "AA"]}
    client.create_window(spec).bulk_insert([10, 11, 12], [1.0, 2.0, 4.0], keys=keys)

    def lines(*arguments):
        return [line.split() for line in sash(*arguments, service=service).out.splitlines()]

    assert lines("query", "flights", "--by", "carrier") == [
        ["carrier", "lookback", "entries", "n", "sum"],
        ["AA", "all", "2", "2", "5"],
        ["B6", "all", "1", "1", "2"],
    ]
    assert lines("query", "flights", "--all-keys", "--top", "sum", "-n", "1") == [
        ["airport", "carrier", "lookback", "entries", "n", "sum"],
        ["LGA", "AA", "all", "1", "1", "4"],
    ]
    assert lines("query", "flights", "-w", "airport=JFK", "--having", "sum>1")[1:] == [
        ["JFK", "B6", "all", "1", "1", "2"]
    ]
    (group,) = lines("watch", "flights", "--by", "airport", "--top", "n", "-n", "1", "--times", "1")[1:]
    assert group == ["JFK", "all", "2", "2", "3"]
    assert lines("keys", "flights", "-w", "carrier=AA") == [["JFK|AA"], ["LGA|AA"]]
    asked = ("series", "flights", "--start", "10", "--end", "13", "--step", "2")
    assert lines(*asked, "--by", "airport")[:3] == [
        ["airport", "JFK"],
        ["time", "entries", "n", "sum"],
        ["1970-01-01T00:00:10Z", "2", "2", "3"],
    ]
    answers = sash(*asked, "--by", "airport", "--json", service=service).out.splitlines()
    assert json.loads(answers[-1]) == {
        "parts": {"airport": "LGA"},
        "time": 12,
        "entries": 1,
        "aggregates": {"n": 1, "sum": 4},
    }
    assert "no condition" in sash("query", "flights", "-w", "x", service=service, expect=1).err
    assert "either --key" in sash(*asked, "--key", "JFK|AA", "--by", "airport", service=service, expect=1).err
