"""Decides about requests of Envoy: each descriptor is a write that decides, to the window of its rule.

    descriptor ──▶ Rules.find ──▶ Admit(one entry with the hits, limits) ──▶ admitted: it is in the window, and OK
                        └─ no rule, unlimited: OK                        └─▶ refused: nothing is, and OVER_LIMIT

Each descriptor is decided for itself, as in envoyproxy/ratelimit: of one that is refused, the others of its request may
have been admitted. What is refused does not count, so who goes on asking is let in again as soon as others are.

    key of a window without parts     domain|key|value|key|value …      as a key with parts is written
    key of one with parts             the values, by the parts that the file maps; "" where the descriptor has none
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sash.access.files import FromFiles, read_file
from sash.durability.records.commands import Admit
from sash.envoy.rules import UNITS_S, Limit, Rule, Rules, rules_of
from sash.plane import Plane
from sash.rpc.methods import Method
from sash.runtime.metrics import Metrics
from sash_engine.errors import FailedPrecondition, InvalidArgument, Unavailable
from sash_engine.windows import questions
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import NANOSECONDS_PER_TICK, WindowSpec
from sash_proto.envoy import ratelimit_pb2 as pb
from sash_wire.labels import join

SERVICE: str = pb.DESCRIPTOR.services_by_name["RateLimitService"].full_name

HITS_MAX = 1_000_000_000
"""As Envoy has it."""
DESCRIPTORS_MAX = 32
"""Each is a write, and all of them hold the loop together: 10 ms."""
_BYTES_MAX = 1 << 18
_NEAR = 0.8
"""From this share of a limit on, hits are near it, as envoyproxy/ratelimit counts them."""

_OK, _OVER_LIMIT = pb.RateLimitResponse.OK, pb.RateLimitResponse.OVER_LIMIT
_UNITS: Mapping[str, Any] = {unit: pb.RateLimitResponse.RateLimit.Unit.Value(unit.upper()) for unit in UNITS_S}
_OF_NUMBER = {number: name for name, number in _UNITS.items()}


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a rule is asked of its window."""

    spec: WindowSpec
    field: str
    aggregate: str
    ns_per_tick: int


@dataclass(frozen=True, slots=True)
class _Told:
    """What is answered about one limit of a descriptor."""

    limit: Limit
    holds: bool
    remaining: int
    reset_ns: int | None


