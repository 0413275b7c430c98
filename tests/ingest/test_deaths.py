"""A process that dies, or sleeps while another one works, between any two steps: each record is written once.

A step is a call of the connector, of the dead letters or of a window, or its answer. All steps are taken in one thread,
so the k-th one is the same in every run.
"""

import math
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from sash_ingest.lines import Lines
from tests.ingest.log import SPEC, Letters, Log, ids_of, ingest, record, target
from tests.support.profile import THOROUGH

EACH = 1 if THOROUGH else 3
"""Every third step is tried: calls and their answers in turn."""
NAMES = ("one", "two")
FITS = [n for n in range(1, 10) if n not in (3, 4, 8)]
BAD = {(4, None), (8, "two")}
"""Numbers of records that do not fit, and the window; 3 is a gap."""


def record_of(n):
    return b"{" if n == 4 else record(n, dest=None if n == 8 else "SFO")


class DiedError(BaseException):
    """A process has died: nothing that it does later has an effect."""


class Inline:
    """Threads that work at once."""

    def submit(self, call, *args):
        done = Future()
        try:
            done.set_result(call(*args))
        except BaseException as error:
            done.set_exception(error)
        return done

    def shutdown(self):
        pass


class Life:
    """A process that counts its steps, and at one of them does something.

    Args:
        at: the step; None: none.
        then: what is done; by default it dies.
    """

    def __init__(self, at=None, then=None):
        self.at, self.then, self.dead = at, then or self.die, False
        self.steps = []
        """The names of those that it has begun."""

    def die(self):
        self.dead = True
        raise DiedError

    def step(self, name):
        if self.dead:
            raise DiedError
        self.steps.append(name)
        if len(self.steps) == self.at:
            self.then()

    def watch(self, of, *names):
        for name in names:
            setattr(of, name, self._around(name, getattr(of, name)))
        return of

    def _around(self, name, call):
        def made(*args, **more):
            self.step(name)
            answer = call(*args, **more)
            self.step(f"{name}'s answer")
            return answer

        return made

    def run(self, client, connector, letters):
        """Run a pipeline from its start; return whether it came to its end."""
        targets = [target(client.window(name)) for name in NAMES]
        for each in targets:
            self.watch(each, "write", "has_changed")
            self.watch(each.window, "last_write")
        mine = self.watch(Letters(), "put", "close")
        mine.extend = letters.extend
        one = ingest(targets, mine, records_per_write=3)
        one._pool = Inline()
        self.watch(connector, "open", "poll", "applied", "seek", "hold", "lag", "close")
        try:
            one.run(connector)
        except DiedError:
            return False
        return True


def log():
    numbers = [n for n in range(1, 10) if n != 3]
    return Log({name: [(n, record_of(n)) for n in numbers[i::2]] for i, name in enumerate("ab")}, some=4)


@pytest.fixture(autouse=True)
def _no_lines(monkeypatch):
    """The line of status comes by the clock: on a slow machine it would be a step more."""
    monkeypatch.setattr("sash_ingest.runner._LINE_S", math.inf)


@pytest.fixture
def windows(client):
    """Makes both windows anew."""

    def made():
        for window in client.list_windows():
            client.delete_window(window.name)
        keys = {"one": ["carrier"], "two": ["carrier", "dest"]}
        return [client.create_window(SPEC | {"name": name, "keys": keys[name]}) for name in NAMES]

    yield made
    made()


def has_all_once(windows, letters, fits=FITS):
    one, two = windows
    assert ids_of(one) == Counter([*fits, 8])
    assert ids_of(two) == Counter(fits)
    assert {(each.origin.get("number") or each.origin["line"], each.window) for each in letters} >= BAD


def steps_of(client, made, source):
    """The steps of a run that nothing interrupts."""
    life, letters = Life(), []
    assert life.run(client, source(), letters)
    assert len(letters) == len(BAD)
    has_all_once(made, letters, FITS if isinstance(source(), Log) else sorted([*FITS, 3]))
    return life.steps


@pytest.fixture
def lines(tmp_path):
    """Makes a connector for the same lines each time."""
    (tmp_path / "lines").write_bytes(b"".join(record_of(n) + b"\n" for n in range(1, 10)))
    with ExitStack() as files:
        yield lambda: Lines(files.enter_context((tmp_path / "lines").open("rb")), "again")


@pytest.mark.parametrize("form", ["log", "lines"])
def test_a_process_that_dies_at_any_step_and_again(client, windows, form, lines):
    source = log if form == "log" else lines
    fits = FITS if form == "log" else sorted([*FITS, 3])
    steps = steps_of(client, windows(), source)
    first = {steps.index(name) + 1 for name in steps}  # of each kind
    for at in sorted(first | {*range(1, len(steps) + 1, EACH)}):
        made, letters = windows(), []
        lives = [Life(at), Life(at * 7 % len(steps) + 1), Life()]
        ends = [life.run(client, source(), letters) for life in lives]
        assert ends[0] is False, at
        assert ends[2] is True, at
        has_all_once(made, letters, fits)
    assert {"write", "write's answer", "put", "put's answer", "last_write", "applied", "poll's answer"} <= {*steps}


def test_a_process_that_sleeps_at_any_step_while_another_one_does_all(client, windows, monkeypatch):
    """It goes on with what it knew: its writes are fenced, and it takes the streams back."""
    monkeypatch.setattr("sash_ingest.runner._FENCED_S", 0.0)
    for at in range(1, len(steps_of(client, windows(), log)) + 1, EACH):
        made, letters = windows(), []
        life = Life(at, lambda letters=letters: Life().run(client, log(), letters))
        assert life.run(client, log(), letters), at
        assert len(life.steps) >= at, at
        has_all_once(made, letters)


def test_two_processes_take_turns_at_any_step(client, windows, monkeypatch):
    """The other one dies in the middle, and the first one does the rest."""
    monkeypatch.setattr("sash_ingest.runner._FENCED_S", 0.0)
    steps, deaths = len(steps_of(client, windows(), log)), 0
    for at in range(1, steps + 1, EACH):
        made, letters = windows(), []
        other = Life(at * 5 % steps + 1)
        life = Life(at, lambda letters=letters, other=other: other.run(client, log(), letters))
        assert life.run(client, log(), letters), at
        deaths += other.dead  # it has fewer steps where the first one has done much
        has_all_once(made, letters)
    assert deaths > steps / EACH / 2
