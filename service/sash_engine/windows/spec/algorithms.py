"""Which algorithm of the library a window may run on, and what it then cannot do."""

from __future__ import annotations

from sash_engine.aggregators import ALGORITHMS, Capability
from sash_engine.errors import InvalidArgument, Unsupported
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.meant import instead

__all__ = ["DEPRECATED", "check_algorithm", "check_ranges", "check_values"]

DEPRECATED = (
    "algorithm is deprecated in the spec of a window. Leave it out: the columnar engine gives the same answers and "
    "refuses less. sash_engine.aggregators keeps the algorithms as a library"
)

_WITH_RANGES = ", ".join(
    sorted(name for name, algorithm in ALGORITHMS.items() if Capability.RANGE_QUERY in algorithm.capabilities)
)


def check_algorithm(spec: WindowSpec) -> None:
    """Check that the algorithm that a spec names, if it names one, can do what the spec wants.

    Raises:
        InvalidArgument: there is no such algorithm, it cannot take one of the aggregates, or it cannot do what another
            option asks for; `field` is "algorithm", or that option.
    """
    name = spec.algorithm
    if name is None:
        return
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        raise InvalidArgument(
            f"unknown algorithm {name[:140]!r}{instead(name, sorted(ALGORITHMS), 'known are')}", field="algorithm"
        )
    for aggregate, (monoid, _) in spec.monoids().items():
        if algorithm.inverts and not monoid.invertible:
            raise InvalidArgument(
                f"{name} evicts by subtracting, and aggregate {aggregate!r}, {monoid!r}, has no exact inverse",
                field="algorithm",
            )
    if spec.slide.when is not None and Capability.RANGE_QUERY not in algorithm.capabilities:
        raise InvalidArgument(
            f"slide.when asks about the oldest entries, and {name} answers for its whole window only; "
            f"these can: {_WITH_RANGES}",
            field="slide.when",
        )
    if spec.order.equal_times != "keep":
        raise InvalidArgument(
            f"{name} keeps partials, in which it cannot find an entry of equal time again: equal times are kept",
            field="order.equal_times",
            limit="keep",
        )


def check_ranges(algorithm: str | None) -> None:
    """Check that an algorithm (None: the engine) answers for ranges, and so for lookbacks and series.

    Raises:
        Unsupported: it answers for its whole window only.
    """
    if algorithm is not None and Capability.RANGE_QUERY not in ALGORITHMS[algorithm].capabilities:
        raise Unsupported(
            f"{algorithm} answers for its whole window only, and not for ranges, lookbacks or series; "
            f"these can: {_WITH_RANGES}",
            field="algorithm",
        )


def check_values(algorithm: str | None) -> None:
    """Check that there are values, of which a series over several keys is made; raises Unsupported."""
    if algorithm is not None:
        raise Unsupported(
            f"{algorithm} keeps no values, of which a series over several keys is made; ask for one key at a time",
            field="keys",
        )
