"""What people write by hand: a sorted set for each key, folded in the server by scripts in Lua."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from bench.peers.systems.redis_timeseries import System as Redis
from bench.peers.work import LOOKBACKS_MS, SERIES_LOOKBACK_MS, Floats, Ints, Sketches, Trailing
from bench.peers.work import key_of as named

TRAILING = """
local now = tonumber(ARGV[1])
local rows = redis.call('zrangebyscore', KEYS[1], '(' .. now - tonumber(ARGV[#ARGV]), now)
local out, n, sum, most, at = {}, 0, 0, -math.huge, #rows
for l = 2, #ARGV do
    local since = now - tonumber(ARGV[l])
    while at > 0 do
        local time, value = string.match(rows[at], '(%d+):(.+)')
        if tonumber(time) <= since then break end
        value = tonumber(value)
        n, sum, at = n + 1, sum + value, at - 1
        if value > most then most = value end
    end
    out[#out + 1] = {n, string.format('%.17g', sum / n), string.format('%.17g', most)}
end
return out
"""
"""Counts, means and maxima over lookbacks, the shortest first; the rows are read once."""

SERIES = """
local lookback, first, last = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[#ARGV])
local rows = redis.call('zrangebyscore', KEYS[1], '(' .. first - lookback, last)
local times, values, means, tops = {}, {}, {}, {}
for i = 1, #rows do
    local time, value = string.match(rows[i], '(%d+):(.+)')
    times[i], values[i] = tonumber(time), tonumber(value)
end
-- `from` to `to` is the window; `larger`, from `head` to `tail`, are its entries that no later one is larger than.
local from, to, sum, larger, head, tail = 1, 0, 0, {}, 1, 0
for e = 2, #ARGV do
    local now = tonumber(ARGV[e])
    while to < #rows and times[to + 1] <= now do
        to = to + 1
        sum = sum + values[to]
        while tail >= head and values[larger[tail]] <= values[to] do tail = tail - 1 end
        tail = tail + 1
        larger[tail] = to
    end
    while times[from] <= now - lookback do
        sum = sum - values[from]
        if larger[head] == from then head = head + 1 end
        from = from + 1
    end
    means[#means + 1] = string.format('%.17g', sum / (to - from + 1))
    tops[#tops + 1] = string.format('%.17g', values[larger[head]])
end
return {means, tops}
"""

SKETCHES = """
local rows = redis.call('zrangebyscore', KEYS[1], '(' .. ARGV[1] - ARGV[2], ARGV[1])
local values, seen, distinct = {}, {}, 0
for i = 1, #rows do
    local value = tonumber(string.match(rows[i], ':(.+)'))
    values[i] = value
    if not seen[value] then seen[value] = true; distinct = distinct + 1 end
end
table.sort(values)
local function at(q)
    local place = 1 + q * (#values - 1)
    local low = math.floor(place)
    return string.format('%.17g', values[low] + (place - low) * ((values[low + 1] or values[low]) - values[low]))
end
return {at(0.5), at(0.99), distinct}
"""


class System(Redis):
    name = "Redis, sorted sets"

    def version(self) -> str:
        return str(self._redis.info("server")["redis_version"])

    def modules(self) -> list[str]:
        return []

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        members: dict[str, dict[str, int]] = {}
        for time, code, value in zip(times.tolist(), codes.tolist(), values.tolist(), strict=True):
            members.setdefault(named(code), {})[f"{time}:{value!r}"] = time
        return [["ZADD", key, *chain(*((time, each) for each, time in rows.items()))] for key, rows in members.items()]

    def bulk(self, prepared: Any) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for command in prepared:
            pipe.execute_command(*command)
        pipe.execute()

    def single(self, time_ms: int, code: int, value: float) -> None:
        self._redis.zadd(named(code), {f"{time_ms}:{value!r}": time_ms})

    def trailing(self, code: int, now_ms: int) -> Trailing:
        found: Any = self._redis.eval(TRAILING, 1, named(code), now_ms, *LOOKBACKS_MS)
        return [(count, float(mean), float(most)) for count, mean, most in found]

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        found: Any = self._redis.eval(SERIES, 1, named(code), SERIES_LOOKBACK_MS, *ends.tolist())
        means, tops = (np.array(column, dtype=np.float64) for column in found)
        return means, tops

    def sketches(self, code: int, now_ms: int) -> Sketches:
        found: Any = self._redis.eval(SKETCHES, 1, named(code), now_ms, LOOKBACKS_MS[-1])
        return Sketches(*map(float, found))