class RateLimits:
    """Decides by the limits of a file.

    Args:
        plane: has the windows.
        metrics: counts hits.
        path: of the file.

    Raises:
        InvalidArgument: the file cannot be read, or is wrong; names the line.
    """

    def __init__(self, plane: Plane, metrics: Metrics, path: Path) -> None:
        self._plane = plane
        self._metrics = metrics
        self._rules: Rules
        self._plans: dict[str, _Plan] = {}
        """By window."""
        self._file = FromFiles("rate limits", [path], lambda: rules_of(read_file(path, "rate_limits"), path), self._use)

    def _use(self, rules: Rules) -> None:
        self._rules = rules

    async def refresh(self) -> None:
        """Read the file again if it has changed."""
        await self._file.refresh()

    async def should_rate_limit(self, request: pb.RateLimitRequest) -> pb.RateLimitResponse:
        """Decide about one request.

        Raises:
            InvalidArgument: it lacks something, or has too much of it.
            FailedPrecondition: the window of a rule is not one for limits.
            NotFound, PermissionDenied, Unavailable: as a write to the window.
        """
        rules = [self._rule(request.domain, each, f"descriptors.{i}") for i, each in enumerate(_checked(request))]
        replaced = frozenset[str]().union(*[rule.replaces for rule in rules if rule is not None])
        decided = await _together(
            [
                self._decide(rule, replaced, descriptor, _hits(request, descriptor))
                for rule, descriptor in zip(rules, request.descriptors, strict=True)
            ]
        )
        response = pb.RateLimitResponse(overall_code=_OK)
        shown = list[_Told]()
        for rule, told in zip(rules, decided, strict=True):
            status = response.statuses.add(code=_OK)
            if rule is not None and told is not None:
                _tell(status, told)
                if not rule.in_shadow:
                    shown.append(told)
                    if not told.holds:
                        status.code = response.overall_code = _OVER_LIMIT
        if shown and self._rules.response_headers(request.domain):
            _add_headers(response, _tightest(shown))
        return response

    def _rule(self, domain: str, descriptor: pb.RateLimitDescriptor, field: str) -> Rule | None:
        """The rule of a descriptor: that of the file, with the limit that the descriptor brings."""
        if not descriptor.entries:
            raise InvalidArgument(f"{field}.entries is empty", field=f"{field}.entries")
        for i, entry in enumerate(descriptor.entries):
            for name in ("key", "value"):
                if not getattr(entry, name):
                    where = f"{field}.entries.{i}.{name}"
                    raise InvalidArgument(f"{where} is empty", field=where)
        if descriptor.is_negative_hits:
            where = f"{field}.is_negative_hits"
            raise InvalidArgument(f"{where}: hits that are in a window are not given back", field=where)
        if not descriptor.HasField("limit"):
            return self._rules.find(domain, _pairs(descriptor))
        rule, override = self._rules.plain(domain), descriptor.limit
        unit = _OF_NUMBER.get(override.unit)
        if unit is None:
            raise InvalidArgument(
                f"{field}.limit.unit is none of {', '.join(_UNITS).upper()}", field=f"{field}.limit.unit"
            )
        multiplier = override.unit_multiplier.value or 1
        limit = Limit.of_unit(override.requests_per_unit, unit, multiplier)
        return rule and replace(rule, place="(override)", limits=(limit,))

    # ---------------------------------------------------------------- one descriptor

    async def _decide(
        self, rule: Rule | None, replaced: frozenset[str], descriptor: pb.RateLimitDescriptor, hits: int
    ) -> _Told | None:
        """Admit a descriptor's hits; None where nothing limits them."""
        limits = [] if rule is None else [limit for limit in rule.limits if limit.name not in replaced]
        if rule is None or not limits:
            return None
        plan = await self._plan(rule)
        kept_ns = plan.spec.idle_expiry_ns
        if kept_ns is not None and kept_ns < max(limit.ns for limit in limits):
            raise FailedPrecondition(
                f"window {rule.window!r} forgets keys that are idle for {plan.spec.idle_expiry}, which is less than a "
                "lookback of its limits",
                field="window",
            )
        time, key = self._plane.now_ns() // plan.ns_per_tick, _key(rule, plan.spec, descriptor)
        if hits:
            told = await self._admitted(rule, plan, limits, time, key, hits)
        else:
            told = await self._asked(rule, plan, limits, time, key)
        first = _tightest(told)
        self._count(rule, first, told, hits)
        return first

    async def _plan(self, rule: Rule) -> _Plan:
        spec = await self._plane.look_up(rule.window, Admit.kind)
        plan = self._plans.get(rule.window)
        if plan is None or plan.spec is not spec:
            plan = self._plans[rule.window] = _plan_of(spec)
        return plan

    async def _admitted(
        self, rule: Rule, plan: _Plan, limits: Sequence[Limit], time: int, key: str, hits: int
    ) -> list[_Told]:
        asked = [questions.Limit(plan.aggregate, limit.lookback, "<=", limit.bound) for limit in limits]
        batch = Batch.of_row(plan.spec, time, {plan.field: hits}, key)
        admission = await self._plane.write(rule.window, Admit(batch, tuple(asked)))
        [admitted], [retry_after] = admission.admitted, admission.retry_after
        if not admitted and not admission.refused:
            raise Unavailable(f"the clock of the service is behind window {rule.window!r}", retry_after_s=1.0)
        found = []
        for limit, answers in zip(limits, admission.limits, strict=True):
            [holds], [remaining] = answers.holds, answers.remaining
            reset_ns: int | None = limit.ns
            if not holds:
                reset_ns = None if retry_after is None else retry_after * plan.ns_per_tick
            found.append(_Told(limit, holds, int(remaining), reset_ns))
        return found

    async def _asked(self, rule: Rule, plan: _Plan, limits: Sequence[Limit], time: int, key: str) -> list[_Told]:
        """What holds now, without a hit."""
        question = questions.Query(key, [limit.lookback for limit in limits], as_of=time)
        found = []
        for limit, answer in zip(limits, await self._plane.ask(rule.window, question), strict=True):
            remaining = limit.bound - int(answer.aggregates[plan.aggregate] or 0)
            found.append(_Told(limit, remaining >= 0, max(remaining, 0), limit.ns))
        return found

    def _count(self, rule: Rule, first: _Told, told: Iterable[_Told], hits: int) -> None:
        def count(kind: str, hits: int) -> None:
            if hits:
                self._metrics.count_hits(rule.domain, rule.place, kind, hits)

        count("total", hits)
        if first.holds:
            count("within_limit", hits)
            count("near_limit", max(_near(each, hits) for each in told))
        else:
            count("over_limit", hits)
            count("shadow_mode", hits if rule.in_shadow else 0)


def method_of(limits: RateLimits) -> Method:
    """The method that Envoy calls."""
    return Method(
        "ShouldRateLimit",
        limits.should_rate_limit,
        pb.RateLimitRequest,
        False,
        False,
        False,
        service=SERVICE,
        bytes_max=_BYTES_MAX,
        parsed=20,
    )


