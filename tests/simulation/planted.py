"""Faults that are planted into a copy of the code, one at a time: a simulator that finds none of them finds nothing.

python -m tests.simulation.planted             each in a process of its own; says within how many seeds it is found
python -m tests.simulation --planted NAME      runs seeds on the code with that fault
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["PLANTED", "plant"]

PLANTED: dict[str, tuple[str, str, str]] = {
    "the disk does not sync": ("tests.simulation.disk", "if disk.synchronous:", "if False:"),
    "a write is answered one commit too early": (
        "sash.durability.journal",
        "if number <= self._durable:",
        "if number <= self._durable + 1:",
    ),
    "a commit that failed counts as done": (
        "sash.durability.journal",
        "            self._fail(error)\n            return False\n        except (FailedPrecondition, DataLoss)",
        "            self._fail(error)\n            return True\n        except (FailedPrecondition, DataLoss)",
    ),
    "the end of the journal is not written": (
        "sash.durability.group_commit",
        "if self.records or self.start is not None:",
        "if self.start is not None:",
    ),
    "the end names the first record of the last group": (
        "sash.durability.journal",
        "record=logged[-1])",
        "record=logged[0])",
    ),
    "the journal is cut one record too far": (
        "sash.durability.groups",
        "number > through[window]]",
        "number > through[window] + 1]",
    ),
    "an image says that it covers one record more": (
        "sash.durability.checkpoint",
        "self._through = self._session.journal.last",
        "self._through = self._session.journal.last + 1",
    ),
    "an image says that it covers one record less": (
        "sash.durability.checkpoint",
        "self._through = self._session.journal.last",
        "self._through = self._session.journal.last - 1",
    ),
    "what is written in the background overtakes": (
        "sash.durability.journal",
        "        self._writes.append(write)\n",
        "        self._writes.appendleft(write)\n",
    ),
    "what is written in the background goes before records": (
        "sash.durability.journal",
        "while not self._records and self._writes and",
        "while self._writes and",
    ),
    "a lower epoch is not refused": (
        "sash_engine.windows.ledger",
        "if epoch < known.epoch:",
        "if False:",
    ),
    "a batch is committed again": (
        "sash.durability.storage",
        "        if committed(window.ledger):\n            return await hosted.settled(WriteResult(already",
        "        if False:\n            return await hosted.settled(WriteResult(already",
    ),
    "parts are deleted before a checkpoint covers the commit": (
        "sash.durability.stored_window",
        "self.manifest.add_garbage([values.staged_key(self.number, part",
        "self._session.discard(self.number, [values.staged_key(self.number, part",
    ),
    "entries of a part are not in the tier when it is answered": (
        "sash.durability.write_path",
        "        return self._path.apply(self._stored, operation, None, puts, size_of(batch))[1]",
        "        return self._path.apply(self._stored, operation, None, puts, size_of(batch))[1] - 1",
    ),
    "the image before is deleted before the pointer is written": (
        "sash.durability.checkpoint",
        "        self._go_on(self._writer)\n\n",
        "        self._session.discard(stored.number, draft.garbage)\n        self._go_on(self._writer)\n\n",
    ),
    "an image has no ledger": (
        "sash.durability.checkpoint",
        "stored.window.ledger.copy()",
        "type(stored.window.ledger)()",
    ),
    "a block that is alone is not written": (
        "sash.durability.blocks",
        "if blocks and not self._closed:",
        "if len(blocks) > 1 and not self._closed:",
    ),
    "numbers of blocks that are garbage are used again": (
        "sash.durability.manifest",
        "        self.next_block += len(blocks)\n",
        "",
    ),
    "records have no number of their producer": (
        "sash.durability.records",
        "        if origin is None:\n            return [operation.kind",
        "        if True:\n            return [operation.kind",
    ),
    "the last number is taken again": (
        "sash_engine.windows.ledger",
        "if sequence == last + 1:",
        "if sequence in (last, last + 1):",
    ),
    "a retry is answered before the write is durable": (
        "sash.durability.storage",
        "return await hosted.settled(WriteResult(already_applied=True), hosted.last_record)\n        if isinstance",
        "return WriteResult(already_applied=True)\n        if isinstance",
    ),
    "a write waits for the record before its own": (
        "sash.durability.write_path",
        "await self._path.durable(record)",
        "await self._path.durable(record - 1)",
    ),
    "a write that may be applied counts as unchanged": (
        "sash.durability.write_path",
        "        retry_after_s=error.retry_after_s or _RETRY_S,\n",
        "        retry_after_s=error.retry_after_s or _RETRY_S,\n        unchanged=True,\n",
    ),
    "a window is deleted before that is durable": (
        "sash.durability.tier_storage",
        "await self._path.durable(self.listing.delete(stored, remains))",
        "self.listing.delete(stored, remains)",
    ),
    "a window is created before that is durable": (
        "sash.durability.tier_storage",
        "await self._path.durable(self.listing.write(manifest.pointer(manifest.image, self.session.id)))",
        "self.listing.write(manifest.pointer(manifest.image, self.session.id))",
    ),
    "who creates a window again does not wait": (
        "sash.durability.tier_storage",
        "            await self._path.durable(self._path.last_record)  # its first commit",
        "            pass  # its first commit",
    ),
    "a deleted window is not listed as such": (
        "sash.durability.listing",
        "        self._discarded[stored.number] = remains\n        number",
        "        number",
    ),
    "the next group overwrites the last one": (
        "sash.durability.recovery",
        "following = last_group + 1",
        "following = last_group",
    ),
    "numbers of records that were cut off are used again": (
        "sash.durability.recovery",
        "last = max(replay.last, start.record, end.listing)",
        "last = max(stored.through for stored in windows) if windows else 0",
    ),
    "a window is recovered without the records that are pending": (
        "sash.durability.recoverer",
        "await self._session.journal.passed()",
        "await asyncio.sleep(0)",
    ),
    "a window that is recovered applies a record again": (
        "sash.durability.recovery",
        "if record <= stored.through:",
        "if record < stored.through:",
    ),
    "the client sends any write again": (
        "sash_client.plans",
        "again = may_pass(error) if idempotent else",
        "again = may_pass(error) if True else",
    ),
}
"""By name: the module, what it says, and what it says with the fault."""


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
    module, old, new = PLANTED[name]
    assert module not in sys.modules, f"{module} is imported already"
    sys.meta_path.insert(0, _Planted(module, old, new))


def main(arguments: Sequence[str]) -> int:
    """Plant each fault, and say within how many seeds it is found."""
    seeds = arguments[0] if arguments else "500"
    missed, only = 0, arguments[1:]
    for name in [name for name in PLANTED if not only or name in only]:
        run = [sys.executable, "-W", "ignore", "-m", "tests.simulation", "--planted", name, "--seeds", seeds]
        said = subprocess.run(run, capture_output=True, text=True, check=False)
        last = (said.stdout.strip().splitlines() or said.stderr.strip().splitlines() or ["nothing"])[-1]
        missed += said.returncode == 0
        print(f"| {name} | {last} |", flush=True)
    print(f"{missed} are not found within {seeds} seeds each")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
