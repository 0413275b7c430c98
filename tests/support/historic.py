"""A window with a history, a view of it, and twins: windows that keep what each of them should answer from.

window    slide 8, history 24      answers as `shown` (max_age 8); about the past as `kept` (max_age 24)
long      a view of it, slide 16   answers as `long` (max_age 16); about the past as `kept_long` (max_age 24)
"""

import copy
from types import SimpleNamespace

import numpy as np

from sash_engine.clock import ManualClock
from sash_engine.errors import SashError
from sash_engine.steps import finished
from sash_engine.windows.questions import AnswersAt
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.coded import Coded
from tests.support.viewed import COMMON, MORE, SECOND, SUMS, Viewed, ask, questions_about, write

SLIDE, HISTORY, LONG = 8, 24, 16
AGGREGATES = {
    **SUMS,
    "low": {"function": "min", "field": "v"},
    "all": {"function": "collect", "field": "v"},
}
KINDS = {
    "event": {},
    "steps": {"slide": {"every": 4}},
    "wall": {"slide": {"clock": "wall"}},
    "wall, in steps": {"slide": {"clock": "wall", "every": 4}},
    "final": {"slide": {"until": "punctuation"}},
    "one of a time": {"order": {"equal_times": "last"}},
    "named": {"identity": "v"},
    "late ones are refused": {"order": {"late": "reject"}},
    "one key": {"keys": None},
    "panes": {"granularity": 2},
    "panes, wall": {"granularity": 2, "slide": {"clock": "wall"}},
}


def spec_of(kind, max_age=SLIDE, history=HISTORY, name="historic"):
    """The spec of a kind of window; `history` None: one that forgets."""
    more = copy.deepcopy(KINDS[kind])
    slide = {"max_age": max_age, **more.pop("slide", {})}
    aggregates = AGGREGATES
    if "granularity" in more:
        aggregates = {each: aggregate for each, aggregate in AGGREGATES.items() if each != "all"}
    document = {**COMMON, "name": name, "aggregates": aggregates, "slide": slide, "history": history, **more}
    return WindowSpec.parse({each: value for each, value in document.items() if value is not None})


def view_of(spec):
    """The complete spec of a view that shows a part of the history."""
    slide = {name: value for name, value in spec.document()["slide"].items() if name == "every"}
    aggregates = {"n": SUMS["n"], "total": SUMS["sum"]}
    view = {"name": "long", "of": spec.name, "slide": {"max_age": LONG, **slide}, "aggregates": aggregates}
    return completed(WindowSpec.parse(view), spec)


def twins_of(kind, **options):
    """Windows that have, without a history, what the window and its view answer from."""
    views = view_of(spec_of(kind)).document()["aggregates"]
    made = {"shown": (SLIDE, None), "kept": (HISTORY, None), "long": (LONG, views), "kept_long": (HISTORY, views)}
    twins = {}
    for name, (max_age, aggregates) in made.items():
        document = spec_of(kind, max_age, None, name).document()
        twins[name] = Window(WindowSpec.parse(document | ({"aggregates": aggregates} if aggregates else {})), **options)
    return twins


class Historic(Viewed):
    """A window with a history, and its twins, which are sent the same.

    Args:
        kind: one of `KINDS`.
        cold: where the window keeps its blocks.
    """

    def __init__(self, kind, cold=None):
        self.kind, self.clock = kind, ManualClock(30 * SECOND)
        options = {"pages": (2, 4), "block": 4, "clock": self.clock}
        self.window = Window(spec_of(kind), cold=cold, **options)
        self.window.derive(view_of(self.window.spec))
        self.twins = twins_of(kind, **options)

    def step(self, kind, *arguments):
        """Do a write to all of them. Each takes what it keeps: twins that forget earlier find more late."""
        if kind in ("bulk", "insert"):
            self._insert(kind, *arguments)
        elif kind != "aggregates":
            super().step(kind, *arguments)
        elif self.window.spec.granularity is None:
            for window in (self.window, self.twins["shown"], self.twins["kept"]):
                window.add_aggregates(MORE)

    def _insert(self, kind, *arguments):
        kept, done = self.twins["kept"], {}
        mine, theirs = write(self.window, kind, *arguments), write(kept, kind, *arguments)
        if isinstance(mine, SashError):
            told, expected = [(type(error), error.field, error.limit) for error in (mine, theirs)]
            assert told == expected, "what is late for the history is refused"
            return
        for name in ("shown", "long", "kept_long"):
            twin, sent = self.twins[name], [arguments] if kind == "insert" else arguments[0]
            if twin.spec.order.late == "reject":  # only what is late for all is refused
                sent = [row for row in sent if not self._is_late(twin, row)]
            if sent:
                done[name] = write(twin, kind, *(arguments if kind == "insert" else [sent]))
                assert not isinstance(done[name], SashError), done[name]
        for name in ("inserted", "late", "evicted", "duplicates"):
            assert getattr(mine, name) == getattr(theirs, name), name
        if self.window.spec.order.equal_times == "keep" and self.window.spec.order.late == "drop":
            assert mine.history == done["shown"].late - mine.late, "late for the slide, and not for it"

    @staticmethod
    def _is_late(window, row):
        number = window.keys.find(row[0] if window.spec.keyed else "")
        return number is not None and row[1] <= window.keys.late_through_of[number]

    def same(self):
        """All answers, of the window and of its view, are those of the twins."""
        view = self.window.find("long")
        assert view is not None
        for shown, kept, window in (("shown", "kept", self.window), ("long", "kept_long", view)):
            same_answers(window, self.twins[shown], self.twins[kept])
        kept = self.twins["kept"]
        if not self.window.slide_policy.wall:  # a question evicts on wall time, and not everywhere
            assert self.window.info().counts == kept.info().counts
            assert self.window.info().entries == kept.info().entries


def same_answers(window, shown, kept, partials=True):
    """A window answers as one that keeps its slide; and about the past as one that keeps its history.

    Without `partials`, those are not compared: sketches show how they came about.
    """
    for question in questions_about(shown.spec):
        if getattr(question, "partials", False) and not partials:
            continue
        past = getattr(question, "as_of", None) is not None
        assert of_reader(window.reader_of(question), window, question) == ask(kept if past else shown, question)
        assert of_reader(window.past, window, question) == ask(kept, question), question
    times = np.arange(5, 75, 3)
    names = [("x|y", "q|y", "nobody|y")[i % 3] for i in range(len(times))] if kept.spec.keyed else None
    many = AnswersAt(times, None if names is None else Coded.of(names), [4, 30])
    found, expected = (finished(reader.steps(many)) for reader in (window.reader_of(many), kept.reader))
    assert str(found) == str(expected), "of many instants"


def of_reader(reader, window, question):
    """What a reader of a window answers."""
    return ask(SimpleNamespace(reader=reader, spec=window.spec), question)
