"""Writers that never give up, and know what the window must hold: everything they were ever answered for, once.

    Writer "a" ──▶ producer writes, one after the other ──▶ key "a" of one window ─┐
               ──▶ batches: staged in parts, committed  ──▶ key "a" of another    ─┼─ beside each a slow model
               ──▶ writes that decide, by a limit       ──▶ key "a" of a third    ─┘

Each writer has keys of its own, so what it must find there depends on nobody else. What it does next follows from its
name and how far it came, not from when the service died.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sash_client import Client, Limit, SashClientError, Unavailable
from sash_engine.windows import questions
from tests.support.admit_model import decide
from tests.support.model import Slow
from tests.support.waiting import wait_until

PATIENCE_S = 120.0
MAX_AGE, MAX_COUNT = 4_000, 6_000
LARGE = (16_000, 40_000)
"""How many entries a large bulk has: more than 256 KiB, so it is applied in slices."""
_AGGREGATES = {"n": {"function": "count"}, "all": {"function": "collect"}, "max": {"function": "max"}}
SPECS: dict[str, dict[str, Any]] = {
    name: {
        "name": name,
        "keyed": True,
        "time_unit": "none",
        "fields": {"value": "int64"},
        "aggregates": _AGGREGATES,
        "slide": slide,
    }
    for name, slide in (
        ("written", {"max_age": MAX_AGE, "max_count": MAX_COUNT}),
        ("batched", {"max_age": MAX_AGE}),
        ("limited", {"max_age": MAX_AGE}),
    )
}
LIMIT = Limit("n", 100, 8)


class Writer(threading.Thread):
    """Writes to its keys until told to stop, whatever happens to the service.

    Args:
        name: of the key, and of the producer.
        target: where the service is now; it may be another port after a restart.
        sizes: how many entries a bulk has, at least and at most.
    """

    def __init__(self, name: str, target: Callable[[], str], sizes: tuple[int, int] = (1, 2_500)) -> None:
        super().__init__(name=f"writer {name}", daemon=True)
        self.key = name
        self._target = target
        self._sizes = sizes
        self._random = random.Random(name)
        self._models = {
            "written": Slow(MAX_AGE, MAX_COUNT),
            "batched": Slow(MAX_AGE, None),
            "limited": Slow(MAX_AGE, None),
        }
        self._limited = 0
        self._now = self._value = self._sequence = self._batch = 0
        self._client: Client | None = None
        self._stop_asked = threading.Event()
        self._may_go = threading.Event()
        self._may_go.set()
        self._resting = threading.Event()
        self.failed: BaseException | None = None
        self.retries = 0
        self.refused = 0
        """Entries that a limit refused."""
        self.applied_before = 0
        """Retries that found their write applied."""

    # ---------------------------------------------------------------- life

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                if not self._may_go.is_set():
                    self._resting.set()
                    self._may_go.wait()
                    self._resting.clear()
                    continue
                self._step()
        except BaseException as error:
            self.failed = error
        finally:
            self._resting.set()

    def rest(self) -> None:
        """Finish what is under way, retries included, and wait; raises what went wrong."""
        self._may_go.clear()
        assert self._resting.wait(PATIENCE_S), f"{self.name} is stuck"
        if self.failed is not None:
            raise self.failed

    def go_on(self) -> None:
        """Write again."""
        self._may_go.set()

    def stop(self) -> None:
        """End the thread."""
        self._stop_asked.set()
        self._may_go.set()
        self.join(PATIENCE_S)
        self._close()

    # ---------------------------------------------------------------- writing

    def _step(self) -> None:
        kind = self._random.choices(("insert", "bulk", "large", "evict", "batch", "admit"), (6, 10, 2, 2, 8, 20))[0]
        if kind == "admit":
            self._admit()
            return
        if kind == "batch":
            self._write_batch()
            return
        self._sequence += 1
        numbers = {"producer": self.key, "sequence": self._sequence, "key": self.key}
        model = self._models["written"]
        if kind == "insert":
            [(at, value)] = self._entries(1)
            self._until_answered(lambda window: window.insert(at, fields={"value": value}, **numbers), "written")
            model.write([(at, value)])
        elif kind in ("bulk", "large"):
            rows = self._entries(self._random.randint(*(LARGE if kind == "large" else self._sizes)))
            times, values = [time for time, _ in rows], [value for _, value in rows]
            numbers["keys"] = numbers.pop("key")
            self._until_answered(lambda window: window.bulk_insert(times, {"value": values}, **numbers), "written")
            model.write(rows)
        else:
            through = self._now - self._random.randint(0, MAX_AGE)
            self._until_answered(lambda window: window.bulk_evict(through, **numbers), "written")
            model.evict(through)

    def _admit(self) -> None:
        """A write that decides, some of it late; whenever it is answered, the answer is that of the model."""
        rows = [(max(time - self._random.choice((0, 0, 0, 60)), 0), value) for time, value in self._entries(1)]
        rows *= self._random.choice((1, 1, 12))
        self._limited += 1
        numbers = {"producer": self.key, "sequence": self._limited}
        times, values = [time for time, _ in rows], [value for _, value in rows]
        model = self._models["limited"]
        there = [(self.key, time, value) for time, value in model.entries if time > max(times) - 300]
        limit = questions.Limit(LIMIT.aggregate, LIMIT.lookback, "<=", LIMIT.value)
        wanted = [each.admitted for each in decide(there, [(self.key, *row) for row in rows], [limit], (), 0)]
        done = self._until_answered(
            lambda window: window.bulk_admit(times, {"value": values}, keys=self.key, limits=[LIMIT], **numbers),
            "limited",
        )
        assert [*done.admitted] == wanted, f"key {self.key}, {rows}: {done}, not {wanted}"
        self.refused += wanted.count(False)
        if any(wanted):
            model.write([row for row, admitted in zip(rows, wanted, strict=True) if admitted])

    def _write_batch(self) -> None:
        """One micro-batch in parts; now and then a part twice, and a commit that is sent again."""
        stages, rows = [], []
        for _ in range(self._random.randint(0, 3)):
            large = self._random.random() < 0.05
            part = self._entries(self._random.randint(*(LARGE if large else self._sizes)))
            rows += part
            stages += self._stage(part)
            if self._random.random() < 0.3:
                self._stage(part)  # a task that ran twice: nobody names it
        for _ in range(self._random.choice((1, 1, 2))):
            self._until_answered(lambda window: window.commit(self.key, self._batch, stages), "batched")
        self._batch += 1
        if rows:
            self._models["batched"].write(rows)

    def _stage(self, part: list[tuple[int, int]]) -> list[Any]:
        times, values = [time for time, _ in part], [value for _, value in part]
        named = {"keys": self.key, "query": self.key, "batch": self._batch}
        return list(self._until_answered(lambda window: window.stage(times, {"value": values}, **named), "batched"))

    def _entries(self, count: int) -> list[tuple[int, int]]:
        rows = []
        for _ in range(count):
            self._now += self._random.choice((0, 1, 1, 2))
            self._value += 1
            late = self._random.randint(0, MAX_AGE + 50) if self._random.random() < 0.02 else 0
            rows.append((max(self._now - late, 0), self._value))
        return rows

    def _until_answered(self, call: Callable[[Any], Any], window: str) -> Any:
        answers = []

        def answered() -> bool:
            try:
                answers.append(call(self._connected().window(window)))
            except SashClientError as error:
                # Of a service that was killed, a call may end in any way that means "unavailable".
                if not isinstance(error, Unavailable) and error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    raise
                self.retries += 1
                self._close()
                return False
            return True

        wait_until(answered, PATIENCE_S)
        (result,) = answers
        self.applied_before += bool(getattr(result, "already_applied", False))
        return result

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self._target(), timeout_s=5)
        return self._client

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---------------------------------------------------------------- checking

    def check(self) -> None:
        """Compare every kind of answer with the model; to be called while it rests."""
        with Client(self._target(), timeout_s=30) as client:
            for name, model in self._models.items():
                window = client.window(name)
                [all_of_it] = window.query(key=self.key)
                same(self.key, all_of_it, [value for _, value in model.entries], f"all of {name}")
                if not model.entries:
                    continue
                first, last = model.entries[0][0], model.entries[-1][0]
                for _ in range(3):
                    start, end = sorted(self._random.randint(first - 5, last + 5) for _ in range(2))
                    answer = window.range_query(start, end, key=self.key)
                    same(self.key, answer, model.between(start, end), f"{start} to {end} of {name}")
                # Now is the newest entry's time that ever was: after an eviction of all, a late one may be alone.
                lookback = self._random.randint(1, MAX_AGE)
                [answer] = window.query(key=self.key, lookbacks=[lookback])
                within = model.between(model.now - lookback + 1, model.now)
                same(self.key, answer, within, f"the last {lookback} of {name}")


def same(key: str, answer: Any, values: Sequence[object], what: str) -> None:
    """Compare an answer about a key with the values that must be there."""
    found = answer.aggregates["all"]
    assert found == values, (
        f"key {key}, {what}: {len(found)} entries, not {len(values)}; "
        f"missing {sorted(set(values) - set(found))[:10]}, "
        f"too many {sorted(v for v in set(found) if found.count(v) > 1 or v not in set(values))[:10]}"
    )
    assert answer.entries == answer.aggregates["n"] == len(values), what
    assert answer.aggregates["max"] == max(values, default=None), what
