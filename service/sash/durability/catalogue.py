"""The named windows of one service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sash_engine.clock import Clock
from sash_engine.errors import AlreadyExists, NotFound, ResourceExhausted, Unavailable
from sash_engine.windows.derived.views import View
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_engine.words import differences

_RETRY_S = 0.5
_NAMED = 5
"""So many differences of two specs are told."""


class Catalogue:
    """Windows by name.

    Args:
        max_windows: how many there may be.
        max_keys: how many keys each may have.
        clock: tells wall time.
    """

    def __init__(self, max_windows: int = 1000, max_keys: int = 10_000_000, clock: Clock | None = None) -> None:
        self._clock = clock
        self._windows: dict[str, Window | View] = {}
        self._coming: set[str] = set()
        """The names of views that are being computed."""
        self._max_windows = max_windows
        self.max_keys = max_keys

    def create(self, spec: WindowSpec, make: Callable[[WindowSpec, int], Window] | None = None) -> tuple[Window, bool]:
        """Create a window, or find the one of this spec; the bool says whether it is new.

        Args:
            make: makes a window from its spec and the most keys that it may have.

        Raises:
            AlreadyExists: a window of that name has another spec.
            ResourceExhausted: there are `max_windows` already.
            Unavailable: another one of that name is being created.
        """
        found = self._windows.get(spec.name)
        if found is not None:
            self.check_same(spec)
            return self.window(spec.name), False
        self.check_room(spec.name)
        window = Window(spec, self.max_keys, clock=self._clock) if make is None else make(spec, self.max_keys)
        self._windows[spec.name] = window
        return window, True

    def check_same(self, spec: WindowSpec) -> None:
        """Raise AlreadyExists if the window of that name has another spec."""
        there = self.find(spec.name).spec
        if there != spec:
            found = differences(there.document(), spec.document())
            named = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
            raise AlreadyExists(f"window {spec.name!r} exists with another spec; it differs in {named}", field="name")

    def check_room(self, name: str = "", more: int = 1) -> None:
        """Check that there may be one more window.

        Args:
            name: what it is called, where it is about to be added.
            more: how many windows are about to be added.

        Raises:
            ResourceExhausted: there are `max_windows` already.
            Unavailable: another one of that name is being created.
        """
        if name in self._coming:
            raise Unavailable(f"a view {name!r} is being created", field="name", retry_after_s=_RETRY_S)
        if (windows := len(self._windows) + len(self._coming)) + more > self._max_windows:
            raise ResourceExhausted(
                f"there are {windows} windows already" + f", and {more} are to come" * (more > 1),
                field="name",
                limit=f"{self._max_windows} windows",
            )

    @contextmanager
    def coming(self, name: str) -> Iterator[None]:
        """Keep a name for a view while it is computed; raises as `check_room`."""
        self.check_room(name)
        self._coming.add(name)
        try:
            yield
        finally:
            self._coming.remove(name)

    def put(self, window: Window | View) -> None:
        """Add a window that was made elsewhere. It replaces one of the same name."""
        self._windows[window.spec.name] = window

    def find(self, name: str) -> Window | View:
        """Return the window of that name, to ask it; raises NotFound."""
        window = self._windows.get(name)
        if window is None:
            raise no_window(name)
        return window

    def get(self, name: str) -> Window | View | None:
        """Return the window of that name; None if there is none."""
        return self._windows.get(name)

    def window(self, name: str) -> Window:
        """Return the window of that name, which has entries; raises NotFound."""
        window = self.find(name)
        assert isinstance(window, Window), f"{name} is a view"
        return window

    def view(self, name: str) -> View | None:
        """The view of that name; None where there is none, or a window that has entries."""
        found = self._windows.get(name)
        return found if isinstance(found, View) else None

    def home(self, name: str) -> str:
        """The window that a window is stored with: the one whose entries it has in the end, or itself."""
        while (window := self._windows.get(name)) is not None and (sources := window.spec.feeds_on):
            (name,) = sources
        return name

    def put_all(self, windows: Iterable[Window | View]) -> None:
        """Add windows that were made elsewhere."""
        for window in windows:
            self.put(window)

    def __len__(self) -> int:
        return len(self._windows)

    def __contains__(self, name: str) -> bool:
        return name in self._windows

    def class_of(self, name: str) -> str:
        """The kind of a window, for metrics: "plain", "keyed", or "none" if there is none."""
        window = self._windows.get(name)
        return "none" if window is None else "keyed" if window.spec.keyed else "plain"

    def all(self) -> list[Window | View]:
        """All windows, by name."""
        return [self._windows[name] for name in sorted(self._windows)]

    def delete(self, name: str) -> Window | View:
        """Remove a window and return it; raises NotFound."""
        window = self.find(name)
        del self._windows[name]
        return window


def no_window(name: str) -> NotFound:
    """Return the error for a name that no window has."""
    return NotFound(f"there is no window {name[:140]!r}", field="window")