def _checked(request: pb.RateLimitRequest) -> Sequence[pb.RateLimitDescriptor]:
    """The descriptors of a request."""
    if not request.domain:
        raise InvalidArgument("domain is missing", field="domain")
    if not 1 <= len(request.descriptors) <= DESCRIPTORS_MAX:
        raise InvalidArgument(
            f"there are {len(request.descriptors)} descriptors",
            field="descriptors",
            limit=f"1 to {DESCRIPTORS_MAX} descriptors",
        )
    return request.descriptors


def _hits(request: pb.RateLimitRequest, descriptor: pb.RateLimitDescriptor) -> int:
    hits = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else request.hits_addend or 1
    if hits > HITS_MAX:
        raise InvalidArgument(f"hits_addend is {hits}", field="hits_addend", limit=f"{HITS_MAX} hits")
    return int(hits)


def _pairs(descriptor: pb.RateLimitDescriptor) -> Iterable[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in descriptor.entries]


def _plan_of(spec: WindowSpec) -> _Plan:
    """How limits are asked of a window.

    Raises:
        FailedPrecondition: it is not one for limits.
    """
    wrong = ""
    if not spec.keyed:
        wrong = "is not keyed"
    elif spec.time_unit == "none":
        wrong = "has logical time"
    elif len(spec.fields) != 1 or next(iter(spec.fields.values())) not in ("float64", "int64"):
        wrong = "has not one field of numbers"
    elif any((spec.slide.max_count, spec.slide.max_gap, spec.slide.when, spec.slide.adaptive)):
        wrong = "lets entries leave before they are too old, so that a limit would forget some"
    sums = [name for name, (monoid, _) in spec.monoids().items() if monoid.function == "sum"]
    if not wrong and not sums:
        wrong = "has no aggregate sum"
    if wrong:
        raise FailedPrecondition(
            f"window {spec.name!r} {wrong}: limits need keys, time, one field of numbers for the hits, its sum, and a "
            "slide by age alone",
            field="window",
        )
    return _Plan(spec, next(iter(spec.fields)), sums[0], NANOSECONDS_PER_TICK[spec.time_unit])


def _key(rule: Rule, spec: WindowSpec, descriptor: pb.RateLimitDescriptor) -> str:
    """The key of a descriptor's entries; no two rules of a domain share one."""
    pairs = _pairs(descriptor)
    if not spec.parts:
        return join([rule.domain, *(text for pair in pairs for text in pair)])
    of_entry = {rule.parts.get(part, part): part for part in spec.parts}
    values = dict.fromkeys(spec.parts, "")
    for name, value in pairs:
        part = of_entry.get(name)
        if part is None or values[part]:
            wrong = "is no part of a key" if part is None else "is there twice"
            raise FailedPrecondition(f"entry {name[:80]!r} {wrong} of window {spec.name!r}", field="descriptors")
        values[part] = value
    return join(list(values.values()))


async def _together(decisions: Sequence[Coroutine[Any, Any, _Told | None]]) -> Sequence[_Told | None]:
    """Take several decisions, which share a commit; raises the first error when all have been taken."""
    if len(decisions) == 1:
        return [await decisions[0]]
    found = await asyncio.gather(*decisions, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


def _near(told: _Told, hits: int) -> int:
    """How many of the hits that were admitted are near the limit."""
    after = told.limit.bound - told.remaining
    return max(min(hits, after - int(told.limit.bound * _NEAR)), 0)


def _tell(status: pb.RateLimitResponse.DescriptorStatus, told: _Told) -> None:
    limit, current = told.limit, status.current_limit
    current.requests_per_unit, current.name = limit.bound, limit.name
    if limit.unit:
        current.unit = _UNITS[limit.unit]
    if limit.multiplier > 1:
        current.unit_multiplier.value = limit.multiplier
    status.limit_remaining = told.remaining
    if told.reset_ns is not None:
        status.duration_until_reset.FromNanoseconds(told.reset_ns)


def _tightest(told: Sequence[_Told]) -> _Told:
    """The first limit that refuses; else the one that has least left."""
    return next((each for each in told if not each.holds), None) or min(told, key=lambda each: each.remaining)


def _add_headers(response: pb.RateLimitResponse, told: _Told) -> None:
    """Tell the client of Envoy about a limit."""
    values = {"Limit": told.limit.bound, "Remaining": told.remaining}
    if told.reset_ns is not None:
        values["Reset"] = -(-told.reset_ns // 10**9)
    for name, value in values.items():
        response.response_headers_to_add.add(key=f"X-RateLimit-{name}", value=str(value))
