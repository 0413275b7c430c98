"""Which process has which shard, and how calls find it; for the blocking client and for the one that awaits.

    plan ── Ask ──▶ routed ──▶ key ──▶ shard ──▶ map ──▶ Ask at the owner      the map: GetTopology, and again
                       │                                                       after an error
                       │                                                       of a view: its window's shard
                       └─ several keys, no map, or the owner is away ──▶ Ask at the process that the client was given

A call that goes to the wrong process is answered all the same: the process passes it on. Only a call that says which
shard it is for (`sash-shard`) is not.

Everything here is a plan (see `plans`), so no code waits: `Client` and `AsyncClient` perform the same calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from sash_client.answers import Topology
from sash_client.calls.plans import READS, Ask, Plan
from sash_client.data.bulks import Columns
from sash_client.data.wire import from_topology
from sash_client.errors import (
    DeadlineExceeded,
    PermissionDenied,
    SashClientError,
    Unavailable,
    Unsupported,
    unreachable,
)
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.placement import shard_of, shards_of

AGAIN_S = 0.2
"""So long a map is not asked for again."""
_AWAY_S = 10.0
"""So long calls that may go elsewhere avoid a process that cannot be reached."""
_MAP_S = 5.0
"""So long one process may take to answer with the map."""
_ONE_KEY = frozenset({"Insert", "Admit", "BulkEvict", "Query", "RangeQuery", "Series"})
_READS = frozenset({*READS, "GetTopology"})

R = TypeVar("R")


class Owners:
    """The map, as it was learnt last, and the way of each call.

    Threads may share it. Two that learn the map at the same time both ask; either answer will do.

    Args:
        service: the address that the client was given; also of processes that do not say where they are.
        timeout_s: seconds that a call may take, if it does not say.
        now_s: the clock, in seconds.
    """

    def __init__(self, service: str, timeout_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._service, self._timeout_s, self._now_s = service, timeout_s, now_s
        self._targets: Mapping[int, str] | None = None
        """By shard; None until the map was learnt."""
        self._is_stale = True
        self._is_learning = False
        self._is_refused = False
        self._asked_s = float("-inf")
        self._away_until_s: dict[str, float] = {}
        self._placed: dict[str, str] = {}
        """By window that was asked: the one by whose name its keys are placed."""
        self.shards = 0
        """How many there are; 0 until the map was learnt."""

    def learnt(self) -> Plan[int]:
        """Learn the map if it is not known or stale, and return the number of shards. Raises as `Client.topology`."""
        is_recent = self._now_s() - self._asked_s < AGAIN_S
        if self._is_stale and (self._targets is None or not (self._is_learning or is_recent)):
            self._is_learning = True
            try:
                found = yield from self._asked()
            finally:
                self._is_learning, self._asked_s = False, self._now_s()
            self._is_stale = False
            self._placed.clear()
            self.shards, self._targets = found.shards, targets_of(found, self._service)
        return self.shards

    def forget(self) -> None:
        """Learn the map again before the next call."""
        self._is_stale = True

    def routed(self, plan: Plan[R]) -> Plan[R]:
        """Return a plan whose calls go to the owners of their keys."""
        try:
            step = next(plan)
            while True:
                if not isinstance(step, Ask):
                    step = plan.send((yield step))
                    continue
                try:
                    answer = yield from self._answered(step)
                except SashClientError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            done: R = end.value
            return done

    def parts(self, spec: pb.WindowSpec, bulk: Columns) -> Plan[list[tuple[int | None, Columns]]]:
        """The parts of a bulk, one for each process that has keys of it: its rows, and a shard whose owner gets them.

        The rows of a key are all in one part, in their order.
        """
        if not (yield from self._shards_known()) or self.shards == 1 or not len(bulk.times):
            return [(None, bulk)]
        if bulk.keys is None:
            return [(shard_of(spec.name, None, self.shards), bulk)]
        shards = shards_of(spec.name, list(bulk.keys.dictionary), self.shards)
        # By process: the first shard of each stands for all that it has.
        targets, first = dict(self._targets or {}), dict[str | None, int]()
        representing = {shard: first.setdefault(targets.get(shard), shard) for shard in np.unique(shards).tolist()}
        of = np.array([representing[shard] for shard in shards.tolist()])[bulk.keys.codes]
        return [(shard, rows) for shard, rows in bulk.split(of)]

    # ---------------------------------------------------------------- one call

    def _answered(self, ask: Ask) -> Plan[Any]:
        """Make a call at the owner of its key; or else, if it is safe, at another process."""
        if ask.target is not None:
            return (yield ask)
        deadline_s = self._now_s() + (self._timeout_s if ask.timeout_s is None else ask.timeout_s)
        shard = ask.owner if ask.owner is not None else (yield from self._shard(ask))
        if shard is not None and ask.alone:
            return (yield from self._at_owner(shard, ask, deadline_s))
        first = None if shard is None else (yield from self._way(shard))
        error: SashClientError | None = None
        for way in dict.fromkeys([first, None, *self._others([first])]):
            if error is not None:
                passes_on = way is None and is_safe_elsewhere(ask.method, error)
                never_arrived = isinstance(error, Unavailable) and error.unreachable
                if not (passes_on or never_arrived) or self._now_s() >= deadline_s:
                    break
            try:
                return (yield replace(ask, target=way, timeout_s=max(deadline_s - self._now_s(), 0.001)))
            except SashClientError as failed:
                error = failed
                self._note(way, failed)
        assert error is not None
        raise error

    def _at_owner(self, shard: int, ask: Ask, deadline_s: float) -> Plan[Any]:
        """Make a call that is for one shard alone, and that nobody passes on."""
        yield from self.learnt()
        target = (self._targets or {}).get(shard)
        if target is None:
            self.forget()
            nobody = unreachable(f"nobody says that it has shard {shard}")
            nobody.retry_after_s = AGAIN_S
            raise nobody
        way = None if target == self._service else target
        try:
            return (yield replace(ask, owner=shard, target=way, timeout_s=max(deadline_s - self._now_s(), 0.001)))
        except SashClientError as error:
            self._note(target, error)
            raise

    def _way(self, shard: int) -> Plan[str | None]:
        """Where the owner of a shard is; None: where the client was told that the service is."""
        yield from self._shards_known()
        target = (self._targets or {}).get(shard)
        if target is None:
            self.forget()
        if target == self._service or self._now_s() < self._away_until_s.get(target or "", float("-inf")):
            return None
        return target

    def _others(self, tried: list[str | None]) -> list[str]:
        """Other processes, for calls that have not arrived anywhere."""
        known = dict.fromkeys((self._targets or {}).values())
        return [target for target in known if target not in tried and target != self._service]

    def _shard(self, ask: Ask) -> Plan[int | None]:
        """The shard that a call is for; None if it is for several, or nobody knows."""
        if ask.method not in _ONE_KEY or not ask.request.HasField("key"):
            return None
        shards = yield from self._shards_known()
        if not shards:
            return None
        window, key = ask.request.window, ask.request.key
        shard = shard_of(window, key, shards)
        if shards == 1 or ask.method not in _READS:
            return shard
        placed = yield from self._placed_as(window, shard)
        return shard if placed == window else shard_of(placed, key, shards)

    def _placed_as(self, window: str, shard: int) -> Plan[str]:
        """The window by whose name the keys of a window are placed: a view has them where its window has.

        Args:
            shard: whose owner is asked, where nobody was asked before; any process knows.
        """
        placed = self._placed.get(window)
        if placed is None:
            placed, way = window, (yield from self._way(shard))
            try:
                ask = Ask("GetWindow", pb.GetWindowRequest(name=window), min(_MAP_S, self._timeout_s), target=way)
                placed = (yield ask).spec.of or window
            except (Unavailable, DeadlineExceeded):
                return window  # the next call asks again
            except SashClientError:  # such as a caller of few rights
                pass
            self._placed[window] = placed
        return placed

    def _shards_known(self) -> Plan[int]:
        """Learn the map as `learnt` does; return 0 where nobody tells it: calls then go where they always can."""
        if self._is_refused:
            return 0
        try:
            return (yield from self.learnt())
        except (PermissionDenied, Unsupported):  # a caller of few rights, or an old service
            self._is_refused = True
            return 0
        except SashClientError:
            return self.shards

    def _note(self, target: str | None, error: SashClientError) -> None:
        """Take note of what an error says of the map."""
        if isinstance(error, Unavailable) or error.code in ("CANCELLED", "DEADLINE_EXCEEDED"):
            self.forget()
        if target is not None and isinstance(error, Unavailable) and error.unreachable:
            self._away_until_s[target] = self._now_s() + _AWAY_S

    def _asked(self) -> Plan[Topology]:
        """Ask the process that the client was given; where that one does not answer, ask the others."""
        others = self._others([])
        ask = Ask("GetTopology", pb.GetTopologyRequest(), min(_MAP_S, self._timeout_s) if others else None)
        try:
            return from_topology((yield ask))
        except (Unavailable, DeadlineExceeded):
            for target in others:
                with suppress(SashClientError):
                    return from_topology((yield replace(ask, target=target)))
            raise


def targets_of(topology: Topology, service: str) -> dict[int, str]:
    """The address of the process that has a shard, by shard; of those that answer."""
    found: dict[int, str] = {}
    host = service.rpartition(":")[0]
    for process in topology.processes:
        target = process.address or (f"{host}:{process.grpc_port}" if process.grpc_port else service)
        if process.up:
            found |= dict.fromkeys(process.shards, target)
    return found


def is_safe_elsewhere(method: str, error: SashClientError) -> bool:
    """Whether a call may be made at another process after an error: it changes nothing, or has changed nothing."""
    return isinstance(error, Unavailable) and (method in _READS or error.unchanged)
