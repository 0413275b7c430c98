"""A limit on calls in progress: in all, and of one caller."""

from __future__ import annotations

from sash_engine.errors import Unavailable


class Places:
    """Places for calls in progress.

    Args:
        calls_max: how many there are.
        calls_of_caller_max: how many of them one caller may have.
    """

    def __init__(self, calls_max: int, calls_of_caller_max: int) -> None:
        self._calls_max = calls_max
        self._of_caller_max = calls_of_caller_max
        self._calls = 0
        self._callers: dict[str, int] = {}

    def check(self, caller: str) -> None:
        """Raise `Unavailable` where there is no place for a call of a caller."""
        if self._calls >= self._calls_max:
            limit = f"SASH_MAX_CONCURRENT_CALLS: {self._calls_max}"
            raise Unavailable(f"{self._calls} calls are in progress", limit=limit, retry_after_s=1.0)
        if self._callers.get(caller, 0) >= self._of_caller_max:
            raise Unavailable(
                f"{self._callers[caller]} calls of {caller} are in progress",
                limit=f"SASH_MAX_CALLS_PER_ADDRESS: {self._of_caller_max}",
                retry_after_s=1.0,
            )

    def enter(self, caller: str) -> None:
        """Take a place; raises as `check`."""
        has = self._callers.get(caller, 0)
        if self._calls >= self._calls_max or has >= self._of_caller_max:
            self.check(caller)
        self._calls += 1
        self._callers[caller] = has + 1

    def leave(self, caller: str) -> None:
        """Give a place back."""
        self._calls -= 1
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]
