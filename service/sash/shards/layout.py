"""How many shards a store has. The number is chosen when the store is made, and never changes.

directory   DATA/shards.json, DATA/shard-0, DATA/shard-1, …        one shard: DATA itself, as ever
Redis       {PREFIX}:shards, prefixes PREFIX/0, PREFIX/1, …        one shard: PREFIX itself, as ever
memory      as many as the settings say
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from sash.settings import Settings
from sash.shards.redis_layout import RedisLayout
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument
from sash_wire.placement import SHARDS_MAX

_FILE = "shards.json"


@dataclass(frozen=True)
class Share:
    """The part of a deployment that one process of a machine has: shard i belongs to process i modulo `processes`.

    Attributes:
        number: of the process, from 0.
        shards: how many the deployment has.
        folder: where the processes have their sockets; None where there is one process.
    """

    number: int
    processes: int
    shards: int
    folder: str | None = None

    @property
    def mine(self) -> range:
        """The shards of this process."""
        return range(self.number, self.shards, self.processes)

    def address(self, shard: int) -> str:
        """Where the process that has a shard is called by the others."""
        return self.address_of(shard % self.processes)

    def address_of(self, process: int) -> str:
        """Where a process is called by the others."""
        return f"unix:{self.folder}/{process}"


def store_of(settings: Settings, shards: int, shard: int) -> tuple[str, str]:
    """Return where a shard is stored, and its prefix in Redis."""
    if shards == 1 or settings.data == "memory":
        return settings.data, settings.redis_prefix
    if _is_redis(settings.data):
        return settings.data, f"{settings.redis_prefix}/{shard}"
    return str(Path(settings.data) / f"shard-{shard}"), settings.redis_prefix


def shards_of_store(settings: Settings, processes: int = 1) -> int:
    """Return how many shards a store has; a new one gets as many as the settings say, or as there are processes.

    Raises:
        InvalidArgument: it has another number of shards, or fewer than there are processes.
        DataLoss: its number of shards cannot be read.
    """
    wanted = settings.shards
    if settings.data == "memory":
        if processes > 1:
            raise InvalidArgument(
                "SASH_PROCESSES needs a store (SASH_DATA): a process that ends takes its part of the memory with it",
                field="processes",
            )
        return wanted or 1
    new = wanted or processes
    if _is_redis(settings.data):
        # Where one is enough, nothing is asked before the tier is acquired: see `check_single`.
        _check_processes(new, processes)
        found = RedisLayout(settings).shards(new) if new > 1 else 1
    else:
        there = _directory_shards(Path(settings.data))
        found = new if there is None else there
        _check_processes(found, processes)
        if there is None and found > 1:
            _describe(Path(settings.data), found)
    if wanted not in (None, found):
        raise InvalidArgument(
            f"SASH_SHARDS is {wanted}, and the store has {found} shards, which never changes: export its windows and "
            "restore them into a new store",
            field="shards",
            limit=str(found),
        )
    _check_processes(found, processes)
    return found


def places(settings: Settings) -> list[tuple[str, str]]:
    """Return where the shards of a store are, and their prefixes in Redis.

    Raises:
        FailedPrecondition: processes serve them by a lease table.
    """
    if _is_redis(settings.data):
        layout = RedisLayout(settings, patience_s=0)
        found = layout.known()
        if found is not None:
            layout.check_unleased()
    else:
        found = _directory_shards(Path(settings.data))
    shards = found or 1
    return [store_of(settings, shards, shard) for shard in range(shards)]


def new_places(settings: Settings) -> list[tuple[str, str]]:
    """Return where the shards of a new store will be, and their prefixes in Redis; as many as the settings say.

    Call `note_shards` when all of them are there: no service starts before.

    Raises:
        FailedPrecondition: something is stored there.
    """
    shards = settings.shards or 1
    if shards > 1:
        redis = _is_redis(settings.data)
        used = RedisLayout(settings, patience_s=0).is_used if redis else _is_used(Path(settings.data))
        if used:
            raise FailedPrecondition(f"{settings.data!r} is not empty: salvage to a new place", field="data")
    return [store_of(settings, shards, shard) for shard in range(shards)]


def completed_shards(data: str, new: str) -> int | None:
    """Return the number of shards of a new store in a directory that lacks none of them any more.

    Args:
        data: a shard of the store that it is made from.
        new: the same shard of the new store.

    Returns:
        the number; None if shards are missing, or the new store says it already, or these are not the same shard.
    """
    old, fresh = Path(data).absolute(), Path(new).absolute()
    if _is_redis(data) or _is_redis(new) or old.name != fresh.name or not (old.parent / _FILE).exists():
        return None
    shards = _directory_shards(old.parent) or 1
    folders = [fresh.parent / f"shard-{shard}" for shard in range(shards)]
    complete = fresh in folders and all((folder / "data.mdb").exists() for folder in folders)
    return shards if complete and not (fresh.parent / _FILE).exists() else None


def note_shards(settings: Settings) -> None:
    """Note that a new store has as many shards as the settings say."""
    if _is_redis(settings.data):
        RedisLayout(settings, patience_s=0).note(settings.shards or 1)
    else:
        _describe(Path(settings.data), settings.shards or 1)


def check_standby(settings: Settings) -> None:
    """Check that what is stored can change hands; raises InvalidArgument."""
    if settings.standby and not _is_redis(settings.data):
        raise InvalidArgument("SASH_STANDBY needs windows in Redis (SASH_DATA)", field="standby")
    if settings.standby and settings.processes > 1:
        raise InvalidArgument(
            "SASH_STANDBY is for services of one process (SASH_PROCESSES)", field="standby", limit="1"
        )


def is_leased(settings: Settings, shards: int) -> bool:
    """Whether processes, on any machine, share the shards by a lease table in Redis.

    Raises:
        InvalidArgument: the settings say which shards this process owns, and that cannot be.
    """
    leased = _is_redis(settings.data) and shards > 1 and not settings.standby
    owned = settings.shards_owned
    if owned is not None and not leased:
        raise InvalidArgument(
            "SASH_SHARDS_OWNED needs windows in Redis (SASH_DATA) with several shards (SASH_SHARDS), and no "
            "SASH_STANDBY: a process without shards is one",
            field="shards_owned",
        )
    if owned is not None and owned and max(owned) >= shards:
        raise InvalidArgument(
            f"SASH_SHARDS_OWNED names shard {max(owned)}, and the store has {shards}, from 0",
            field="shards_owned",
            limit=str(shards - 1),
        )
    return leased


def check_single(settings: Settings) -> None:
    """Check that a store that is served as one shard has no others; raises InvalidArgument."""
    if not _is_redis(settings.data):
        return
    there = RedisLayout(settings).known()
    if there is not None:
        raise InvalidArgument(
            f"the store has {there} shards: set SASH_SHARDS={there}, or another SASH_REDIS_PREFIX", field="shards"
        )


def _check_processes(shards: int, processes: int) -> None:
    if processes > shards:
        raise InvalidArgument(
            f"SASH_PROCESSES is {processes}, and the store has {shards} shards: each process needs one or more",
            field="processes",
            limit=str(shards),
        )


def _is_redis(data: str) -> bool:
    return data.startswith(("redis://", "rediss://"))


def _describe(folder: Path, shards: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f"{_FILE}.draft"
    with draft.open("w") as file:
        json.dump({"shards": shards}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _FILE)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_used(folder: Path) -> bool:
    """Whether a directory has a store."""
    return any((folder / name).exists() for name in (_FILE, "shard-0", "data.mdb", "server.lock"))


def _directory_shards(folder: Path) -> int | None:
    """The number of shards of a directory; None if nothing is stored there."""
    try:
        text = (folder / _FILE).read_text()
    except FileNotFoundError:
        if (folder / "shard-0").exists():
            raise DataLoss(
                f"{folder} has shards, and {_FILE} is missing, which says how many: write it again, for example "
                '{"shards": 4}, with the number of all shards'
            ) from None
        return 1 if any((folder / name).exists() for name in ("data.mdb", "server.lock")) else None
    except OSError as error:
        raise InvalidArgument(f"{folder / _FILE} cannot be read: {error.strerror}", field="data") from None
    try:
        shards = json.loads(text)["shards"]
    except (ValueError, TypeError, KeyError):
        shards = None
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise DataLoss(f"{folder / _FILE} does not say how many shards there are")
    return shards
