"""The member `algorithm` of a spec, which has no effect any more."""

from __future__ import annotations

from sash_engine.aggregators import ALGORITHMS
from sash_engine.errors import InvalidArgument
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.meant import instead

DEPRECATED = (
    "algorithm has no effect in the spec of a window, and is deprecated. Leave it out: the columnar engine gives the "
    "same answers. sash_engine.aggregators keeps the algorithms as a library"
)


def check_algorithm(spec: WindowSpec) -> None:
    """Check that the algorithm that a spec names, if it names one, is there; raises InvalidArgument."""
    name = spec.algorithm
    if name is not None and name not in ALGORITHMS:
        raise InvalidArgument(
            f"unknown algorithm {name[:140]!r}{instead(name, sorted(ALGORITHMS), 'known are')}", field="algorithm"
        )
