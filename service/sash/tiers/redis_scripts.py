"""The scripts that run on the Redis server: each checks the fence in the same step as it writes."""

from __future__ import annotations

# A full server refuses the first write of a script if it needs memory, and none after it. So a script first sets the
# fence, which shows whether the server is full. If it is, the first write is an UNLINK, and all writes succeed.
_CHECK = b"""
local fence = redis.call('GET', KEYS[1])
if not fence then return 'LOST' end
local id, digits = string.match(fence, '^(%x+) (%d+)$')
if id ~= ARGV[1] then return 'TAKEN' end
local number = tonumber(digits)
if number < tonumber(ARGV[2]) then return 'LOST' end
local function begin(digits)
  local told = redis.pcall('SET', KEYS[1], id .. ' ' .. digits)
  if not told.err then return 'DONE' end
  if not string.find(told.err, 'OOM', 1, true) then return told end
  redis.call('UNLINK', KEYS[1])
  redis.call('SET', KEYS[1], id .. ' ' .. digits)
  return 'FULL'
end
"""
# KEYS: fence, keys to put, keys to delete. ARGV: id, number of the last answered commit, number of this one, values.
COMMIT = (
    _CHECK
    + b"""
if number >= tonumber(ARGV[3]) then return 'LATE' end
local verdict = begin(ARGV[3])
if type(verdict) == 'table' then return verdict end
local puts = #ARGV - 3
for i = 1, puts do redis.call('SET', KEYS[i + 1], ARGV[i + 3]) end
for i = puts + 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return verdict
"""
)
# KEYS: fence, owner. ARGV: id, number of the last answered commit, token, lease in ms (0: give it back).
RENEW = (
    _CHECK
    + b"""
local verdict = begin(digits)
if type(verdict) == 'table' then return verdict end
redis.call('UNLINK', KEYS[2])
if ARGV[4] ~= '0' then redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4]) end
return verdict
"""
)
# KEYS: fence, owner. ARGV: id, token, lease in ms, token of an owner that is gone.
# It answers with the number of the last commit, or with the owner and its lease. A new owner goes on from that number.
# For this script may run late, too, and give the fence to an earlier owner. If a later owner has committed meanwhile, a
# late commit of the earlier one has no higher number than the fence, and is refused.
ACQUIRE = b"""
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[2] and owner ~= ARGV[4] then return {owner, redis.call('PTTL', KEYS[2])} end
redis.call('UNLINK', KEYS[2])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
local id, digits = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+) (%d+)$')
digits = digits or '0'
if id ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. digits) end
return tonumber(digits)
"""
