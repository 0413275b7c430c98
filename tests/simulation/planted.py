"""Faults that are planted into a copy of the code, one at a time: a simulator that finds none of them finds nothing.

python -m tests.simulation.planted             each in a process of its own; says by which seed it is found, after how
                                               many tries; SASH_SECONDS of processor time at most for each
python -m tests.simulation.planted own         the same for faults of the simulation itself: which cases find each
python -m tests.simulation --planted NAME      runs seeds on the code with that fault
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["CLUSTER", "PLANTED", "plant"]

Faults = dict[str, dict[str, tuple[str, str]]]

_PLANTED: Faults = {
    "tests.simulation.disk": {
        "the disk does not sync": ("if disk.synchronous:", "if False:"),
    },
    "sash.durability.journal.journal": {
        "a write is answered one commit too early": ("if number <= self._durable:", "if number <= self._durable + 1:"),
        "a commit that failed counts as done": (
            "            self._fail(error)\n            return False\n        except (FailedPrecondition, DataLoss)",
            "            self._fail(error)\n            return True\n        except (FailedPrecondition, DataLoss)",
        ),
        "the end names the first record of the last group": ("record=logged[-1])", "record=logged[0])"),
        "what is written in the background overtakes": (
            "        self._writes.append(write)\n",
            "        self._writes.appendleft(write)\n",
        ),
        "what is written in the background goes before records": (
            "while not self._records and self._writes and",
            "while self._writes and",
        ),
    },
    "sash.durability.journal.group_commit": {
        "the end of the journal is not written": (
            "if self.records or self.start is not None:",
            "if self.start is not None:",
        ),
    },
    "sash.durability.journal.groups": {
        "the journal is cut one record too far": ("number > through[window]]", "number > through[window] + 1]"),
    },
    "sash.durability.images.checkpoint": {
        "an image says that it covers one record more": (
            "self._through = self._session.journal.last",
            "self._through = self._session.journal.last + 1",
        ),
        "an image says that it covers one record less": (
            "self._through = self._session.journal.last",
            "self._through = self._session.journal.last - 1",
        ),
        "the image before is deleted before the pointer is written": (
            "        self._go_on(self._writer)\n\n",
            "        self._session.discard(stored.number, draft.garbage)\n        self._go_on(self._writer)\n\n",
        ),
        "an image has no ledger": ("stored.window.ledger.copy()", "type(stored.window.ledger)()"),
        "the pointer is written before the blocks": (
            "        self._go_on(self._writer)\n\n",
            (
                "        at_once = self._stored.manifest.pointer(self._writer.stored_image(self._through), "
                "self._session.id)\n"
                "        self._session.journal.background(BackgroundWrite(lambda: at_once, size=100, "
                "done=lambda: None))\n"
                "        self._go_on(self._writer)\n\n"
            ),
        ),
    },
    "sash_engine.windows.batches.ledger": {
        "a lower epoch is not refused": ("if epoch < known.epoch:", "if False:"),
        "the last number is taken again": ("if sequence == last + 1:", "if sequence in (last, last + 1):"),
        "what was decided is not kept": (
            "kept = earlier if decided is None else (*earlier, (origin.sequence, decided))",
            "kept = earlier",
        ),
    },
    "sash.durability.storage": {
        "a batch is committed again": (
            "        if committed(window.ledger):\n            return await hosted.settled(WriteResult(already",
            "        if False:\n            return await hosted.settled(WriteResult(already",
        ),
        "a retry is answered before the write is durable": (
            "            return await hosted.settled(again, hosted.last_record)\n",
            "            return again\n",
        ),
        "a retry is decided again": (
            "if origin is not None and applied(hosted.window.ledger):\n            again",
            (
                "if origin is not None and applied(hosted.window.ledger) and not isinstance(operation, "
                "records.Admit):\n"
                "            again"
            ),
        ),
    },
    "sash.durability.images.stored_window": {
        "parts are deleted before a checkpoint covers the commit": (
            "self.manifest.add_garbage([values.staged_key(self.number, part",
            "self._session.discard(self.number, [values.staged_key(self.number, part",
        ),
    },
    "sash.durability.write_path": {
        "entries of a part are not in the tier when it is answered": (
            "        return self.apply(operation, None, puts, size_of(batch))[1]",
            "        return self.apply(operation, None, puts, size_of(batch))[1] - 1",
        ),
        "a write waits for the record before its own": (
            "await self._path.durable(record)",
            "await self._path.durable(record - 1)",
        ),
        "a write of durability `interval` is never stored": (
            'number = self._append(write, stored.durability == "sync", puts, size)',
            'number = 0 if stored.durability != "sync" else self._append(write, True, puts, size)',
        ),
        "a write that may be applied counts as unchanged": (
            "        retry_after_s=error.retry_after_s or _RETRY_S,\n",
            "        retry_after_s=error.retry_after_s or _RETRY_S,\n        unchanged=True,\n",
        ),
    },
    "sash.durability.images.blocks": {
        "a block that is alone is not written": (
            "if blocks and not self._closed:",
            "if len(blocks) > 1 and not self._closed:",
        ),
    },
    "sash.durability.images.manifest": {
        "numbers of blocks that are garbage are used again": ("        self.next_block += len(blocks)\n", ""),
    },
    "sash.durability.records.commands": {
        "records have no number of their producer": (
            "        if origin is None:\n            return [operation.kind",
            "        if True:\n            return [operation.kind",
        ),
        "a record does not say what was decided": (
            "return [batch_to(self.batch), self.decided]",
            "return [batch_to(self.batch), None]",
        ),
        "a record has the rows that were refused": (
            "        self.batch, self.decided = rows, np",
            "        self.decided = np",
        ),
    },
    "sash.durability.tier_storage": {
        "a window is deleted before that is durable": (
            "await self._path.durable(self.listing.delete(stored, remains))",
            "self.listing.delete(stored, remains)",
        ),
        "a window is created before that is durable": (
            "await self._path.durable(self.listing.write(manifest.pointer(manifest.image, self.session.id)))",
            "self.listing.write(manifest.pointer(manifest.image, self.session.id))",
        ),
        "a window that comes while its deletion waits is forgotten": (
            (
                "        if name not in self._windows and name not in self._catalogue:\n"
                "            await self._path.durable(self._path.last_record)  # the deletion may be on its "
                "way still\n"
                "        stored = self._windows.get(name)  # created meanwhile, it goes as every other one\n"
            ),
            (
                "        stored = self._windows.get(name)\n"
                "        if name not in self._windows and name not in self._catalogue:\n"
                "            await self._path.durable(self._path.last_record)  # the deletion may be on its "
                "way still\n"
            ),
        ),
        "who creates a window again does not wait": (
            "            await self._path.durable(self._path.last_record)  # its first commit",
            "            pass  # its first commit",
        ),
    },
    "sash.durability.recovery.listing": {
        "a deleted window is not listed as such": (
            "        self._discarded[stored.number] = remains\n        number",
            "        number",
        ),
    },
    "sash.durability.recovery.recovery": {
        "the next group overwrites the last one": ("following = last_group + 1", "following = last_group"),
        "numbers of records that were cut off are used again": (
            "last = max(replay.last, start.record, end.listing)",
            "last = max(stored.through for stored in windows) if windows else 0",
        ),
        "a window that is recovered applies a record again": (
            "if record <= stored.through:",
            "if record < stored.through:",
        ),
    },
    "sash.durability.recovery.recoverer": {
        "a window is recovered without the records that are pending": (
            "await self._session.journal.passed()",
            "await asyncio.sleep(0)",
        ),
    },
    "sash_client.calls.plans": {
        "the client sends any write again": (
            "again = may_pass(error) if idempotent else",
            "again = may_pass(error) if True else",
        ),
    },
    "tests.simulation.callers": {
        "a client sends a write again with a new number": (
            "                    done = await call(**numbers)\n",
            (
                "                    numbers_.sequence += 1\n"
                "                    done = await call(**(numbers | {'sequence': numbers_.sequence}))\n"
            ),
        ),
    },
    "sash_engine.windows.writing.admitting": {
        "a limit may be passed by one": (
            "COMPARISONS[self.op](answer, self.value)",
            "COMPARISONS[self.op](answer, self.value + (self.op == '<='))",
        ),
        "the rows of one write do not count for each other": ("trial.take(row.time, row.values)", "id(row)"),
        "a lookback of a limit is shorter": (
            "return max(end - self.span + 1, TICK_MIN)",
            "return max(end - self.span // 2 + 1, TICK_MIN)",
        ),
        "what a limit refuses goes in": (
            "admission.admitted[i] = inserted[i] = held",
            "admission.admitted[i], inserted[i] = held, True",
        ),
        "a limit over a group is about another group": ("if rollup.parts == set(by):", "if rollup.parts != set(by):"),
    },
    "sash.durability.formats": {
        "a value in the place of another one is taken": ("if key is not None and written != key:", "if False:"),
    },
}
"""By module and name: what the module says, and what it says with the fault."""

_CLUSTER: Faults = {
    "sash.tiers.redis_scripts": {
        "a commit does not compare the fence": ("if id ~= ARGV[1] then return 'TAKEN' end\n", ""),
        "a commit does not compare its number": ("if number >= tonumber(ARGV[3]) then return 'LATE' end\n", ""),
        "a Redis that went back is not noticed": ("if number < tonumber(ARGV[2]) then return 'LOST' end\n", ""),
        "who takes a prefix leaves the fence": ("if id ~= ARGV[1] then redis", "if not id then redis"),
        "the commits of each owner are numbered from 0 on": (
            "digits = digits or '0'\n",
            "if id ~= ARGV[1] then digits = '0' end\n",
        ),
    },
    "sash.tiers.redis": {
        "a read does not compare the fence": ("        if owner != self._id:\n", "        if False:\n"),
        "an attempt to commit has the number of the last one": (
            "            self._number += 1  #",
            "            self._number = self._answered + 1  #",
        ),
        "a commit is answered before replicas have it": (
            "            if not self._is_kept(kept):",
            "            if False:",
        ),
        "a lease that outlasts every process' own is waited for": (
            "left_ms > _JUMPED * self._lease_s * 1000",
            "left_ms > 1e12",
        ),
    },
    "sash.shards.heartbeat": {
        "a lease counts from its answer": (
            "                self._until_s = max(self._until_s, sent_s + self._lease_s)  #",
            "                self._until_s = max(self._until_s, time.monotonic() + self._lease_s)  #",
        ),
        "a process answers when its lease is over": (
            "        return time.monotonic() < self._until_s\n",
            "        return True\n",
        ),
        "a lease that was over is renewed whoever has the shards": (
            "            if self.valid():\n",
            "            if True:\n",
        ),
        "the lease is renewed too late": ("min(self._lease_s / 3, _EVERY_S)", "2.0 * self._lease_s"),
    },
    "sash.shards.lease_table": {
        "shards are taken from a process that has come back": (
            "return self._swapped(shards, new, gone)",
            "return self._swapped(shards, new, {})",
        ),
        "the table gives a shard to who asks": (
            "  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') == ARGV[i + 1] then\n    if",
            "  if true then\n    if",
        ),
        "a heartbeat is as old as the clock of Redis says": ("now_s + max(left_s, self._lease_s)", "now_s + left_s"),
        "who is seen for the first time is as old as the clock of Redis says": (
            "now_s + max(left_s, self._lease_s)",
            "now_s + max(left_s, self._lease_s if known else 0)",
        ),
        "processes are gone while Redis is slow": ("if asked_s < until_s}", "if False}"),
        "a heartbeat may leave its row as it was": (
            "math.max(now + tonumber(ARGV[2]), last + 1)",
            "now + tonumber(ARGV[2])",
        ),
    },
    "sash.shards.leased_host": {
        "a process whose lease was over keeps shards that others took": (
            "                if lapsed or shard in self.shards.joining:",
            (
                "                if lapsed:\n"
                "                    pass\n"
                "                elif shard in self.shards.joining:"
            ),
        ),
        "a shard that is being taken is given away": (
            "if shard not in self._busy and shard not in self._taking]",
            "if shard not in self._busy]",
        ),
        "a shard that is its own by the table alone is not served": (
            "        for shard in unserved:\n",
            "        for shard in []:\n",
        ),
        "a shard is served whoever has taken it meanwhile": (
            (
                "                if not await asyncio.to_thread(self._lease_table.swap, {shard: self._me.id}, "
                "self._me.id):\n"
            ),
            "                if False:\n",
        ),
        "a shard that was given away, perhaps, is given away later": (
            "            self._me = replace(self._me, doubts=self._me.doubts + 1)\n",
            "",
        ),
        "who has a shard again keeps what it had in memory": (
            "                await hosted.storage.confirm()\n",
            "                pass\n",
        ),
        "a shard that waits for windows is another's": ("if lapsed or shard in self.shards.joining:", "if lapsed:"),
    },
    "sash.shards.hosted": {
        "home is not asked whether it is home": (
            "        await self.guarded(shard, self.hosted[shard].storage.confirm())\n",
            "",
        ),
        "a call to a shard that has moved is refused for good": (
            "            if hosted.storage.taken:\n",
            "            if True:\n                raise\n            if hosted.storage.taken:\n",
        ),
        "a refusal is of what was in memory": (
            "if self.hosted.get(shard) is hosted and not hosted.storage.taken:",
            "if False:",
        ),
    },
    "sash.shards.serving": {
        "a shard is served before it has the windows": (
            "        while shard != HOME and shard in self.shards.joining:\n",
            "        while False:\n",
        ),
    },
    "sash.shards.peers": {
        "a call whose connection broke has changed nothing": ("unchanged=not perhaps", "unchanged=True"),
    },
    "sash.shards.commands": {
        "a write that some shards have applied has changed nothing": (
            "            retry_after_s=max([other.retry_after_s or 0.0 for other in errors.values()]) or _RETRY_S,\n",
            (
                "            retry_after_s=max([other.retry_after_s or 0.0 for other in errors.values()]) or "
                "_RETRY_S,\n"
                "            unchanged=True,\n"
            ),
        ),
        "a number goes only to the shards of the write": (
            "parts.get(shard, others), origin) for shard in self._calls.all}",
            "parts[shard], origin) for shard in parts}",
        ),
        "a batch is committed only where it has rows": (
            "replace(command, tokens=tokens), None) for shard, tokens in of.items()}",
            "replace(command, tokens=tokens), None) for shard, tokens in of.items() if tokens}",
        ),
        "a part of a write that fails is not told": (
            "        if not errors:\n            return merge",
            "        if found:\n            return merge",
        ),
    },
    "sash.shards.lifecycle": {
        "a closed window is opened that home may not have": (
            "        elif await self._make_alike(home, shard, name) and token is not None:\n",
            "        elif token is not None:\n",
        ),
        "a shard that has not its windows yet is exported": (
            "self._shards.plane(shard).export(name)",
            "self._shards.administered(shard).export(name)",
        ),
        "a window that was left over is not deleted": (
            "            found, more = await self._on_others(lambda shard: shard.delete(name, token), closed)\n",
            "            found, more = {}, {}\n",
        ),
        "a window is made open before home has it": ("shard.create(spec, token))", "shard.create(spec))"),
        "a deletion that goes on says that nothing was changed": (
            '            raise _unended(told, "deletion", {HOME: error}) from None\n',
            "            raise\n",
        ),
    },
    "sash.shards.deployment": {
        "a window that is deleted meanwhile is not found by who made it": (
            "        except (Unavailable, NotFound) as error:\n",
            "        except Unavailable as error:\n",
        ),
        "a process without shards knows no window": (
            "        if not self.shards.hosted:\n            self._elsewhere",
            "        if False:\n            self._elsewhere",
        ),
        "a change that cannot be described is called none": (
            "                retry_after_s=error.retry_after_s,\n            ) from None\n",
            (
                "                retry_after_s=error.retry_after_s,\n"
                "                unchanged=True,\n"
                "            ) from None\n"
            ),
        ),
    },
    "sash.shard": {
        "a change that another shard could not follow stays on home": ("        self._changed.add(name)\n", ""),
    },
}
"""As above, for a cluster."""

_OWN: Faults = {
    "tests.simulation.history": {
        "an answer is compared with nothing": ("result in (got, ANY)", "True"),
        "no case left is no contradiction": ("        if not groups:\n", "        if False:\n"),
        "what is refused may be there": (
            "if not any(number == op.number for number, _ in case.done)}, op.what)",
            "}, op.what)",
        ),
        "what is acknowledged may be lost with memory": (
            "found.add(self._durable(left, number) if durable else",
            "found.add(left if durable else",
        ),
        "what came before an acknowledged write may be lost": ("[*before, number])", "[number])"),
        "nothing is lost with memory": ("            if not chain:\n", "            if True:\n"),
        "whatever is in memory may be lost, in any order": (
            "            durable = self._replayed(durable, link)\n            gone",
            "            gone",
        ),
        "all calls pass each other": ("one.adds(entries) & two.takes(entries)", "False"),
        "a case is left out though it allows more": (
            "        if len(places) > 1 or min(places) < last:\n",
            "        if False:\n",
        ),
        "a call whose process died may take effect later": (
            'self._forgot({op.number for op in self.pending.values() if not op.answered}, "a process died")',
            "self.forgot()",
        ),
        "a call that is fenced may take effect later": ('self._over({op.number}, "a producer is fenced")', "pass"),
        "a call that is served may take effect later": (
            "            op.closed = True\n            self._keep(cases",
            "            self._keep(cases",
        ),
        "what is answered early need not be there": (
            "if any(number == op.number and _fits(result, got) for",
            "if True or any(number == op.number and _fits(result, got) for",
        ),
        "what is stored may be lost": ('self._over({op.number}, f"{op.what} is stored")', "pass"),
        "what is answered early is durable": ("if durable and op.soon:", "if False:"),
        "a store goes back to nothing that is known": (
            "self.cases, self.pending = mark[0], dict(mark[1])",
            "self.pending = dict(mark[1])",
        ),
        "an answer from before the store went back counts": ("        self._shaken.update(now)\n", ""),
        "an answer of several keys need not agree with itself": (
            "if (count, most, total) != (len(values), max(values, default=None), sum(values)):",
            "if False:",
        ),
        "the keys of one answer are not told apart": ("if self._keys[value] == key)", "if key)"),
        "a deletion that is lost with memory counts for who found no window": (
            "and chain and result not in op.idle)",
            "and chain)",
        ),
        "what is stored of a key may be lost": ('        self._step(key, "stored", part)\n', "        pass\n"),
        "an answer of before counts": ("            if unsure(key):\n", "            if False:\n"),
        "what is lost with memory never comes again": (
            "self.of_key = {key: History(again=True)",
            "self.of_key = {key: History()",
        ),
        "an early answer of several keys fits no call": (
            "return result in (got, ANY) or (result == THERE and got != GONE)",
            "return result in (got, ANY)",
        ),
    },
    "tests.simulation.world": {
        "what the checker finds is not told": (
            "        except AssertionError as error:\n            self.fail(error)",
            "        except AssertionError:\n            pass",
        ),
        "what the checker cannot follow is not told": ("            self.unchecked = True\n", "            pass\n"),
        "a failure of the run is not kept": ("            self.failure = error\n", ""),
        "a recovery may take for ever": ("        end_s = self.loop.time() + 600\n", "        end_s = 1e9\n"),
    },
    "tests.simulation.disk": {
        "nothing is lost with the power": ("kept = draw.randint(0, len(self.unsynced))", "kept = len(self.unsynced)"),
        "all that is not synced is lost with the power": ("kept = draw.randint(0, len(self.unsynced))", "kept = 0"),
        "a commit that is refused has taken effect": (
            '        if fault == "refused":\n',
            '        if fault == "refused":\n            _apply(disk.values, values, gone)\n',
        ),
        "a disk misdirects nothing": ("        if self.misdirects and kept and puts:\n", "        if False:\n"),
        "what is misdirected is in its own place, too": ("        self.synced.pop(key)\n", ""),
        "what is misdirected has lost what was there": (
            "            self.synced[key] = before[key]\n",
            "            pass\n",
        ),
        "a misdirected value overwrites nothing": (
            "            self.synced[other] = puts[key]\n",
            "            pass\n",
        ),
        "a disk misdirects again": (
            "        self.misdirects = False\n        self.misdirected =",
            "        self.misdirected =",
        ),
        "whoever wants writes to the disk": (
            "        if self._disk.owner is not self:\n            raise",
            "        if False:\n            raise",
        ),
        "two processes have the disk": (
            "        if self._disk.owner is not None:\n            raise",
            "        if False:\n            raise",
        ),
        "no commit of a kind fails": ("fault = disk.faults_of.get((kind, disk.commits_of[kind]), fault)", "pass"),
        "no read fails": ("if disk.reads in disk.failing_reads:", "if False:"),
        "what is deleted stays": ("        values.pop(key, None)\n", "        pass\n"),
    },
    "tests.simulation.callers": {
        "no write writes nothing": ("        idle=frozenset((GONE, str([False] * len(entries)))),\n", ""),
        "an answer is logged that is not durable": (
            "if done and world.owner_of(KNOWN, key) == owner:",
            "if world.owner_of(KNOWN, key) == owner:",
        ),
        "a logged answer may be another one": ("if _seen(answer.aggregates) != logged.seen:", "if False:"),
        "a logged answer among others may be another one": (
            "if (count, most) != (logged.seen[0], logged.seen[2]):",
            "if False:",
        ),
        "what a window holds at the end is not compared": (
            "                world.checked(history.end, op, seen)\n",
            "",
        ),
        "a fold has any order": (
            "value in sorted((time, keys.index(key), value)",
            "value in ((time, keys.index(key), value)",
        ),
    },
    "tests.simulation.loop": {
        "the dead go on": ("        elif not process.alive:\n", "        elif False:\n"),
        "who stands still goes on": ("        elif process.stopped:\n", "        elif False:\n"),
        "what a process held is forgotten": ("        self._todo.extend(process.held)\n", ""),
        "a loop that is blocked runs": (
            "        elif process.blocked_until_s > self._now_s and",
            "        elif False and",
        ),
        "the order is not drawn": ("if self._shuffled and len(todo) > 1 else 0", "if False else 0"),
        "who waits for ever is not found": ("                raise Stuck(", "                raise KeyError("),
        "what is cancelled runs": ("            if not handle._cancelled:\n", "            if handle._callback:\n"),
        "a call in a thread is heard of at once": (
            "self.call_later(self.call_s() / 2, answer, future.set_result, result)",
            "self.call_later(0.0, answer, future.set_result, result)",
        ),
        "a machine that sleeps sees time pass": ("process.slept_s + process.sleeps_s, 0.0", "process.slept_s, 0.0"),
    },
    "tests.simulation.redis": {
        "a row never goes": (
            "if found is None or (found[1] is not None and found[1] <= self.now_ms()):",
            "if found is None:",
        ),
        "who writes under a prefix of another one is not found": (
            "        elif not self.went_back and answer in",
            "        elif False and answer in",
        ),
        "nobody is told who takes a prefix": ("                self.taken(keys[0])\n", "                pass\n"),
        "nobody is told which shards move": ('if kind == b"s" and before.get(field, b"") != argv[0]:', "if False:"),
        "a replica has all writes": ("            self.rows = dict(self.replica)\n", "            pass\n"),
        "a replica that lags is waited for": ("return [1, self.replicas if there else 0]", "return [1, self.replicas]"),
        "a Redis that loses writes loses none": (
            "            self.rows, mark = self.draw.choice(some)\n",
            "            mark = some[-1][1]\n",
        ),
        "a Redis that loses writes loses all it can": (
            "            self.rows, mark = self.draw.choice(some)\n",
            "            self.rows, mark = some[0]\n",
        ),
        "a server that restarts keeps its connections": ("        self.era += 1\n", ""),
        "a server that restarts is there at once": (
            "self.up_s = self.loop.time() + self.draw.choice([0.1, 2.0, 12.0])",
            "self.up_s = self.loop.time()",
        ),
        "nothing is late on the way to Redis": ("            delay_s += server.loop.late(wait_s)\n", ""),
        "what is lost on the way to Redis arrives": (
            '        if fault == "request lost" or since_s',
            "        if since_s",
        ),
        "who is cut off reaches Redis": ("return self.cut.get(machine, 0.0) <= now_s", "return True"),
        "an answer is not lost": ('        if fault == "answer lost":\n            return\n', ""),
        "a machine that fades hears at once": ("return late_s if until_s > self.loop.time() else 0.0", "return 0.0"),
        "a slot moves at once": ("gone.update(keys[: -(-len(keys) // (left + 1))])", "gone.update(keys)"),
        "a slot that moves is where it was": ("elif slot in self._moving and", "elif False and"),
        "a command of keys that are apart is executed": ("elif len(there) < len(keys):", "elif False:"),
        "a node has what has gone": (
            "if gone is not None and key not in gone and self._row(key) is not None]",
            "if gone is not None and self._row(key) is not None]",
        ),
        "a node makes keys of a slot that moves": (
            "and key not in gone and self._row(key) is not None]",
            "and key not in gone]",
        ),
        "a node has a slot that has gone": (
            "[key for key in keys if gone is not None and key not in gone and",
            "[key for key in keys if key not in (gone or ()) and",
        ),
        "any node has any slot": ("        if owner != self._at:\n", "        if False:\n"),
        "the new node does not hear of its slot": ("            self._views[new][slot] = new\n", ""),
        "all nodes hear of a slot at once": (
            "late_s = [self.draw.choice([0.0, 0.05, 1.0]) for _ in range(self.nodes)]",
            "late_s = [0.0] * self.nodes",
        ),
        "a slot moves once": ("self._moving.pop, slot, context=", "id, slot, context="),
    },
    "tests.simulation.threads": {
        "a thread waits as long as it wants": (
            "        if seconds is not None:\n            least_s",
            "        if False:\n            least_s",
        ),
        "a thread waits for a moment for ever": ("least_s = _LEAST_S if seconds > 0.0 else 0.0", "least_s = 0.0"),
        "a lock is had by all": ("        self._count -= 1\n        return True", "        return True"),
    },
    "tests.simulation.peers": {
        "a message overtakes": (
            "max(self._last_s[onward], network.loop.time() + delay_s)",
            "network.loop.time() + delay_s",
        ),
        "no message is late": (
            "                delay_s += self.draw.choice([0.5, 3.0, 10.0])\n",
            "                pass\n",
        ),
        "no stream is cut": ('            elif fault == "cut":\n', "            elif False:\n"),
        "what is cut has never arrived": ("if self.draw.random() < 0.5:", "if False:"),
        "a partition keeps nothing back": ("left_s = self.cut.get(pair, 0.0) - now_s", "left_s = -1.0"),
        "who dies keeps its streams": (
            "            if process in (stream.client, stream.server):\n",
            "            if False:\n",
        ),
        "messages that write have no faults of their own": (
            "fault = self.faults_of.get((place, self.messages_of[place]), fault)",
            "pass",
        ),
    },
    "tests.simulation.cluster": {
        "a prefix that is taken loses nothing of memory": (
            "self.checked(history.forgot, lambda key,",
            "(lambda *args: None)(history.forgot, lambda key,",
        ),
        "a prefix that is taken loses the memory of all shards": (
            "self.checked(history.forgot, lambda key, name=name: shard_of(name, key, self.part.shards) == shard)",
            "self.checked(history.forgot, lambda key, name=name: True)",
        ),
        "what was stored before a prefix was taken may be lost": (
            "        self._shadow(shard)\n        self._has_stored()\n",
            "        self._shadow(shard)\n",
        ),
        "what was answered early is stored by an owner that is gone": (
            "left = [each for each in self._gathered if each[0] is not journal]",
            "left = self._gathered",
        ),
        "what was answered early is never durable": (
            "                self._gathered.append(",
            "                (lambda each: None)(",
        ),
        "an early answer of before a prefix was taken counts": (
            "if self._taken_s[shard] >= caller.began_s}",
            "if False}",
        ),
        "what a process that died has answered early may be stored": (
            "member.hosts(shards[key]) if member.process.alive else None",
            "member.hosts(shards[key])",
        ),
        "who took a prefix last is who asks": (
            '        if self._takers.get(shard, (b"",))[0] != self.redis.owners[fence]:',
            "        if True:",
        ),
        "whoever took a prefix first has it for ever": (
            '        if self._takers.get(shard, (b"",))[0] != self.redis.owners[fence]:',
            "        if shard not in self._takers:",
        ),
        "who has lost a prefix is not looked at": (
            "        self._shadow(shard)\n        self._has_stored()\n",
            "        self._has_stored()\n",
        ),
        "two processes may answer for a shard": ("if before.valid and after.valid:", "if False:"),
        "two processes have a shard though the lease of one is over": (
            "if before.valid and after.valid:",
            "if before.valid or after.valid:",
        ),
        "who has given a shard away is looked at for ever": (
            "            elif before.hosts(shard) is not hosted:\n",
            "            elif False:\n",
        ),
        "machines that sleep are said to be wrong": (
            "if self.stale or self.redis.went_back or taker is None:",
            "if taker is None:",
        ),
        "a shard may be taken whose lease runs": ("if member.hosts(shard) is not None and member.valid:", "if False:"),
        "a shard that a process gives away itself is called taken": (
            "or process is self.redis.asking or not process.alive:",
            "or not process.alive:",
        ),
        "a shard whose lease is over is called taken": (
            "if member.hosts(shard) is not None and member.valid:",
            "if member.hosts(shard) is not None:",
        ),
        "what Redis has lost is there": (
            "            self.checked(history.went_back, marks[name])\n",
            "            pass\n",
        ),
        "who answered from before a loss goes on": (
            "                self.loop.call_later(after_s, member.die, context=self.context)\n",
            "                pass\n",
        ),
        "an answer is logged though memory was lost behind it": (
            "return self._takes[shard_of(name, key, self.part.shards)]",
            "return 0",
        ),
        "an answer is logged for the memory of any shard": (
            "return self._takes[shard_of(name, key, self.part.shards)]",
            "return sum(self._takes.values())",
        ),
    },
    "tests.simulation.ending": {
        "an answer is no fold, and nobody says so": ("    if seen != wanted:\n", "    if False:\n"),
    },
    "tests.simulation.single": {
        "the store need not be empty": ("        if left:\n", "        if False:\n"),
    },
    "tests.simulation.run": {
        "a run that passes is made smaller": ("            if found.failure is not None:\n", "            if True:\n"),
    },
    "tests.simulation.met": {
        "what was never met is not told": (
            "        if not any(fault == said and state in where for said, where in pairs)\n",
            "        if not pairs\n",
        ),
    },
}
"""As above, in the simulation itself: what a case of its own must find, see `own`."""


def _by_name(faults: Faults) -> dict[str, tuple[str, str, str]]:
    return {name: (module, *fault) for module, named in faults.items() for name, fault in named.items()}


PLANTED, CLUSTER, OWN = map(_by_name, (_PLANTED, _CLUSTER, _OWN))

THEMES: dict[str, tuple[str, ...]] = {
    "a commit does not compare the fence": ("machines that sleep", "zombies"),
    "a commit does not compare its number": ("late commits",),
    "a Redis that went back is not noticed": ("a Redis that syncs each second",),
    "who takes a prefix leaves the fence": (),
    "the commits of each owner are numbered from 0 on": ("late commits",),
    "a read does not compare the fence": ("machines that sleep", "zombies"),
    "an attempt to commit has the number of the last one": ("late commits",),
    "a commit is answered before replicas have it": ("replicas",),
    "a lease that outlasts every process' own is waited for": ("clocks",),
    "a lease counts from its answer": ("answers that come late",),
    "a process answers when its lease is over": ("zombies",),
    "a lease that was over is renewed whoever has the shards": ("zombies",),
    "shards are taken from a process that has come back": ("zombies",),
    "a process whose lease was over keeps shards that others took": ("zombies",),
    "a shard that is being taken is given away": ("moves",),
    "a heartbeat is as old as the clock of Redis says": ("clocks",),
    "who is seen for the first time is as old as the clock of Redis says": ("clocks",),
    "home is not asked whether it is home": ("machines that sleep",),
    "a call to a shard that has moved is refused for good": ("zombies",),
    "who has a shard again keeps what it had in memory": ("machines that sleep",),
    "a shard that waits for windows is another's": ("machines that sleep",),
    "a refusal is of what was in memory": ("machines that sleep",),
    "a call whose connection broke has changed nothing": ("writes between processes",),
    "a write that some shards have applied has changed nothing": ("writes between processes",),
    "a part of a write that fails is not told": ("writes between processes",),
    "a closed window is opened that home may not have": ("windows that come and go",),
    "a batch is committed only where it has rows": ("batches",),
    "a window that is deleted meanwhile is not found by who made it": ("windows that come and go",),
    "a window that was left over is not deleted": ("windows that come and go",),
    "a shard is served before it has the windows": ("windows that come and go",),
    "a shard is served whoever has taken it meanwhile": ("zombies",),
    "a window is made open before home has it": ("windows that come and go",),
    "a change that cannot be described is called none": ("windows that come and go",),
    "a deletion that goes on says that nothing was changed": ("windows that come and go",),
    "the end names the first record of the last group": ("a crowd",),
    "what is written in the background goes before records": ("a crowd",),
    "a retry is answered before the write is durable": ("writes that wait",),
    "entries of a part are not in the tier when it is answered": ("batches",),
    "a window is deleted before that is durable": ("windows that come and go",),
    "a window that comes while its deletion waits is forgotten": ("windows that come and go",),
    "a deleted window is not listed as such": ("windows that come and go",),
    "a window is recovered without the records that are pending": ("reads that fail",),
    "a window that is recovered applies a record again": ("reads that fail", "writes that wait"),
}
"""Of which themes the seeds are that find a fault soon; any where none is said."""


class _Planted(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = module, old, new

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self._module:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None, f"there is no module {name}"
        assert found.origin is not None
        importlib.machinery.SourceFileLoader.__init__(self, name, found.origin)
        found.loader = self
        return found

    def get_code(self, fullname: str) -> Any:
        text = self.get_source(fullname) or ""
        assert text.count(self._old) == 1, f"{fullname} says {self._old!r} {text.count(self._old)} times"
        return compile(text.replace(self._old, self._new), self.path, "exec")


def plant(name: str) -> None:
    """Have a module imported with a fault; call this before anything imports it."""
    module, old, new = (PLANTED | CLUSTER | OWN)[name]
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, _Planted(module, old, new))


_COMMON = ("numpy", "grpc", "redis", "prometheus_client", "pydantic", "pytest", "lupa", "greenlet", "uvloop")
"""What each run needs and no fault is planted into: it is imported once."""


def main(arguments: Sequence[str]) -> int:
    """Plant each fault, and say within how many seeds it is found; as many at a time as there are cores."""
    own = arguments[:1] == ["own"]
    seeds = int(arguments[0]) if arguments and not own else 500
    for module in _COMMON:
        importlib.import_module(module)
    names = arguments[1:] or ([*OWN] if own else [*PLANTED, *CLUSTER])
    context, missed = multiprocessing.get_context("fork"), 0
    with context.Pool(int(os.environ.get("SASH_WORKERS") or os.cpu_count() or 1), maxtasksperchild=1) as pool:
        for name, found in pool.imap_unordered(_found, [(name, seeds) for name in names], chunksize=1):
            missed += found.startswith("not found")
            print(f"| {name} | {found} |", flush=True)
    print(f"{missed} of {len(names)} are not found within {seeds} runs each")
    return int(missed > 0)


def _found(what: tuple[str, int]) -> tuple[str, str]:
    """Plant a fault; return a seed that finds it, and how it shows. Seeds of other themes are left out, uncounted."""
    name, seeds = what
    plant(name)
    if name in OWN:
        return name, _noticed()
    from tests.simulation.run import run
    from tests.simulation.scenario import cluster_of_seed, of_seed

    themes, tried, seed = THEMES.get(name, ()), 0, 0
    until_s = time.process_time() + float(os.environ.get("SASH_SECONDS") or "inf")
    while tried < seeds and time.process_time() < until_s:
        seed += 1
        scenario = (cluster_of_seed if name in CLUSTER else of_seed)(seed)
        if themes and scenario.theme not in themes:
            continue
        tried += 1
        failure = run(scenario).failure
        if failure is not None:
            return name, f"{seed} | {tried} | {failure[:160]}"
    return name, f"not found by {seed} | {tried}"


def _noticed() -> str:
    """Which case finds what is planted, of those that are about the simulation itself."""
    from io import StringIO

    import pytest

    said = StringIO()
    # Seeds would find most of these, too, and take minutes.
    files = [f"tests/simulation/test_{name}.py" for name in ("parts", "simulation", "cluster")]
    some = "not seed and not sync_is_found and not nothing_asks and not nothing_starts"
    with contextlib.redirect_stdout(said), contextlib.suppress(BaseExceptionGroup):  # of tasks that were left
        pytest.main(["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", some, *files])
    failed = [
        line.partition("::")[2].partition(" ")[0] for line in said.getvalue().splitlines() if line.startswith("FAILED")
    ]
    return failed[0] if failed else "not found"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    raise SystemExit(main(sys.argv[1:]))
