"""A window that other windows show: it has slots for the aggregates of its views; see views.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sash_engine.errors import NotFound, Unsupported
from sash_engine.forest import Layout
from sash_engine.monoids import Monoid
from sash_engine.steps import Steps, finished
from sash_engine.windows.adaptive import layout_of
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.fed_window import FedWindow
from sash_engine.windows.labels import Labels
from sash_engine.windows.reader import Reader
from sash_engine.windows.slide import Slide
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.view_spec import check_view
from sash_engine.windows.views import View, Views, check_no_views, widened

__all__ = ["SharedWindow"]


class SharedWindow(FedWindow):
    """A window that may have views."""

    views: Views
    _layout: Layout

    def _reader_of(self, spec: WindowSpec) -> Reader:
        raise NotImplementedError

    def info(self) -> WindowInfo:
        """The window as `describe` shows it."""
        raise NotImplementedError

    @property
    def layout(self) -> Layout:
        """The columns and aggregates."""
        return self._layout

    @property
    def labels(self) -> Labels:
        """The labels of its keys."""
        return self._labels

    @property
    def slide_policy(self) -> Slide:
        """What leaves, and when."""
        return self._slide

    # ---------------------------------------------------------------- views

    def add_view(self, spec: WindowSpec) -> View:
        """As `add_view_steps`, at once."""
        return finished(self.add_view_steps(spec))

    def add_view_steps(self, spec: WindowSpec) -> Steps[View]:
        """Add a view of this window, or of one that it feeds; one of its name is replaced.

        The partials of what is there are computed in steps. Nobody may use the window from the first to the last.

        Args:
            spec: complete, see `view_spec.completed`.

        Raises:
            NotFound, InvalidArgument: there can be no such view. Nothing has changed.
            Unavailable, DataLoss: a block cannot be read. Keys differ in what they have then.
        """
        assert spec.of is not None, "the spec says whose entries it shows"
        window = self.part(spec.of)
        if window is None:
            raise NotFound(f"of: there is no window {spec.of[:140]!r}", field="of")
        check_view(spec, window.spec)
        yield from window._share_steps(window.views.monoids(spec))
        view = window.views.find(spec.name)
        if view is None:
            view = window.views.add(View(spec, window))
        view.spec = spec
        window.views.use()
        return view

    def drop_view(self, name: str) -> None:
        """Remove a view of this window, or of one that it feeds, and the partials that only it has."""
        for window in (self, *self.cascades):
            if window.views.find(name) is not None:
                window.views.drop(name)
                finished(window._share_steps(window.views.monoids()))
                window.views.use()

    def part(self, name: str) -> SharedWindow | None:
        """This window, or one that it feeds."""
        return self if name == self.spec.name else self.cascades.find(name)

    @property
    def all_views(self) -> list[View]:
        """Its views, and those of the windows that it feeds."""
        return [view for window in (self, *self.cascades) for view in window.views]

    def check_no_views(self) -> None:
        """Raise FailedPrecondition if it has views."""
        check_no_views(self.views, self.spec.name)

    def _share_steps(self, shared: Sequence[tuple[Monoid, Sequence[str]]]) -> Steps[None]:
        """Have slots for these aggregates of views, in steps. Panes have all slots that they will ever have.

        The slots and their order follow from the spec and the views, because an image stores partials by slot.
        """
        if self._panes is not None:
            return
        layout = layout_of(self.spec, self._layout.block, shared)
        if layout.keys != self._layout.keys:
            yield from self._keys.relayout_steps(layout)
            self._use_layout(self.spec, layout)

    def _use_layout(self, spec: WindowSpec, layout: Layout) -> None:
        self.spec, self._layout = spec, layout
        self._slide.use(spec, layout)
        self._reader = self._reader_of(spec)

    # ---------------------------------------------------------------- aggregates of its own

    def add_aggregates(self, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates and compute them from the entries that are there; see `Plane.add_aggregates`."""
        if self.spec.algorithm is not None:
            raise Unsupported(
                f"window {self.spec.name!r} runs on {self.spec.algorithm}, which keeps no values to compute from",
                field="aggregates",
            )
        wider = widened(self.spec, aggregates)
        if self._panes is not None:
            for name in wider.aggregates.keys() - self.spec.aggregates.keys():
                raise Unsupported(
                    f"window {self.spec.name!r} keeps panes of {self.spec.granularity}, and no values to compute "
                    f"{name!r} from",
                    field=f"aggregates.{name}",
                )
            return self.info()
        layout = layout_of(wider, self._layout.block, self.views.monoids())
        self._keys.relayout(layout)
        self._use_layout(wider, layout)
        self._rollups.add_aggregates(aggregates)
        self._reader = self._reader_of(wider)
        self.views.use()
        return self.info()
