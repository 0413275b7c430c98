"""Which shards a process should take, and which it should give to others. Nothing here asks or changes anything.

Every process decides for itself, from the same table. Two that decide by different states of it may both want a shard:
the table gives it to one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Member:
    """A process in the table.

    Attributes:
        id: new with each start.
        number: the lowest that no other process had when it came.
        alive: whether it counts as running.
        address: where other processes call it.
        grpc, rest: host and port for clients; empty if it does not say so.
        group: those of one machine that share their ports have the same.
        pinned: the only shards that it takes; None: any.
        owner: the token of its process, see `sash.tiers.owner`.
        doubts: how often it could not tell whether it had given a shard away. It is not read from the table.
    """

    id: str
    number: int
    alive: bool = True
    address: str = ""
    grpc: str = ""
    rest: str = ""
    group: str = ""
    pinned: frozenset[int] | None = None
    owner: str = ""
    doubts: int = 0


@dataclass(frozen=True)
class Table:
    """The lease table, as of a moment.

    Attributes:
        members: the processes, by their ids.
        owners: who has a shard, by its number; also processes that are gone.
        wishes: who shall have a shard, if somebody said so.
        secret: what processes prove to each other.
        rows: what the table says of each process, by its id, as it stands there.
        lost: Redis was emptied, so that no shard may be taken.
    """

    members: Mapping[str, Member] = field(default_factory=dict)
    owners: Mapping[int, str] = field(default_factory=dict)
    wishes: Mapping[int, str] = field(default_factory=dict)
    secret: str = ""
    rows: Mapping[str, bytes] = field(default_factory=dict)
    lost: bool = False

    def owner(self, shard: int) -> Member | None:
        """The running process that has a shard; None if there is none."""
        member = self.members.get(self.owners.get(shard, ""))
        return member if member is not None and member.alive else None

    def held(self, member: Member, shards: int) -> list[int]:
        """The shards that a process has."""
        return [shard for shard, owner in self.owners.items() if owner == member.id and shard < shards]


@dataclass(frozen=True, slots=True)
class Decision:
    """The next moves of a process: free shards to take, and shards of its own to give to others."""

    take: Sequence[int] = ()
    give: Sequence[int] = ()


def decide(table: Table, me: str, shards: int) -> Decision:
    """Decide for one process.

    Processes have equal shares, which differ by one at most. Those with the most shards keep the larger ones, so that
    as few as possible move. A shard that somebody wants elsewhere goes there, and counts there.

    Args:
        me: its id.
        shards: how many there are.
    """
    this = table.members[me]
    alive = [member for member in table.members.values() if member.alive]
    pinned = frozenset[int]().union(*(member.pinned for member in alive if member.pinned is not None))
    mine = [shard for shard in range(shards) if table.owners.get(shard) == me]
    free = [shard for shard in range(shards) if table.owner(shard) is None]
    if this.pinned is not None:
        return Decision(
            [shard for shard in free if shard in this.pinned], [shard for shard in mine if shard not in this.pinned]
        )
    shared = [shard for shard in range(shards) if shard not in pinned]
    wanted = {shard: member for shard in shared if (member := _wanted(table, shard)) is not None}
    held = {member.id: 0 for member in alive if member.pinned is None}
    for shard in shared:
        owner = table.owners.get(shard, "")
        if owner in held:
            held[owner] += 1
    ranked = sorted(held, key=lambda each: (-held[each], table.members[each].number))
    least, larger = divmod(len(shared), len(ranked))
    fair = least + (ranked.index(me) < larger)
    give = [shard for shard in mine if shard in pinned or wanted.get(shard, me) != me]
    kept = [shard for shard in mine if shard not in give]
    spare = [shard for shard in kept if shard not in wanted]
    if len(kept) > fair:
        give += spare[max(len(spare) - (len(kept) - fair), 0) :]
    called = [shard for shard in free if wanted.get(shard) == me]
    others = [shard for shard in free if shard not in pinned and shard not in wanted]
    turn = this.number * fair % max(len(others), 1)  # so that processes do not all try the same ones
    others = others[turn:] + others[:turn]
    others.sort(key=bool)  # nobody serves a shard before somebody has the first one, which says what windows there are
    return Decision(called + others[: max(fair - len(kept) - len(called), 0)], give)


def _wanted(table: Table, shard: int) -> str | None:
    """Return the process that should have a shard, if it can take it."""
    member = table.members.get(table.wishes.get(shard, ""))
    return member.id if member is not None and member.alive and member.pinned is None else None
