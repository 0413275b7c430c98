"""The algorithms of the literature, by name.

`ALGORITHMS` has every class by its name `algorithm`. `create` makes a timed window of any of them: an algorithm without
times gets a queue of times beside it (`timed.py`).

>>> from sash_engine.monoids import Sum
>>> window = create("two_stacks_lite", Sum("int64"))
>>> window.insert(17, 4)
>>> window.query(), window.oldest
(4, 17)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from sash_engine.aggregators.amta import AMTA
from sash_engine.aggregators.base import Aggregator, Bulk, Capability, InOrder, OutOfOrder, Pairs, Range, Timed
from sash_engine.aggregators.btree import BTree
from sash_engine.aggregators.bulk_fiba import BulkFiBA
from sash_engine.aggregators.daba import DABA
from sash_engine.aggregators.daba_lite import DABALite
from sash_engine.aggregators.fiba import FiBA
from sash_engine.aggregators.flatfit import FlatFIT
from sash_engine.aggregators.kvs_mta import KvsAMTA, KvsLogMTA
from sash_engine.aggregators.log_mta import LogMTA
from sash_engine.aggregators.reactive import Reactive
from sash_engine.aggregators.recalc import Recalc, RecalcInOrder
from sash_engine.aggregators.subtract_on_evict import SubtractOnEvict
from sash_engine.aggregators.timed import TimedInOrder
from sash_engine.aggregators.two_stacks import TwoStacks
from sash_engine.aggregators.two_stacks_lite import TwoStacksLite
from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Monoid
from sash_wire.meant import instead

__all__ = [
    "ALGORITHMS",
    "AMTA",
    "Aggregator",
    "BTree",
    "Bulk",
    "BulkFiBA",
    "Capability",
    "DABA",
    "DABALite",
    "FiBA",
    "FlatFIT",
    "InOrder",
    "KvsAMTA",
    "KvsLogMTA",
    "LogMTA",
    "OutOfOrder",
    "Pairs",
    "Range",
    "Reactive",
    "Recalc",
    "RecalcInOrder",
    "SubtractOnEvict",
    "Timed",
    "TimedInOrder",
    "TwoStacks",
    "TwoStacksLite",
    "create",
]


def _by_name(classes: Iterable[type[Aggregator]]) -> MappingProxyType[str, type[Aggregator]]:
    named: dict[str, type[Aggregator]] = {}
    for cls in classes:
        assert cls.algorithm not in named, f"{cls.algorithm} is named twice"
        named[cls.algorithm] = cls
    return MappingProxyType(named)


ALGORITHMS = _by_name(
    [
        Recalc,
        RecalcInOrder,
        SubtractOnEvict,
        TwoStacks,
        TwoStacksLite,
        DABA,
        DABALite,
        Reactive,
        FlatFIT,
        BTree,
        FiBA,
        BulkFiBA,
        LogMTA,
        AMTA,
        KvsLogMTA,
        KvsAMTA,
    ]
)
"""Every algorithm by its name in specs."""


def create(algorithm: str, monoid: Monoid, **parameters: Any) -> Timed:
    """Make an empty timed window.

    Args:
        algorithm: a name in `ALGORITHMS`.
        monoid: the aggregate.
        parameters: of the algorithm, such as `min_arity`.

    Raises:
        InvalidArgument: the algorithm is unknown, or does not take a parameter or its value; `field` names it.
        Unsupported: the algorithm needs an inverse and the monoid has none.
    """
    if algorithm not in ALGORITHMS:
        raise InvalidArgument(
            f"unknown algorithm {algorithm!r}{instead(algorithm, sorted(ALGORITHMS), 'known are')}", field="algorithm"
        )
    cls = ALGORITHMS[algorithm]
    accepted = [
        name
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for name in parameters:
        if name not in accepted:
            takes = f"takes {', '.join(accepted)}" if accepted else "takes no parameters"
            raise InvalidArgument(f"{algorithm} {takes}, not {name!r}", field=name)
    if issubclass(cls, Timed):
        return cls(monoid, **parameters)
    assert issubclass(cls, InOrder)
    return TimedInOrder(cls, monoid)
