-- Take a worker's sums and judge its asks, all in one step (metering/limits/messages.py).
--
-- KEYS[1]   wb:1:{T}:meta          hash: epoch, ready
-- KEYS[2]   wb:1:{T}:l             hash: the sums of all workers, by scope
-- KEYS[3]   wb:1:{T}:lw            hash: the workers
-- KEYS[4]   wb:1:{T}:l:<writer>    hash: this worker's part
-- KEYS[5..] wb:1:{T}:b:<window>    hash: scope -> spent; the windows of the message's budgets
-- ARGV      writer, the message
-- returns   the reply, MessagePack

local TAKEN, UNREADY, BEHIND, STALE, FORM = 0, 1, 2, 3, 4
local LEAVE = 1
local GRANTED, REQUESTS, TOKENS, CONCURRENCY, BUDGET = 0, 1, 2, 3, 4
local UNIT = 60000                  -- of a debt: one request is this many, so that a minute's limit comes back by the ms
local DEBT_MAX = 9000000000000000   -- below 2^53
local SILENT_MS = 20000
local WORDS_MAX = 4000             -- in one command: Lua's stack is bounded

local function hmget(key, fields)
  local found = {}
  for from = 1, #fields, WORDS_MAX do
    local till = math.min(#fields, from + WORDS_MAX - 1)
    for i, value in ipairs(redis.call('HMGET', key, unpack(fields, from, till))) do
      found[from + i - 1] = value
    end
  end
  return found
end

local function hset(key, words)
  for from = 1, #words, WORDS_MAX do
    redis.call('HSET', key, unpack(words, from, math.min(#words, from + WORDS_MAX - 1)))
  end
end

local writer, message = ARGV[1], cmsgpack.unpack(ARGV[2])
local number, base, kind, scopes, asks = unpack(message)

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function reply(status, at)
  return cmsgpack.pack({status, at, {}, {}})
end

local last, whole = 0, false
local known = redis.call('HGET', KEYS[3], writer)
if known then
  local said, _, is_whole = string.match(known, '^(%d+) (%d+) ([01])$')
  if not said then
    return reply(FORM, 0)
  end
  last, whole = tonumber(said), is_whole == '1'
end
if number <= last then
  return reply(STALE, last)
end
if base > 0 and not (whole and base == last) then
  return reply(BEHIND, last)
end

-- The scopes as they stand

local names, place_of = {}, {}
for i, scope in ipairs(scopes) do
  names[i] = scope[1]
  place_of[scope[1]] = i
end
local totals, parts, fresh = {}, {}, {}
local total_texts, part_texts = hmget(KEYS[2], names), hmget(KEYS[4], names)
for i = 1, #names do
  totals[i], parts[i], fresh[i] = read(total_texts[i], TOTAL), read(part_texts[i], PART), not part_texts[i]
  if not totals[i] or not parts[i] then
    return reply(FORM, last)
  end
end

-- What was spent

local key_of = {}
for i = 5, #KEYS do
  key_of[string.match(KEYS[i], '%d+$')] = KEYS[i]
end
local spent, spent_texts = {}, {}   -- by place of the scope, then of its budget
do
  local fields, places = {}, {}     -- by window
  for i, scope in ipairs(scopes) do
    spent[i], spent_texts[i] = {}, {}
    for j, budget in ipairs(scope[9]) do
      local window = budget[1]
      fields[window] = fields[window] or {}
      places[window] = places[window] or {}
      table.insert(fields[window], scope[1])
      table.insert(places[window], {i, j})
    end
  end
  for window, names_of in pairs(fields) do
    local texts = hmget(key_of[window], names_of)
    for k, place in ipairs(places[window]) do
      local text = texts[k] or '0'
      if not string.match(text, '^%d+$') then
        return reply(FORM, last)
      end
      spent[place[1]][place[2]], spent_texts[place[1]][place[2]] = amount(text), text
    end
  end
end

-- A message without a base has all there is: what it does not name is gone.
if base == 0 and known then
  local all = redis.call('HGETALL', KEYS[4])
  for i = 1, #all, 2 do
    local name = all[i]
    if not place_of[name] then
      local part, total = read(all[i + 1], PART), read(redis.call('HGET', KEYS[2], name), TOTAL)
      if part and total then
        take_out(total, part, true)
        redis.call('HSET', KEYS[2], name, written(total, TOTAL))
      end
      redis.call('HDEL', KEYS[4], name)
    end
  end
end
if kind == LEAVE then
  redis.call('DEL', KEYS[4])
  redis.call('HDEL', KEYS[3], writer)
  return reply(TAKEN, number)
end

-- The worker's sums

-- What has come back of a rate since it was looked at last.
local function drain(total, place, limit)
  if limit > 0 then
    local elapsed = now - total[place + 1]
    if elapsed > 0 and total[place] > 0 then
      total[place] = math.max(0, total[place] - elapsed * limit)
    end
    total[place + 1] = now
  end
end

local function owe(total, place, units)
  total[place] = math.min(DEBT_MAX, math.max(0, total[place] + units * UNIT))
end

for i, scope in ipairs(scopes) do
  local total, part = totals[i], parts[i]
  drain(total, 2, scope[6])
  drain(total, 4, scope[7])
  if not fresh[i] then
    owe(total, 2, scope[3] - part[2])
    owe(total, 4, scope[4] - part[3])
  end
  take_out(total, part, true)
  total[1] = total[1] + scope[2]
  part[1], part[2], part[3] = scope[2], scope[3], scope[4]
  for _, one in ipairs(scope[5]) do
    local window, sum = one[1], amount(one[2])
    part.held[window] = sum
    total.held[window] = plus(total.held[window] or {0, 0}, sum)
  end
end

-- Workers that were silent for too long have nothing under way

local looked = false
local function forget_the_silent()
  if looked then
    return false
  end
  looked = true
  local found = false
  local workers = redis.call('HGETALL', KEYS[3])
  for i = 1, #workers, 2 do
    local name = workers[i]
    local at, seen, is_whole = string.match(workers[i + 1], '^(%d+) (%d+) ([01])$')
    if name ~= writer and is_whole == '1' and now - tonumber(seen) > SILENT_MS then
      found = true
      local key = KEYS[2] .. ':' .. name
      local theirs = redis.call('HGETALL', key)
      for j = 1, #theirs, 2 do
        local part, place = read(theirs[j + 1], PART), place_of[theirs[j]]
        local total = place and totals[place] or read(redis.call('HGET', KEYS[2], theirs[j]), TOTAL)
        if part and total and part[1] > 0 then
          take_out(total, part, false)
          redis.call('HSET', key, theirs[j], written(part, PART))
          if not place then
            redis.call('HSET', KEYS[2], theirs[j], written(total, TOTAL))
          end
        end
      end
      redis.call('HSET', KEYS[3], name, at .. ' ' .. seen .. ' 0')
    end
  end
  return found
end

-- The asks, in order

-- Why a rate refuses: until when; nil: it does not.
local function wait(debt, units, limit)
  if limit == 0 then
    return nil
  end
  if units > limit then
    return -1
  end
  local over = debt + (units - limit) * UNIT
  if over <= 0 then
    return nil
  end
  local ms = math.floor(over / limit)
  return ms * limit < over and ms + 1 or ms
end

local function judge(ask)
  local hold = amount(ask[3])
  for _, index in ipairs(ask[1]) do
    local i = index + 1
    for j, budget in ipairs(scopes[i][9]) do
      if budget[3] == 1 then
        local held = totals[i].held[budget[1]] or {0, 0}
        if above(plus(plus(spent[i][j], held), hold), amount(budget[2])) then
          return {BUDGET, index, -1, j - 1}
        end
      end
    end
  end
  for _, index in ipairs(ask[1]) do
    local i = index + 1
    local concurrency = scopes[i][8]
    if concurrency > 0 and totals[i][1] + 1 > concurrency then
      if not forget_the_silent() or totals[i][1] + 1 > concurrency then
        return {CONCURRENCY, index, -1, 0}
      end
    end
  end
  local verdict = nil
  for _, index in ipairs(ask[1]) do
    local total, scope = totals[index + 1], scopes[index + 1]
    local of_requests, of_tokens = wait(total[2], 1, scope[6]), wait(total[4], ask[2], scope[7])
    if of_requests and not (verdict and (verdict[3] < 0 or verdict[3] >= of_requests)) then
      verdict = {REQUESTS, index, of_requests, 0}
    end
    if of_tokens and not (verdict and (verdict[3] < 0 or (of_tokens >= 0 and verdict[3] >= of_tokens))) then
      verdict = {TOKENS, index, of_tokens, 0}
    end
  end
  return verdict
end

local function admit(ask)
  local hold = amount(ask[3])
  for _, index in ipairs(ask[1]) do
    local i = index + 1
    local total, part, scope = totals[i], parts[i], scopes[i]
    total[1], part[1] = total[1] + 1, part[1] + 1
    if scope[6] > 0 then
      owe(total, 2, 1)
      part[2] = part[2] + 1
    end
    if scope[7] > 0 then
      owe(total, 4, ask[2])
      part[3] = part[3] + ask[2]
    end
    for _, budget in ipairs(scope[9]) do
      local window = budget[1]
      total.held[window] = plus(total.held[window] or {0, 0}, hold)
      part.held[window] = plus(part.held[window] or {0, 0}, hold)
    end
  end
end

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'ready')
local ready = meta[1] and meta[1] == meta[2]
local verdicts = {}
if ready then
  for k, ask in ipairs(asks) do
    verdicts[k] = judge(ask)
    if not verdicts[k] then
      admit(ask)
      verdicts[k] = {GRANTED}
    end
  end
end

-- All of it back

local stands = {}
local total_words, part_words = {}, {}
for i = 1, #names do
  total_words[2 * i - 1], total_words[2 * i] = names[i], written(totals[i], TOTAL)
  part_words[2 * i - 1], part_words[2 * i] = names[i], written(parts[i], PART)
  stands[i] = {totals[i][1], totals[i][2], totals[i][4], spent_texts[i]}
end
hset(KEYS[2], total_words)
hset(KEYS[4], part_words)
redis.call('HSET', KEYS[3], writer, string.format('%.0f %.0f 1', number, now))
return cmsgpack.pack({ready and TAKEN or UNREADY, number, verdicts, stands})
