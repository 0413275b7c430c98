"""Which process takes which shards: what a deployment comes to, whoever comes and goes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from sash.shards.fair import Decision, Member, Table, decide


@dataclass
class Deployment:
    """A table, and processes that act on it one after the other."""

    shards: int
    table: Table = field(default_factory=Table)
    moves: int = 0

    def join(self, id_: str, pinned: frozenset[int] | None = None) -> None:
        number = len(self.table.members)
        self.table.members[id_] = Member(id_, number, pinned=pinned)

    def leave(self, id_: str) -> None:
        self.table.members[id_] = replace(self.table.members[id_], alive=False)

    def settle(self) -> None:
        """Let every process act until nobody does."""
        for _ in range(2 * self.shards + 5):
            acted = False
            for id_, member in self.table.members.items():
                if member.alive:
                    acted |= self.act(id_)
            if not acted:
                return
        raise AssertionError("shards move for ever")

    def act(self, id_: str) -> bool:
        decision = decide(self.table, id_, self.shards)
        for shard in decision.take:
            assert self.table.owner(shard) is None, "it has a shard of a process that runs"
            self.table.owners[shard] = id_
        for shard in decision.give[:1]:
            assert self.table.owners[shard] == id_
            del self.table.owners[shard]
            self.moves += 1
        return bool(decision.take or decision.give)

    def counts(self) -> list[int]:
        alive = [member for member in self.table.members.values() if member.alive and member.pinned is None]
        return sorted(len(self.table.held(member, self.shards)) for member in alive)

    def owned(self) -> None:
        """Check that every shard is served."""
        assert all(self.table.owner(shard) is not None for shard in range(self.shards))


EVENTS = st.lists(st.tuples(st.sampled_from(["join", "leave", "move"]), st.integers(0, 20)), max_size=12)


@given(st.integers(2, 24), EVENTS)
def test_shares_are_fair_and_few_shards_move(shards: int, events: list[tuple[str, int]]) -> None:
    made = Deployment(shards)
    made.join("p0")
    made.settle()
    for kind, number in events:
        alive = [id_ for id_, member in made.table.members.items() if member.alive]
        before, made.moves = dict(made.table.owners), 0
        if kind == "join":
            made.join(f"p{len(made.table.members)}")
        elif kind == "leave" and len(alive) > 1:
            made.leave(alive[number % len(alive)])
        elif kind == "move":
            made.table.wishes[number % shards] = alive[number % len(alive)]
        made.settle()
        made.owned()
        counts = made.counts()
        wished = {
            shard: id_ for shard, id_ in made.table.wishes.items() if made.table.members[id_].alive and shard < shards
        }
        for shard, id_ in wished.items():
            assert made.table.owners[shard] == id_
        if not made.table.wishes:
            assert counts[-1] - counts[0] <= 1
        if kind == "join" and not made.table.wishes:
            # The new one gets its share, and nothing else moves.
            assert made.moves == counts[0] or made.moves == len(
                [shard for shard in before if made.table.owners[shard] == f"p{len(made.table.members) - 1}"]
            )
        if kind == "leave":
            assert made.moves <= len(wished)


def test_shards_that_a_process_owns_are_its_alone() -> None:
    made = Deployment(8)
    made.join("a")
    made.settle()
    made.join("b", frozenset({0, 1, 2}))
    made.join("standby", frozenset())
    made.join("c")
    made.settle()
    assert {shard for shard, owner in made.table.owners.items() if owner == "b"} == {0, 1, 2}
    assert made.counts() == [2, 3]
    assert "standby" not in made.table.owners.values()
    made.leave("b")
    made.settle()
    made.owned()
    assert made.counts() == [4, 4]


def test_more_processes_than_shards() -> None:
    made = Deployment(2)
    for id_ in "abcd":
        made.join(id_)
        made.settle()
    assert made.counts() == [0, 0, 1, 1]
    made.leave(made.table.owners[0])
    made.settle()
    made.owned()


def test_a_shard_of_a_process_that_is_gone_is_free() -> None:
    table = Table({"a": Member("a", 0, alive=False), "b": Member("b", 1)}, {0: "a", 1: "long gone"})
    assert decide(table, "b", 3) == Decision([0, 1, 2], [])


def test_everybody_takes_the_first_shard_first_and_others_from_places_of_their_own() -> None:
    table = Table({name: Member(name, number) for number, name in enumerate("abc")})
    assert [decide(table, name, 12).take for name in "abc"] == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 8, 9, 10]]
