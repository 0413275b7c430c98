"""A clock that stands still until a test moves it."""

from __future__ import annotations


class Clock:
    """Call it for the time in seconds; set `now_s` to move it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
