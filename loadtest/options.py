"""What a run does: its scenario, where the service is, and how a user shows who it is.

The command line passes them to locust's processes as JSON in the variable `LOADTEST`. There every name may be missing.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields

VARIABLE = "LOADTEST"
EDGES = ("grpc", "connect", "rest")
SCENARIOS = {
    "steady": "one window; every user inserts and queries its own key",
    "spike": "as steady: a tenth of the users, then all of them, then a tenth",
    "windows": "many windows; every user has its share of them",
    "keys": "one window of many keys; every user has its share of them",
    "watchers": "every user watches its key, inserts into it, and waits for the answer that shows the entry",
    "soak": "as steady, with pauses of half a second to a second, for hours",
}


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    scenario: str = "steady"
    edges: tuple[str, ...] = EDGES
    target: str = "127.0.0.1:7070"
    """Host and port of gRPC."""
    address: str = "http://127.0.0.1:7071"
    """URL of REST and Connect."""
    token: str | None = None
    ca: str | None = None
    """A PEM file of the authority that gave the service its certificate."""
    users: int = 20
    seconds: float = 30
    tasks: int = 0
    """Tasks after which each user stops; 0 for no bound."""
    things: int = 0
    """Windows or keys of all users together; 0 for ten thousand windows, or a hundred thousand keys."""

    @property
    def share(self) -> int:
        """Windows or keys of each user."""
        all_of_them = self.things or {"windows": 10_000, "keys": 100_000}.get(self.scenario, 1)
        return max(1, all_of_them // self.users)

    @property
    def phases(self) -> list[tuple[int, float]]:
        """How many users there are, and for how many seconds."""
        if self.scenario != "spike":
            return [(self.users, self.seconds)]
        few = max(len(self.edges), self.users // 10)
        return [(users, self.seconds / 3) for users in (few, self.users, few)]

    def text(self) -> str:
        """The options as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Options:
        """The options that the variable has; its documents may leave out any of them."""
        document = json.loads(os.environ.get(VARIABLE, "{}"))
        unknown = set(document) - {field.name for field in fields(cls)}
        if unknown:
            raise SystemExit(f"{VARIABLE}: unknown: {', '.join(sorted(unknown))}")
        if "edges" in document:
            document["edges"] = tuple(document["edges"])
        return cls(**document)
