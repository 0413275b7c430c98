"""The writes to windows whose keys are spread over shards."""

from __future__ import annotations

import asyncio
import builtins
import re
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from sash.calls import ONLY_SHARD
from sash.durability.records import BulkInsert, Insert, signed
from sash.durability.removals import Retract, Update, eviction_of
from sash.plane import observed
from sash.shards.merging import merged_writes
from sash.shards.parts import ShardPlane, together, worst
from sash.shards.sharded_calls import Call, ShardedCalls, wrong_shard
from sash.shards.splitting import none_of, split
from sash_engine.errors import FailedPrecondition, InvalidArgument, SashError, Unavailable, Unsupported
from sash_engine.monoids.base import NUMPY_TYPES
from sash_engine.windows.answers import Staged, WriteResult
from sash_engine.windows.batch import AnyBatch, Batch, Coded, Origin
from sash_engine.windows.changes import checked
from sash_engine.windows.spec import WindowSpec, check_time
from sash_engine.windows.values import Fields
from sash_wire.placement import shards_of

__all__ = ["ShardedWrites"]

_RETRY_S = 1.0
_STAGE = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{1,1024})")
"""The token of a part, and which shards have rows of it, as bits."""


class ShardedWrites(ShardedCalls):
    """Writes: a bulk is split by key, and its parts are written side by side."""

    @observed
    async def insert(
        self,
        name: str,
        time: int,
        fields: Mapping[str, Any],
        key: str | None = None,
        answer: bool = False,
        lookbacks: Sequence[str | int] = (),
        origin: Origin | None = None,
    ) -> WriteResult:
        self._access.charge(1)
        shard = self._home_of(name, key)

        def insert(plane: ShardPlane) -> Awaitable[WriteResult]:
            return plane.insert(name, time, fields, key, answer, lookbacks, origin)

        spec = await self._spec(name)
        if origin is None or len(self._all) == 1 or not spec.keyed:
            return await self._on(shard, insert)
        check_time(time, "time")
        Fields(spec).checked(fields)
        self._checker(spec).reader.checked_key(key)
        self._checker(spec).check_answer(answer, lookbacks)
        origin = signed(origin, Insert(time, fields, key))
        return await self._numbered(spec, {shard: insert}, nothing_of(spec), origin)

    @observed
    async def bulk_insert(self, name: str, batch: AnyBatch, origin: Origin | None = None) -> WriteResult:
        self._access.charge(len(batch.times))
        parts = await self._split(name, batch)
        if len(parts) > 1:
            self._check_whole(await self._spec(name), len(parts))

        def inserting(part: AnyBatch) -> Call[WriteResult]:
            return lambda plane: plane.bulk_insert(name, part, origin)

        calls = {shard: inserting(part) for shard, part in parts.items()}
        if origin is not None and len(self._all) > 1 and batch.keys is not None:
            origin = signed(origin, BulkInsert(batch))
            return await self._numbered(await self._spec(name), calls, none_of(batch), origin)
        return await self._written(calls)

    @observed
    async def bulk_evict(
        self,
        name: str,
        time: int | None,
        key: str | None = None,
        origin: Origin | None = None,
        start: int | None = None,
        end: int | None = None,
        end_exclusive: bool = False,
    ) -> WriteResult:
        with self._access.audited("bulk_evict", name) if self._access.is_admin else nullcontext():
            spec = await self._spec(name)

            def evict(plane: ShardPlane) -> Awaitable[WriteResult]:
                return plane.bulk_evict(name, time, key, origin, start, end, end_exclusive)

            if not spec.keyed:
                return await self._on(self._home_of(name), evict)
            if key is None:
                return await self._written(dict.fromkeys(self._all, evict))
            if origin is None or len(self._all) == 1:
                return await self._on(self._home_of(name, key), evict)
            eviction = eviction_of(time, key, start, end, end_exclusive)
            eviction.apply(self._checker(spec), 0)
            origin = signed(origin, eviction)
            return await self._numbered(spec, {self._home_of(name, key): evict}, nothing_of(spec), origin)

    @observed
    async def retract(self, name: str, batch: AnyBatch, origin: Origin | None = None) -> WriteResult:
        self._access.charge(len(batch.times))
        return await self._changed(name, batch, "retract", origin)

    @observed
    async def update(self, name: str, batch: AnyBatch, origin: Origin | None = None) -> WriteResult:
        self._access.charge(len(batch.times))
        return await self._changed(name, batch, "update", origin)

    async def _changed(self, name: str, batch: AnyBatch, operation: str, origin: Origin | None) -> WriteResult:
        """Retract or update the entries that a batch names."""

        def changing(part: AnyBatch) -> Call[WriteResult]:
            return lambda plane: getattr(plane, operation)(name, part, origin)

        parts = await self._split(name, batch, operation)
        calls = {shard: changing(part) for shard, part in parts.items()}
        if origin is not None and len(self._all) > 1 and batch.keys is not None:
            spec = await self._spec(name)
            origin = signed(origin, Retract(batch) if operation == "retract" else Update(batch))
            return await self._numbered(spec, calls, nothing_of(spec), origin)
        return await self._written(calls)

    @observed
    async def punctuate(self, name: str, time: int) -> WriteResult:
        shards = self._all if (await self._spec(name)).keyed else [self._home_of(name)]

        def punctuate(plane: ShardPlane) -> Awaitable[WriteResult]:
            return plane.punctuate(name, time)

        return await self._written(dict.fromkeys(shards, punctuate))

    @observed
    async def stage(self, name: str, batch: AnyBatch, query: str, number: int, token: str | None = None) -> Staged:
        self._access.charge(len(batch.times))
        if ONLY_SHARD.get() is not None:
            return await self._on(self._all[0], lambda plane: plane.stage(name, batch, query, number, token))
        token = secrets.token_hex(8)

        def staging(part: AnyBatch) -> Call[Staged]:
            return lambda plane: plane.stage(name, part, query, number, token)

        async def stage(parts: Mapping[int, AnyBatch]) -> dict[int, Staged]:
            found, errors = await together({shard: self._on(shard, staging(part)) for shard, part in parts.items()})
            others = [error for error in errors.values() if not _is_committed(error)]
            if others:
                raise worst(others)
            refused.update(errors)
            return found

        refused: dict[int, SashError] = {}
        parts = await self._split(name, batch)
        staged = await stage(parts if len(batch.times) else {})
        if not staged:
            # The batch is committed where the rows belong. It is committed as a whole if every shard says so.
            nothing = none_of(batch)
            rest = self._all if batch.keys is not None else [self._home_of(name)]
            staged = await stage({shard: nothing for shard in rest if shard not in refused})
        if not staged:
            raise next(iter(refused.values()))
        bits = sum(1 << shard for shard in staged)
        durability = next(iter(staged.values())).durability
        return Staged(f"{token}.{bits:x}", sum(part.entries for part in staged.values()), durability)

    @observed
    async def commit(self, name: str, query: str, number: int, stages: Sequence[str]) -> WriteResult:
        if ONLY_SHARD.get() is not None:
            return await self._on(self._all[0], lambda plane: plane.commit(name, query, number, stages))
        if len(set(stages)) < len(stages):
            raise InvalidArgument("a part is named twice", field="stages")
        keyed = (await self._spec(name)).keyed
        shards = builtins.list(self._all) if keyed else [self._home_of(name)]
        of: dict[int, builtins.list[str]] = {shard: [] for shard in shards}
        for stage in stages:
            found = _STAGE.fullmatch(stage)
            bits = 1 << shards[0] if found is None else int(found[2], 16)
            for shard in shards:
                if bits >> shard & 1:
                    of[shard].append(stage if found is None else found[1])

        def committing(tokens: builtins.list[str]) -> Call[WriteResult]:
            return lambda plane: plane.commit(name, query, number, tokens)

        return await self._written({shard: committing(tokens) for shard, tokens in of.items()})

    async def _split(self, name: str, batch: AnyBatch, operation: str = "insert") -> dict[int, AnyBatch]:
        """The parts of a bulk by shard, all of it checked; one that no shard would take goes to one that refuses it.

        Args:
            operation: what is done with the bulk: `insert`, `retract` or `update`.
        """
        only = ONLY_SHARD.get()
        if only is not None and batch.keys is not None:
            if not (shards_of(name, batch.keys.dictionary, self._shards.count) == only).all():
                raise wrong_shard(only, self._shards.count)
            return {only: batch}
        spec = await self._spec(name)
        if not spec.keyed or batch.keys is None or not len(batch.times):
            return {self._home_of(name): batch}
        if operation == "insert":
            self._checker(spec).check(batch)
        else:
            checked(spec, batch, operation == "retract")
        return split(name, batch, self._shards.count)

    @staticmethod
    def _check_whole(spec: WindowSpec, shards: int) -> None:
        """Refuse a bulk of which one shard might refuse its part for its order, while others apply theirs."""
        if rejects := _rejects(spec):
            raise Unsupported(
                f"window {spec.name!r} rejects entries by their order ({', '.join(rejects)}), and the bulk has keys of "
                f"{shards} shards, which apply their parts on their own: send the entries of each key by themselves",
                field="key",
            )

    async def _numbered(
        self, spec: WindowSpec, calls: Mapping[int, Call[WriteResult]], nothing: AnyBatch, origin: Origin
    ) -> WriteResult:
        """Make a producer's write, with an empty one of the same number to all shards that get no part of it.

        A write that is refused uses no number. So where a shard may reject its entries by their order, the others note
        the number after it, and the producer's writes wait for each other.
        """

        def number_only(plane: ShardPlane) -> Awaitable[WriteResult]:
            return plane.bulk_insert(spec.name, nothing, origin)

        every = {shard: calls.get(shard, number_only) for shard in self._all}
        if not _rejects(spec):
            return await self._written(every)
        name = (spec.name, origin.producer)
        async with self._producers.setdefault(name, asyncio.Lock()):
            if len(calls) == 1:  # of several shards, none rejects its part: see `_check_whole`
                ((shard, call),) = calls.items()
                result = await self._on(shard, call)

                async def answered(_: ShardPlane) -> WriteResult:
                    return result

                every[shard] = answered
            return await self._written(every)

    async def _written(self, calls: Mapping[int, Call[WriteResult]]) -> WriteResult:
        """Make a write whose parts go to several shards.

        Raises:
            Unavailable: some shards have applied their parts, others could not.
            SashError: what a shard raises.
        """
        if len(calls) == 1:
            ((shard, call),) = calls.items()
            return await self._on(shard, call)
        found, errors = await together({shard: self._on(shard, call) for shard, call in calls.items()})
        if not errors:
            return merged_writes([found[shard] for shard in sorted(found)])
        error = worst(errors.values())
        if not found and all(other.unchanged or not isinstance(other, Unavailable) for other in errors.values()):
            raise error
        failed = ", ".join(map(str, sorted(errors)))
        told = f"the write is applied on {len(found)} of its {len(calls)} shards, and not, or perhaps, on {failed}"
        if isinstance(error, FailedPrecondition):
            raise type(error)(f"{error.message}; {told}", field=error.field, limit=error.limit)
        raise Unavailable(
            f"{told}: {error.message}. It may be applied; a producer sends it again",
            field=error.field,
            retry_after_s=max([other.retry_after_s or 0.0 for other in errors.values()]) or _RETRY_S,
        )


def _rejects(spec: WindowSpec) -> list[str]:
    """The policies by which a shard may reject entries."""
    policies = ("late", "out_of_order", "equal_times", "too_far_ahead")
    return [policy for policy in policies if getattr(spec.order, policy) == "reject"]


def nothing_of(spec: WindowSpec) -> Batch:
    """A bulk without rows."""
    none = np.empty(0, np.int64)
    columns = {
        name: Coded([], none) if kind == "string" else np.empty(0, NUMPY_TYPES[kind])
        for name, kind in spec.columns.items()
    }
    return Batch(none, columns, Coded([], none) if spec.keyed else None)


def _is_committed(error: SashError) -> bool:
    """Whether a shard refuses a part because it has committed the batch."""
    return isinstance(error, FailedPrecondition) and error.field == "batch"
