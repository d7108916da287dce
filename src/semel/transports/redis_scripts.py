"""What Redis has to do in one step.

A partition of a topic belongs to one member of the group at a time. The lease says to whom: a
hash with one field per partition, `<member> <epoch>`. It holds while the member is in the sorted
set of members, whose scores are the times at which they expire. Redis's clock decides.

Reading is fenced: a member that lost a partition, without knowing it yet, gets nothing of it.
"""

from __future__ import annotations

# KEYS: streams... ARGV: for each message the number of its stream, and its fields in MessagePack.
# Returns the positions of what was not added, each with the reason. After the first refusal of a
# stream nothing more is added to it: later messages of a key must not overtake.
ADD = """
local failures, refused = {}, {}
for i = 1, #ARGV, 2 do
  local number = tonumber(ARGV[i])
  if not refused[number] then
    local answer = redis.pcall('XADD', KEYS[number], '*', unpack(cmsgpack.unpack(ARGV[i + 1])))
    if type(answer) == 'table' and answer.err then refused[number] = answer.err end
  end
  if refused[number] then failures[#failures + 1] = {(i - 1) / 2, refused[number]} end
end
return failures
"""

# KEYS: members, leases. ARGV: member, milliseconds to live, partitions, partitions given up...
# Returns the tokens of the partitions that are ours, and which of them are due to others.
TICK = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local me = ARGV[1]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], me)
local leases = {}
local flat = redis.call('HGETALL', KEYS[2])
for i = 1, #flat, 2 do leases[flat[i]] = flat[i + 1] end
for i = 4, #ARGV do
  local token = leases[ARGV[i]]
  if token and string.match(token, '^%S+') == me then
    redis.call('HDEL', KEYS[2], ARGV[i])
    leases[ARGV[i]] = nil
  end
end
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(members)
local alive = {}
for _, member in ipairs(members) do alive[member] = true end
local mine, others = {}, {}
for n = 0, ARGV[3] - 1 do
  local field = tostring(n)
  local token = leases[field]
  local owner = token and string.match(token, '^%S+')
  local due = members[n % #members + 1]
  if due == me and not (owner and alive[owner]) then
    token = me .. ' ' .. redis.call('HINCRBY', KEYS[2], 'epoch', 1)
    redis.call('HSET', KEYS[2], field, token)
    owner = me
  end
  if owner == me then
    mine[#mine + 1] = field
    mine[#mine + 1] = token
    if due ~= me then others[#others + 1] = field end
  end
end
return {mine, others}
"""

# KEYS: members, leases. ARGV: member.
LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
local flat = redis.call('HGETALL', KEYS[2])
for i = 1, #flat, 2 do
  if string.match(flat[i + 1], '^%S+') == ARGV[1] then redis.call('HDEL', KEYS[2], flat[i]) end
end
"""

# KEYS: leases, streams... ARGV: group, consumer, room, then a partition, a token and the last id
# that came per stream. Of a stream of which more was delivered, and never came, nothing is read:
# the answer was lost with its connection, or to a client that asks again on its own.
READ = """
local room, found = tonumber(ARGV[3]), {}
for i = 2, #KEYS do
  if room <= 0 then break end
  local field, token, last = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  if redis.call('HGET', KEYS[1], field) ~= token then
    -- It is another's by now.
  elseif redis.call('XPENDING', KEYS[i], ARGV[1], '(' .. last, '+', 1)[1] then
    found[#found + 1] = {field, false}
  else
    local answer = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room,
                              'STREAMS', KEYS[i], '>')
    if answer then
      found[#found + 1] = {field, answer[1][2]}
      room = room - #answer[1][2]
    end
  end
end
return found
"""

# KEYS: leases, stream. ARGV: group, consumer, partition, token, first id, count.
# Returns what nobody acked, oldest first, with how often it was delivered before; and where
# reading goes on.
RECOVER = """
if redis.call('HGET', KEYS[1], ARGV[3]) ~= ARGV[4] then return false end
local last = '0-0'
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
  local info = {}
  for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
  if info['name'] == ARGV[1] then last = info['last-delivered-id'] end
end
local pending = redis.call('XPENDING', KEYS[2], ARGV[1], ARGV[5], '+', ARGV[6])
local ids, counts = {}, {}
for i, entry in ipairs(pending) do
  ids[i] = entry[1]
  counts[i] = {entry[1], entry[4]}
end
local entries = {}
if #ids > 0 then
  entries = redis.call('XCLAIM', KEYS[2], ARGV[1], ARGV[2], 0, unpack(ids))
end
return {counts, entries, last}
"""

# KEYS: stream. ARGV: length to keep. Removes only what every group has acked; without a group,
# nothing.
TRIM = """
local excess = redis.call('XLEN', KEYS[1]) - ARGV[1]
if excess <= 0 then return 0 end
local function parts(id)
  local ms, number = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(number)
end
local floor_ms, floor_number
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local info = {}
  for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
  local ms, number = parts(info['last-delivered-id'])
  number = number + 1
  if info['pending'] > 0 then
    ms, number = parts(redis.call('XPENDING', KEYS[1], info['name'])[2])
  end
  if not floor_ms or ms < floor_ms or (ms == floor_ms and number < floor_number) then
    floor_ms, floor_number = ms, number
  end
end
if not floor_ms then return 0 end
local floor = string.format('%.0f-%.0f', floor_ms, floor_number)
return redis.call('XTRIM', KEYS[1], 'MINID', '~', floor, 'LIMIT', excess)
"""

# KEYS: streams... ARGV: group. Returns how many messages the group has not acked; -1: unknown.
LAG = """
local total = 0
for _, key in ipairs(KEYS) do
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local info = {}
    for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
    if info['name'] == ARGV[1] then
      if not info['lag'] then return -1 end
      total = total + info['lag'] + info['pending']
    end
  end
end
return total
"""
