"""A log in memory as a connector, windows to write it to, and what they must have in the end."""

import json
from collections import Counter
from threading import Event

from sash_ingest.connector import Records
from sash_ingest.decode import Json
from sash_ingest.meters import Meters
from sash_ingest.runner import Ingest
from sash_ingest.target import Target
from sash_wire.mapping import sources

SPEC = {
    "name": "log",
    "time_unit": "ms",
    "keys": ["carrier"],
    "fields": {"id": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum", "field": "id"}},
}


def record(number, carrier="AA", **more):
    return json.dumps({"at": number, "carrier": carrier, "id": number} | more).encode()


class Log:
    """Streams of (number, bytes), given some records at a time; it ends when all are given. It is a `Connector`."""

    def __init__(self, streams, some=100, ends=True):
        self.streams, self.some, self.ends = streams, some, ends
        self.at, self.done, self.sought, self.held = {}, {}, [], set()

    def open(self, streams):
        for name in self.streams:
            self.at[name] = self.done[name] = streams.begin(name)

    def poll(self, timeout_s):
        found = []
        for name, log in self.streams.items():
            if name in self.held:
                continue
            some = [each for each in log if each[0] > self.at[name]][: self.some]
            if some:
                self.at[name] = some[-1][0]
                found.append(Records(name, [n for n, _ in some], [value for _, value in some]))
        if not found:
            Event().wait(0.001)
        done = all(self.done[name] >= log[-1][0] for name, log in self.streams.items())
        return found if found or not self.ends or not done else None

    def applied(self, stream, number):
        self.done[stream] = number

    def seek(self, stream, number):
        self.sought.append((stream, number))
        self.at[stream] = number

    def hold(self, stream, held):
        (self.held.add if held else self.held.discard)(stream)

    def lag(self):
        return {}

    def origin(self, stream, number):
        return {"stream": stream, "number": number}

    def close(self):
        pass


class Letters(list):
    """Dead letters in memory."""

    def put(self, letters):
        self.extend(letters)

    def close(self):
        pass


def target(window, **given):
    return Target(window, sources(window.spec, given.pop("time", "at"), **given), "windows[0]", frozenset())


def ingest(targets, letters=None, **options):
    said = []
    made = Ingest("p", targets, options.pop("form", None) or Json(), letters, Meters("p"), said.append, **options)
    made.said = said
    return made


def ids_of(window):
    """How often each id is in a window."""
    return Counter(int(each) for bulk in window.entries() for each in bulk.columns["id"])
