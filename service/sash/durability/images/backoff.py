"""How long a window that could not be stored waits before it is tried again."""

from __future__ import annotations

from sash_engine.errors import OutOfRoom, SashError

_PAUSE_MAX = 64


class Backoff:
    """Counts turns until the next attempt. A turn is a call of `tick`, about one a second.

    After any failure the pause is as long as before. After a lack of space the next pause is twice as long, up to 64
    turns: what does not fit now is as large a second later.

    Attributes: to be read only.
        turns_left: turns until the next attempt.
        pause: turns of the next pause.
    """

    def __init__(self) -> None:
        self.turns_left = 0
        self.pause = 1

    @property
    def waiting(self) -> bool:
        """Whether it is too early for the next attempt."""
        return self.turns_left > 0

    def fail(self, error: SashError) -> None:
        """Begin a pause."""
        self.turns_left = self.pause
        if isinstance(error, OutOfRoom):
            self.pause = min(2 * self.pause, _PAUSE_MAX)

    def succeed(self) -> None:
        """Make the next pause a short one."""
        self.pause = 1

    def tick(self) -> None:
        """Let a turn pass."""
        self.turns_left = max(self.turns_left - 1, 0)

    def reset(self) -> None:
        """Allow an attempt at once: space was freed."""
        self.turns_left, self.pause = 0, 1
