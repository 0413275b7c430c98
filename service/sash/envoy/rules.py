"""The file of limits, in the form of envoyproxy/ratelimit: which limits hold for a descriptor, and in which window.

    domain: shop
    window: requests                 # has the requests that were admitted
    descriptors:
      - key: user                    # any user
        rate_limit: {unit: minute, requests_per_unit: 100}
      - key: user
        value: robot-*               # users whose names begin so; a value alone is that value
        rate_limit: {lookback: 90s, requests_per_unit: 10}
      - key: tenant
        descriptors:
          - key: model
            rate_limits:             # several, of which each must hold
              - {unit: second, requests_per_unit: 5}
              - {unit: day, requests_per_unit: 5000}

    (tenant, acme) (model, small)  ──▶  tenant ──▶ model ──▶ its limits    an entry leads to the next place
    (tenant, acme)                 ──▶  tenant ──▶ no limits              OK: nothing limits it
    (user, robot-7)                ──▶  the value, else the longest beginning, else any

A file may have a document for each domain, behind lines `---`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sash.access.documents import Document, documents_of
from sash_wire.durations import parse_duration
from sash_wire.errors import WireError

UNITS_S: Mapping[str, int] = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
"""Seconds of each unit, as envoyproxy/ratelimit counts them."""

_BOUND_MAX = 2**32 - 1

Text = Annotated[str, Field(min_length=1, max_length=1000)]


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int | float) else value


Value = Annotated[Text, BeforeValidator(_text)]
"""Envoy's values are texts, also where YAML sees a number."""
Unit = Annotated[
    Literal["second", "minute", "hour", "day", "week", "month", "year"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Replaced(_Model):
    name: Text


class _Limit(_Model):
    unit: Unit | None = None
    unit_multiplier: int = Field(1, ge=1, le=1000)
    lookback: str | None = None
    requests_per_unit: int | None = Field(None, ge=0, le=_BOUND_MAX)
    unlimited: bool = False
    name: str = Field("", max_length=1000)
    replaces: list[_Replaced] = []


class _Descriptor(_Model):
    key: Text
    value: Value | None = None
    rate_limit: _Limit | None = None
    rate_limits: list[_Limit] = Field([], max_length=16)
    shadow_mode: bool = False
    descriptors: list[_Descriptor] = []


class _Domain(_Model):
    domain: Text
    window: Text
    parts: dict[str, Text] = {}
    response_headers: bool = False
    descriptors: list[_Descriptor] = []


@dataclass(frozen=True, slots=True)
class Limit:
    """So many requests in a lookback.

    Attributes:
        bound: the most that are admitted.
        lookback: as a question says it.
        seconds: its length; None where it is no whole number of them.
        unit, multiplier: as Envoy is told; empty where the lookback is of no unit.
    """

    bound: int
    lookback: str
    unit: str = ""
    multiplier: int = 1
    name: str = ""

    @classmethod
    def of_unit(cls, bound: int, unit: str, multiplier: int = 1, name: str = "") -> Limit:
        """Make the limit of one unit, or several."""
        return cls(bound, f"{UNITS_S[unit] * multiplier}s", unit, multiplier, name)

    @property
    def ns(self) -> int:
        """The length of the lookback."""
        return parse_duration(self.lookback, "ns", "lookback")


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for the descriptors that reach one place of the tree.

    Attributes:
        domain: it is of.
        place: for metrics: the keys, and the values that the file has.
        window: where the admitted requests are.
        parts: of the window's key, and the keys of the entries that they are; what is not here has the entry's name.
        limits: each of them must hold; none: there is no limit.
        replaces: names of limits that do not hold where this one does.
        in_shadow: it refuses nothing, and is counted as if it did.
    """

    domain: str
    place: str
    window: str
    parts: Mapping[str, str]
    limits: Sequence[Limit]
    replaces: frozenset[str]
    in_shadow: bool

    @property
    def names(self) -> Iterator[str]:
        """By which others replace it."""
        return (limit.name for limit in self.limits if limit.name)


@dataclass(slots=True)
class _Node:
    rule: Rule | None = None
    values: dict[tuple[str, str], _Node] = field(default_factory=dict)
    beginnings: dict[str, list[tuple[str, _Node]]] = field(default_factory=dict)
    """By key, the longest first."""
    others: dict[str, _Node] = field(default_factory=dict)

    def next(self, key: str, value: str) -> _Node | None:
        """Where an entry leads to."""
        found = self.values.get((key, value))
        if found is not None:
            return found
        for beginning, node in self.beginnings.get(key, ()):
            if value.startswith(beginning):
                return node
        return self.others.get(key)


@dataclass(slots=True)
class _Tree:
    plain: Rule
    """Of what has a limit of its own: a rule without limits."""
    response_headers: bool
    root: _Node = field(default_factory=_Node)


class Rules:
    """All domains of a file."""

    def __init__(self, trees: Mapping[str, _Tree]) -> None:
        self._trees = trees

    def find(self, domain: str, entries: Iterable[tuple[str, str]]) -> Rule | None:
        """Return the rule of a descriptor; None where none is as long and fits."""
        tree = self._trees.get(domain)
        node = None if tree is None else tree.root
        for key, value in entries:
            if node is None:
                return None
            node = node.next(key, value)
        return None if node is None else node.rule

    def plain(self, domain: str) -> Rule | None:
        """Return a rule without limits, for a descriptor that brings one; None where the domain is unknown."""
        tree = self._trees.get(domain)
        return None if tree is None else tree.plain

    def response_headers(self, domain: str) -> bool:
        """Whether answers have headers for the client of Envoy."""
        tree = self._trees.get(domain)
        return tree is not None and tree.response_headers


def rules_of(text: bytes, path: Path) -> Rules:
    """Read the text of a file.

    Raises:
        InvalidArgument: names the file, the line, and what is wrong.
    """
    trees = dict[str, _Tree]()
    for document in documents_of(text, path, "rate_limits", _Domain, several=True):
        domain = document.value
        if domain.domain in trees:
            raise document.wrong(("domain",), f"domain {domain.domain[:80]!r} is there twice")
        plain = Rule(domain.domain, "", domain.window, domain.parts, (), frozenset(), False)
        tree = trees[domain.domain] = _Tree(plain, domain.response_headers)
        _grow(tree.root, domain.descriptors, (), document, plain)
    return Rules(trees)


def _grow(
    node: _Node, descriptors: Sequence[_Descriptor], at: tuple[Any, ...], document: Document[_Domain], above: Rule
) -> None:
    """Add what a list of descriptors says below a node."""
    for i, each in enumerate(descriptors):
        here = (*at, "descriptors", i)
        place = ".".join(filter(None, (above.place, each.key if each.value is None else f"{each.key}_{each.value}")))
        found = _Node()
        if each.value is None:
            there = node.others.setdefault(each.key, found)
        elif each.value.endswith("*"):
            beginnings = node.beginnings.setdefault(each.key, [])
            there = next((old for text, old in beginnings if text == each.value[:-1]), found)
            beginnings.append((each.value[:-1], found))
            beginnings.sort(key=lambda pair: -len(pair[0]))
        else:
            there = node.values.setdefault((each.key, each.value), found)
        if there is not found:
            raise document.wrong(here, f"{place[:80]!r} is there twice")
        limits = _limits_of(each, here, document)
        replaces = frozenset(old.name for limit in _all(each) for old in limit.replaces)
        for limit in limits or ():
            if limit.name in replaces:
                raise document.wrong(here, f"{place[:80]!r} replaces itself")
        domain = document.value
        rule = Rule(domain.domain, place, domain.window, domain.parts, limits or (), replaces, each.shadow_mode)
        found.rule = None if limits is None else rule
        _grow(found, each.descriptors, here, document, rule)


def _all(descriptor: _Descriptor) -> list[_Limit]:
    return descriptor.rate_limits if descriptor.rate_limit is None else [descriptor.rate_limit]


def _limits_of(descriptor: _Descriptor, at: tuple[Any, ...], document: Document[_Domain]) -> list[Limit] | None:
    """The limits of a descriptor; an empty list where it is unlimited, None where it says nothing."""
    if descriptor.rate_limit is not None and descriptor.rate_limits:
        raise document.wrong((*at, "rate_limits"), "give either rate_limit or rate_limits")
    found: list[Limit] = []
    for i, each in enumerate(_all(descriptor)):
        here = (*at, "rate_limit") if descriptor.rate_limit is not None else (*at, "rate_limits", i)
        where = ".".join(map(str, here))
        if each.unlimited:
            if each.unit is not None or each.lookback is not None or each.requests_per_unit is not None:
                raise document.wrong(here, f"{where} is unlimited, and has a limit")
            if descriptor.rate_limits:
                raise document.wrong(here, f"{where}.unlimited is for rate_limit")
            continue
        if each.requests_per_unit is None:
            raise document.wrong(here, f"{where}.requests_per_unit is missing")
        if (each.unit is None) == (each.lookback is None):
            raise document.wrong(here, f"{where} must have either unit or lookback")
        if each.unit is not None:
            found.append(Limit.of_unit(each.requests_per_unit, each.unit, each.unit_multiplier, each.name))
            continue
        assert each.lookback is not None
        if each.unit_multiplier != 1:
            raise document.wrong(here, f"{where}.unit_multiplier is for a unit")
        try:
            parse_duration(each.lookback, "ns", f"{where}.lookback")
        except WireError as error:
            raise document.wrong((*here, "lookback"), str(error)) from None
        if each.lookback.isdigit():
            raise document.wrong((*here, "lookback"), f"{where}.lookback needs a unit: 90s, 1h30m")
        found.append(Limit(each.requests_per_unit, each.lookback, name=each.name))
    return found if _all(descriptor) else None
