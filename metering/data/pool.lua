-- One pool: the slots of one backend, over all workers and gateways. Take what a worker says, give what is free to
-- those whose turn it is, and wake who has got something. Words and rules: deploy/reference/ledger.md, «Pools».
--
-- KEYS[1]   wb:1:{pool:<backend>}:slots
-- ARGV[1]   the message (MessagePack, metering/limits/pool_messages.py); '' with ARGV[2] and on: names of dead workers
-- returns   the reply (MessagePack); '' for dead workers

local CALL_MS, QUIET_MS, SILENT_MS, SETTLE_MS, FORGET_MS, KEPT_MS = 150, 3000, 20000, 20000, 30000, 3600000
local RETURN_CALLS = 2
local SPARE = ''

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local packed = redis.call('GET', KEYS[1])
local state = packed and cmsgpack.unpack(packed) or nil

local function charge(tenant, virtual)
  local known = state.tenants[tenant]
  state.tenants[tenant] = {(known and known[1] or 0) + virtual, now}
end

local function grant(mine, tenant, work, share)
  mine.granted = mine.granted + 1
  mine.pend[#mine.pend + 1] = {tenant, work, share}
end

local function count(map)
  local found = 0
  for _ in pairs(map) do found = found + 1 end
  return found
end

-- Whose turn it is: the highest class, in it the least virtual work, of that tenant's calls the oldest.
local function turn()
  local best, best_tenant, best_name, best_virtual
  for name, mine in pairs(state.members) do
    for tenant, line in pairs(mine.lines) do
      local virtual = state.tenants[tenant] and state.tenants[tenant][1] or 0
      local before = best == nil
      if not before then
        if line[1] ~= best[1] then before = line[1] > best[1]
        elseif virtual ~= best_virtual then before = virtual < best_virtual
        elseif line[4] ~= best[4] then before = line[4] < best[4]
        elseif tenant ~= best_tenant then before = tenant < best_tenant
        else before = name < best_name end
      end
      if before then best, best_tenant, best_name, best_virtual = line, tenant, name, virtual end
    end
  end
  return best, best_tenant, best_name
end

local function told(mine)
  local tenants = {}
  for index, one in ipairs(mine.pend) do tenants[index] = one[1] end
  return {state.gen, mine.granted, tenants, state.contended, state.alone}
end

local function order(speaker)
  for name, until_ms in pairs(state.missing) do
    if until_ms < now then state.missing[name] = nil end
  end
  local cap, held, members = nil, 0, 0
  for _, mine in pairs(state.members) do
    cap = cap and math.min(cap, mine.slots) or mine.slots
    local its = mine.holds + #mine.pend
    if mine.at < now - QUIET_MS then its = math.max(its, math.ceil(mine.slots / mine.known)) end
    held = held + its
    members = members + 1
  end
  local free = (cap or 0) - held
  local settling = next(state.missing) ~= nil
  local wake = {}
  local was_alone = state.alone == 1
  state.alone = (members == 1 and not settling) and 1 or 0
  if was_alone and state.alone == 0 then
    for name in pairs(state.members) do wake[name] = true end
  end
  while free > 0 and not settling do
    local line, tenant, name = turn()
    if not line then break end
    state.last[tostring(line[1])] = tenant
    charge(tenant, line[5] / line[2])
    grant(state.members[name], tenant, line[5], line[2])
    line[3] = line[3] - 1
    if line[3] == 0 then state.members[name].lines[tenant] = nil end
    free = free - 1
    wake[name] = true
  end
  if state.alone == 1 then
    local name, mine = next(state.members)
    for _ = 1, free do grant(mine, SPARE, 0, 1) end
    if free > 0 then wake[name] = true end
  end
  local waits = {}
  for _, mine in pairs(state.members) do
    for tenant in pairs(mine.lines) do waits[tenant] = true end
  end
  state.contended = (free < 0 or next(waits)) and 1 or 0
  for tenant, known in pairs(state.tenants) do
    if known[2] < now - FORGET_MS and not waits[tenant] then state.tenants[tenant] = nil end
  end
  for name, mine in pairs(state.members) do
    if state.contended == 1 and mine.idle > 0 and name ~= speaker then
      mine.idle = 0
      wake[name] = true
    end
    if wake[name] and name ~= speaker then
      redis.call('PUBLISH', 'wb:1:pools:' .. name, cmsgpack.pack({KEYS[1], told(mine)}))
    end
  end
  redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', KEPT_MS)
end

if ARGV[1] == '' then
  if state then
    for index = 2, #ARGV do
      if state.members[ARGV[index]] then
        state.members[ARGV[index]] = nil
        state.version = state.version + 1
      end
      state.missing[ARGV[index]] = nil
    end
    order('')
  end
  return ''
end

local id, gen, number, acked, slots, seen, holds, idle, version, lines, service, roster, leaving =
  unpack(cmsgpack.unpack(ARGV[1]))
if not state then
  state = {gen = id .. ':' .. string.format('%.0f', number), version = 0, alone = 0, contended = 0,
           members = {}, tenants = {}, last = {}, missing = {}}
  if gen == '' then  -- nobody knows whether it is the first one: those that were there before are called
    state.missing['*'] = now + CALL_MS
    redis.call('PUBLISH', 'wb:1:pools', cmsgpack.pack({KEYS[1], {'', 0, {}, 0, 0}}))
  end
end
local same = gen == state.gen
local mine = state.members[id]

local function reply(who)
  local members = {}
  if version ~= state.version then
    for name in pairs(state.members) do members[#members + 1] = name end
    table.sort(members)
  end
  local settling = next(state.missing) ~= nil and 1 or 0
  local said = told(mine)
  for _, one in ipairs({mine.number, who and 1 or 0, settling, state.version}) do
    said[#said + 1] = one
  end
  said[#said + 1] = members
  return cmsgpack.pack(said)
end

if mine and number <= mine.number then return reply(false) end
for name, other in pairs(state.members) do
  if other.at < now - SILENT_MS and name ~= id then
    state.members[name] = nil
    state.version = state.version + 1
  end
end
if not mine then
  mine = {number = 0, granted = same and seen or 0, pend = {}, last = {}, lines = {}}
  state.members[id] = mine
  state.version = state.version + 1
end

-- The others of an earlier life of this pool may hold slots: until they have said so, nothing is given.
state.missing[id] = nil
local who = not same and gen ~= '' and #roster == 0
if who then
  state.missing['?' .. id] = now + SETTLE_MS
elseif #roster > 0 then
  state.missing['?' .. id] = nil
  for _, name in ipairs(roster) do
    if not state.members[name] and not state.missing[name] then state.missing[name] = now + SETTLE_MS end
  end
end

-- Grants that it has seen are from now on in what it holds and in its own service.
local confirmed = (same and seen or 0) - (mine.granted - #mine.pend)
confirmed = math.min(math.max(confirmed, 0), #mine.pend)
local left = {}
for index, one in ipairs(mine.pend) do
  if index > confirmed then
    left[#left + 1] = one
  elseif one[1] ~= SPARE then
    charge(one[1], -one[2] / one[3])
  end
end
mine.pend = left
-- A store that lost its last seconds knows less than it had given.
if same then mine.granted = math.max(mine.granted, seen) end

if acked == mine.number then mine.last = {} end
for _, one in ipairs(service) do
  local tenant, base, now_is, share = unpack(one)
  local before = mine.last[tenant] or base
  mine.last[tenant] = now_is
  charge(tenant, (now_is - before) / share)
end

local waited, pending = {}, {}
for _, other in pairs(state.members) do
  for tenant, line in pairs(other.lines) do waited[tenant] = math.max(line[1], waited[tenant] or 0) end
end

-- The least virtual work of those that wait in a class; if nobody does, that of who was served last.
local function present(priority)
  local least
  for tenant, its in pairs(waited) do
    if its == priority then
      local virtual = state.tenants[tenant] and state.tenants[tenant][1] or 0
      least = least and math.min(least, virtual) or virtual
    end
  end
  local last = state.tenants[state.last[tostring(priority)] or SPARE]
  return least or (last and last[1])
end

for _, one in ipairs(mine.pend) do pending[one[1]] = (pending[one[1]] or 0) + 1 end
mine.lines = {}
for _, one in ipairs(lines) do
  local tenant, priority, share, waiting, age_ms, work, credit = unpack(one)
  local now_is = not waited[tenant] and present(priority)
  if now_is then
    local floor = now_is - RETURN_CALLS * credit / share
    local virtual = state.tenants[tenant] and state.tenants[tenant][1] or floor
    state.tenants[tenant] = {math.max(virtual, floor), now}
  end
  waiting = waiting - (pending[tenant] or 0)
  if waiting > 0 then mine.lines[tenant] = {priority, share, waiting, now - age_ms, work} end
end
mine.number, mine.at, mine.holds, mine.idle, mine.slots = number, now, holds, idle, slots
mine.known = count(state.members)

if leaving == 1 then
  state.members[id] = nil
  state.version = state.version + 1
end
order(id)
return reply(who)
