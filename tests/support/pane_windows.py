"""Windows of panes; bulks for them and their content are those of `windows`."""

from functools import partial

from hypothesis import settings

from tests.support import windows

FEW = settings.default.max_examples // 10
AGGREGATES = {name: windows.BASE["aggregates"][name] for name in ("n", "all", "sum")} | {
    "when": {"function": "arg_max"}
}
PANES = {"granularity": 10, "aggregates": AGGREGATES}
BASE = windows.BASE | PANES
window = partial(windows.window, **PANES)
