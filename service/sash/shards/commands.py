"""The commands to windows whose keys are spread over shards: split by key, and written side by side.

A write of a producer goes to every shard, also to those that get no row of it: so each shard sees all its numbers, and
notices a gap. A part that was applied before is answered so, and the others are applied. So a write that failed on some
shards is sent again, whole.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from sash.context import only_shard
from sash.durability.records.commands import Admit, BulkInsert, Command, Commit, StageBatch, signed
from sash.durability.records.splitting import none_of
from sash.shards.hosted import Shard
from sash.shards.merging import merged_admissions, merged_writes
from sash.shards.parts import together, worst
from sash.shards.shard_calls import Call, ShardCalls
from sash_engine.errors import FailedPrecondition, InvalidArgument, SashError, Unavailable, Unsupported
from sash_engine.monoids.base import NUMPY_TYPES
from sash_engine.windows.answers import Staged, WriteResult
from sash_engine.windows.batches.batch import Batch, Coded, Origin
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.placement import shards_of

R = TypeVar("R")

_Merge = Callable[[Mapping[int, WriteResult]], WriteResult]

_RETRY_S = 1.0
_STAGE = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{1,1024})")
"""The token of a part, and which shards have rows of it, as bits."""


class Commands:
    """Writes to the shards of a deployment.

    Args:
        calls: on its shards.
    """

    def __init__(self, calls: ShardCalls) -> None:
        self._calls = calls
        self._producers: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By window and producer, what writes hold that must not overtake each other."""

    async def write(self, name: str, command: Command[R], origin: Origin | None = None) -> R:
        """Do what a command says on the shards that it concerns; raises as `_written`."""
        calls, only = self._calls, only_shard()
        if only is not None and isinstance(command, StageBatch | Commit):
            return await calls.on(only, _writing(name, command, None))  # type: ignore[no-any-return]
        if isinstance(command, StageBatch):
            return await self._stage(name, command)  # type: ignore[return-value]
        if isinstance(command, Commit):
            return await self._commit(name, command)  # type: ignore[return-value]
        return await self._write(name, command, origin)  # type: ignore[return-value]

    async def _write(self, name: str, command: Command[Any], origin: Origin | None) -> WriteResult:
        calls, merge = self._calls, merged_writes
        if isinstance(command, Admit):
            command.check_spread(await calls.spec(name), calls.shards.count)
        parts = await self._split(name, command)
        if isinstance(command, Admit):
            rows = {shard: part.rows for shard, part in parts.items() if isinstance(part, Admit)}
            merge = partial(merged_admissions, command.entries, rows)
        if isinstance(command, BulkInsert | Admit) and len(parts) > 1:
            _check_whole(await calls.spec(name), len(parts))
        if origin is not None and len(calls.all) > 1 and (spec := await calls.spec(name)).keyed:
            command.check(calls.checker(spec))
            nothing = _nothing_of(spec)
            others = command.none(nothing) if isinstance(command, Admit) else BulkInsert(nothing)
            return await self._numbered(spec, parts, others, signed(origin, command), merge)
        return await self._written({shard: _writing(name, part, origin) for shard, part in parts.items()}, merge)

    async def _split(self, name: str, command: Command[Any]) -> Mapping[int, Command[Any]]:
        """The parts of a command by shard; a bulk is checked. What no shard would take goes to one that refuses it."""
        calls, only = self._calls, only_shard()
        keys = getattr(getattr(command, "batch", None), "keys", None)
        if only is not None and keys is not None:
            if len(keys.dictionary):
                calls.check_here(shards_of(name, keys.dictionary, calls.shards.count).tolist())
            return {only: command}
        spec = await calls.spec(name)
        if not spec.keyed:
            return {calls.home_of(name): command}
        if keys is not None:
            command.check(calls.checker(spec))
        parts = command.split(name, spec, calls.shards.count)
        if only is not None and len(parts) == calls.shards.count:
            return {only: command}  # it is for every shard
        calls.check_here(parts)
        return parts

    # ---------------------------------------------------------------- batches

    async def _stage(self, name: str, command: StageBatch) -> Staged:
        calls, token = self._calls, secrets.token_hex(8)

        async def stage(parts: Mapping[int, Command[Any]]) -> dict[int, Staged]:
            found, errors = await together(
                {shard: calls.on(shard, _writing(name, part, None)) for shard, part in parts.items()}
            )
            others = [error for error in errors.values() if not _is_committed(error)]
            if others:
                raise worst(others)
            refused.update(errors)
            return found

        refused: dict[int, SashError] = {}
        command = replace(command, token=token)
        parts = await self._split(name, command)
        staged = await stage(parts if command.entries else {})
        if not staged:
            # The batch is committed where the rows belong. It is committed as a whole if every shard says so.
            nothing = replace(command, batch=none_of(command.batch))
            rest = calls.all if command.batch.keys is not None else [calls.home_of(name)]
            staged = await stage({shard: nothing for shard in rest if shard not in refused})
        if not staged:
            raise next(iter(refused.values()))
        bits = sum(1 << shard for shard in staged)
        durability = next(iter(staged.values())).durability
        return Staged(f"{token}.{bits:x}", sum(part.entries for part in staged.values()), durability)

    async def _commit(self, name: str, command: Commit) -> WriteResult:
        calls, stages = self._calls, command.tokens
        if len(set(stages)) < len(stages):
            raise InvalidArgument("a part is named twice", field="stages")
        shards = list(calls.all) if (await calls.spec(name)).keyed else [calls.home_of(name)]
        of: dict[int, list[str]] = {shard: [] for shard in shards}
        for stage in stages:
            found = _STAGE.fullmatch(stage)
            bits = 1 << shards[0] if found is None else int(found[2], 16)
            for shard in shards:
                if bits >> shard & 1:
                    of[shard].append(stage if found is None else found[1])
        return await self._written(
            {shard: _writing(name, replace(command, tokens=tokens), None) for shard, tokens in of.items()}
        )

    # ---------------------------------------------------------------- several shards

    async def _numbered(
        self, spec: WindowSpec, parts: Mapping[int, Command[Any]], others: Command[Any], origin: Origin, merge: _Merge
    ) -> WriteResult:
        """Make a producer's write, with an empty one of the same number to all `others`, which get no part of it.

        A write that is refused uses no number. So where a shard may reject its entries by their order, the others note
        the number after it, and the producer's writes wait for each other.
        """
        every = {shard: _writing(spec.name, parts.get(shard, others), origin) for shard in self._calls.all}
        if not _rejects(spec):
            return await self._written(every, merge)
        name = (spec.name, origin.producer)
        async with self._producers.setdefault(name, asyncio.Lock()):
            if len(parts) == 1:  # of several shards, none rejects its part: see `_check_whole`
                (shard,) = parts
                result: WriteResult = await self._calls.on(shard, every[shard])

                async def answered(_: Shard) -> WriteResult:
                    return result

                every[shard] = answered
            return await self._written(every, merge)

    async def _written(self, calls: Mapping[int, Call[WriteResult]], merge: _Merge = merged_writes) -> WriteResult:
        """Make a write whose parts go to several shards.

        Raises:
            Unavailable: some shards have applied their parts, others could not.
            SashError: what a shard raises.
        """
        if len(calls) == 1:
            ((shard, call),) = calls.items()
            return await self._calls.on(shard, call)
        found, errors = await together({shard: self._calls.on(shard, call) for shard, call in calls.items()})
        if not errors:
            return merge(found)
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


def _writing(name: str, command: Command[R], origin: Origin | None) -> Call[R]:
    return lambda shard: shard.write(name, command, origin)


def _check_whole(spec: WindowSpec, shards: int) -> None:
    """Refuse a bulk of which one shard might refuse its part for its order, while others apply theirs."""
    if rejects := _rejects(spec):
        raise Unsupported(
            f"window {spec.name!r} rejects entries by their order ({', '.join(rejects)}), and the bulk has keys of "
            f"{shards} shards, which apply their parts on their own: send the entries of each key by themselves",
            field="key",
        )


def _rejects(spec: WindowSpec) -> list[str]:
    """The policies by which a shard may reject entries for what it has; what is too far ahead is so for all of them."""
    policies = ("late", "out_of_order", "equal_times")
    return [policy for policy in policies if getattr(spec.order, policy) == "reject"]


def _nothing_of(spec: WindowSpec) -> Batch:
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
