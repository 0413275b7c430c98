"""A tier that records the commits of a journal, and what tests of the journal read from it."""

import threading

from sash.durability import formats as values
from sash.durability.journal.roots import End, Group, Start


class Recorder:
    """A tier that keeps values in a dict. It fails as it is told to, and a gate holds commits back.

    Attributes:
        arrived: set while a commit waits at the gate.
        attempts: how many commits came through it.
    """

    name = "recorder"
    healthy = True

    def __init__(self):
        self.values = {}
        self.commits = []
        self.failures = []
        self.attempts = 0
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()

    def commit(self, puts, deletes=()):
        if not self.gate.is_set():
            self.arrived.set()
            assert self.gate.wait(120), "nobody opened the gate"
            self.arrived.clear()
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        self.commits.append((dict(puts), list(deletes)))
        self.values.update(puts)
        for key in deletes:
            self.values.pop(key, None)

    def check_room(self, size, reserve=0.0):
        pass

    def records(self):
        """The records by group, as recovery reads them."""
        groups, number = [], 1
        while (data := self.values.get(values.group_key(number))) is not None:
            groups.append([fields for _, _, fields in Group.of(number, data, bound=True).records])
            number += 1
        return groups


def start_of(tier):
    """Where the journal begins, as the tier has it."""
    key = values.journal_key()
    return Start.of(values.unseal("pointer", tier.values[key], key, bound=True))


def end_of(tier):
    """Where it ends."""
    key = values.last_group_key()
    return End.of(values.unseal("last", tier.values[key], key, bound=True))


def append(journal, text, **options):
    """Append a record of window 7; return its number."""
    return journal.append(7, lambda: text, 10, **options)
