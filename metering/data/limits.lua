-- Take a worker's sums and judge its asks, all in one step (metering/limits/messages.py).
--
-- KEYS[1]   wb:1:{T}:meta          hash: epoch, ready
-- KEYS[2]   wb:1:{T}:l             hash: the sums of all workers, by scope
-- KEYS[3]   wb:1:{T}:lw            hash: the workers
-- KEYS[4]   wb:1:{T}:l:<writer>    hash: this worker's part
-- KEYS[5..] wb:1:{T}:b:<window>    hash: scope -> spent; the windows of the message's budgets
-- ARGV      writer, the message
-- returns   the reply, MessagePack
--
-- It runs for each call, so it makes few tables and reads each hash once. All checks come before the first write.

local TAKEN, UNREADY, BEHIND, STALE, FORM = 0, 1, 2, 3, 4
local LEAVE, LOOK = 1, 2
local GRANTED, REQUESTS, TOKENS, CONCURRENCY, BUDGET = 0, 1, 2, 3, 4
local UNIT = 60000                  -- of a debt: one request is this many, so that a minute's limit comes back by the ms
local DEBT_MAX = 9000000000000000   -- below 2^53
local ROUND = 4503599627370496      -- 2^52: what was taken is counted modulo this
local SILENT_MS = 20000
local SEEN_MS = 1000                -- how often it is written that a worker was seen
local WORDS_MAX = 4000              -- in one command: Lua's stack is bounded
-- of a scope in a message
local NAME, RUNNING, TAKEN_REQUESTS, TAKEN_TOKENS = 1, 2, 3, 4
local PER_MINUTE, TOKENS_PER_MINUTE, AT_ONCE, HELD, BUDGETS = 5, 6, 7, 8, 9

local writer = ARGV[1]
local number, base, kind, scopes, asks = unpack(unpacked(ARGV[2]))
local call, floor = redis.call, math.floor

local time = call('TIME')
local now = time[1] * 1000 + floor(time[2] / 1000)

local function reply(status, at)
  return pack({status, at, {}, {}, {}})
end

local function hmget(key, fields)
  if #fields <= WORDS_MAX then
    return call('HMGET', key, unpack(fields))
  end
  local found = {}
  for from = 1, #fields, WORDS_MAX do
    local till = math.min(#fields, from + WORDS_MAX - 1)
    for i, value in ipairs(call('HMGET', key, unpack(fields, from, till))) do
      found[from + i - 1] = value
    end
  end
  return found
end

local function hset(key, words)
  if #words <= WORDS_MAX then
    call('HSET', key, unpack(words))
    return
  end
  for from = 1, #words, WORDS_MAX do
    call('HSET', key, unpack(words, from, math.min(#words, from + WORDS_MAX - 1)))
  end
end

-- The scopes as they stand

local names = {}
for i = 1, #scopes do
  names[i] = scopes[i][NAME]
end
local count = #names
names[count + 1] = ABOUT
local parts = hmget(KEYS[4], names)
names[count + 1] = nil

local last, whole, seen = 0, false, -SEEN_MS
local known = parts[count + 1]
if known then
  local about = read(known, PART)
  if not about then
    return reply(FORM, 0)
  end
  last, whole, seen = about[1], about[2] == 1, about[3]
end
if number <= last then
  return reply(STALE, last)
end
if base > 0 and not (whole and base == last) then
  return reply(BEHIND, last)
end
local totals = {}
if count > 0 then
  totals = hmget(KEYS[2], names)
  for i = 1, count do
    if totals[i] then
      totals[i] = read(totals[i], TOTAL)
    else
      totals[i] = {0, 0, 0, 0, 0}
    end
    if parts[i] then
      parts[i] = read(parts[i], PART)
      if not parts[i] then
        return reply(FORM, last)
      end
    end
    if not totals[i] then
      return reply(FORM, last)
    end
  end
end

-- What was spent of the budgets: by scope, two halves for each of its budgets, in their order

local spent, spent_texts = {}, {}
for k = 5, #KEYS do
  local window, texts = tonumber(string.match(KEYS[k], '%d+$')), nil
  for i = 1, count do
    local budgets = scopes[i][BUDGETS]
    for j = 1, #budgets, 4 do
      if budgets[j] == window then
        texts = texts or hmget(KEYS[k], names)
        local text = texts[i] or '0'
        local size = #text
        local high, low = 0, nil
        if size <= 10 then
          low = tonumber(text)
        else
          high, low = tonumber(string.sub(text, 1, -11)), tonumber(string.sub(text, -10))
        end
        if not high or not low or high < 0 or low < 0 then
          return reply(FORM, last)
        end
        local of, place = spent[i], (j + 1) / 2
        if not of then
          of = {}
          spent[i], spent_texts[i] = of, {}
        end
        of[place], of[place + 1] = high, low
        spent_texts[i][(j + 3) / 4] = text
      end
    end
  end
end

-- A message without a base has all there is: what it does not name is gone.
if base == 0 and known then
  local named = {[ABOUT] = true}
  for i = 1, count do
    named[names[i]] = true
  end
  local all = call('HGETALL', KEYS[4])
  for i = 1, #all, 2 do
    local name = all[i]
    if not named[name] then
      local part, total = read(all[i + 1], PART), read(call('HGET', KEYS[2], name) or '', TOTAL)
      if part and total then
        take_out(total, part, true)
        call('HSET', KEYS[2], name, written(total, TOTAL + 1))
      end
      call('HDEL', KEYS[4], name)
    end
  end
end
if kind == LEAVE then
  call('DEL', KEYS[4])
  call('HDEL', KEYS[3], writer)
  return reply(TAKEN, number)
end

-- The worker's sums

-- What is left of a debt, less or more so much.
local function owed(debt, more)
  debt = debt + more
  if debt < 0 then
    return 0
  end
  return debt > DEBT_MAX and DEBT_MAX or debt
end

-- What was taken, or given back, between two counts.
local function since(taken, before)
  local more = taken - before
  if more >= ROUND / 2 then
    return more - ROUND
  end
  return more < -ROUND / 2 and more + ROUND or more
end

-- What has come back of a rate since it was looked at last.
local function drain(total, place, limit)
  local elapsed, debt = now - total[place + 1], total[place]
  if debt > 0 and elapsed > 0 then
    debt = debt - elapsed * limit
    total[place] = debt > 0 and debt or 0
  end
  total[place + 1] = now
end

for i = 1, count do
  local scope, total, part = scopes[i], totals[i], parts[i]
  if scope[PER_MINUTE] > 0 then
    drain(total, 2, scope[PER_MINUTE])
  end
  if scope[TOKENS_PER_MINUTE] > 0 then
    drain(total, 4, scope[TOKENS_PER_MINUTE])
  end
  if part then
    if scope[TAKEN_REQUESTS] ~= part[2] then
      total[2] = owed(total[2], since(scope[TAKEN_REQUESTS], part[2]))
    end
    if scope[TAKEN_TOKENS] ~= part[3] then
      total[4] = owed(total[4], since(scope[TAKEN_TOKENS], part[3]))
    end
    take_out(total, part, true)
  end
  total[1] = total[1] + scope[RUNNING]
  local held = scope[HELD]
  part = {scope[RUNNING], scope[TAKEN_REQUESTS], scope[TAKEN_TOKENS], unpack(held)}
  parts[i] = part
  for j = 1, #held, 3 do
    hold(total, TOTAL + 1, held[j], held[j + 1], held[j + 2])
  end
end

-- Workers that were silent for too long have nothing under way

local looked = false
local function forget_the_silent()
  if looked then
    return
  end
  looked = true
  local place_of = {}
  for i = 1, count do
    place_of[names[i]] = i
  end
  local workers = call('HGETALL', KEYS[3])
  for i = 1, #workers, 2 do
    local name = workers[i]
    if name ~= writer and now - workers[i + 1] > SILENT_MS then
      local key = KEYS[2] .. ':' .. name
      local theirs = call('HGETALL', key)
      for j = 1, #theirs, 2 do
        local scope, part = theirs[j], read(theirs[j + 1], PART)
        if scope == ABOUT then
          if part then
            part[2] = 0             -- it has to say all again
            call('HSET', key, scope, pack(part))
          end
        elseif part and part[1] > 0 then
          local place = place_of[scope]
          local total = place and totals[place] or read(call('HGET', KEYS[2], scope) or '', TOTAL)
          if total then
            take_out(total, part, false)
            part[1] = 0
            call('HSET', key, scope, pack(part))
            if not place then
              call('HSET', KEYS[2], scope, written(total, TOTAL + 1))
            end
          end
        end
      end
      call('HDEL', KEYS[3], name)   -- until it says something again
    end
  end
end

-- The asks, in order: an ask is its tokens, both halves of its hold, and the places of its scopes

-- Until when a rate refuses, ms; -1: it always will; nil: it does not.
local function wait(debt, units, limit)
  if units > limit then
    return -1
  end
  local over = debt + (units - limit) * UNIT
  if over <= 0 then
    return nil
  end
  local ms = floor(over / limit)
  return ms * limit < over and ms + 1 or ms
end

local function over_budget(i, ask)
  local budgets, of, total = scopes[i][BUDGETS], spent[i], totals[i]
  for j = 1, #budgets, 4 do
    if budgets[j + 3] == 1 then
      local place = (j + 1) / 2
      local high, low = of[place] + ask[2], of[place + 1] + ask[3]
      local at = find(total, TOTAL + 1, budgets[j])
      if at then
        high, low = high + total[at + 1], low + total[at + 2]
      end
      while low >= HALF_RANGE do
        high, low = high + 1, low - HALF_RANGE
      end
      if high > budgets[j + 1] or (high == budgets[j + 1] and low > budgets[j + 2]) then
        return (j - 1) / 4
      end
    end
  end
end

local function judge(ask)
  for k = 4, #ask do
    local budget = over_budget(ask[k] + 1, ask)
    if budget then
      return {BUDGET, ask[k], -1, budget}
    end
  end
  for k = 4, #ask do
    local i = ask[k] + 1
    local at_once = scopes[i][AT_ONCE]
    if at_once > 0 and totals[i][1] + 1 > at_once then
      forget_the_silent()
      if totals[i][1] + 1 > at_once then
        return {CONCURRENCY, ask[k], -1, 0}
      end
    end
  end
  local worst, verdict = 0, nil
  for k = 4, #ask do
    local i = ask[k] + 1
    local scope, total = scopes[i], totals[i]
    local ms = scope[PER_MINUTE] > 0 and wait(total[2], 1, scope[PER_MINUTE])
    if ms and worst >= 0 and ms > worst then
      worst, verdict = ms, {REQUESTS, ask[k], ms, 0}
    end
    ms = scope[TOKENS_PER_MINUTE] > 0 and wait(total[4], ask[1], scope[TOKENS_PER_MINUTE])
    if ms and worst >= 0 and (ms < 0 or ms > worst) then
      worst, verdict = ms, {TOKENS, ask[k], ms, 0}
    end
  end
  return verdict
end

local function admit(ask)
  local tokens, high, low = ask[1], ask[2], ask[3]
  for k = 4, #ask do
    local i = ask[k] + 1
    local total, part, scope = totals[i], parts[i], scopes[i]
    total[1], part[1] = total[1] + 1, part[1] + 1
    if scope[PER_MINUTE] > 0 then
      total[2], part[2] = owed(total[2], UNIT), (part[2] + UNIT) % ROUND
    end
    if scope[TOKENS_PER_MINUTE] > 0 then
      total[4], part[3] = owed(total[4], tokens * UNIT), (part[3] + tokens * UNIT) % ROUND
    end
    local budgets = scope[BUDGETS]
    for j = 1, #budgets, 4 do
      local window = budgets[j]
      local first = true
      for before = 1, j - 1, 4 do
        first = first and budgets[before] ~= window
      end
      if first then                 -- a hard and a soft budget share a window
        hold(total, TOTAL + 1, window, high, low)
        hold(part, PART + 1, window, high, low)
      end
    end
  end
end

local verdicts, ready = {}, true
if #asks > 0 or kind == LOOK then
  local meta = call('HMGET', KEYS[1], 'epoch', 'ready')
  ready = meta[1] and meta[1] == meta[2]
  if ready then
    for k = 1, #asks do
      local verdict = judge(asks[k])
      if not verdict then
        admit(asks[k])
      end
      verdicts[k] = verdict or GRANTED
    end
  end
end

-- All of it back

local stands, texts, total_words, part_words = {}, {}, {}, {}
for i = 1, count do
  local total = totals[i]
  total_words[2 * i - 1], total_words[2 * i] = names[i], written(total, TOTAL + 1)
  part_words[2 * i - 1], part_words[2 * i] = names[i], written(parts[i], PART + 1)
  local at = 3 * i - 2
  stands[at], stands[at + 1], stands[at + 2] = total[1], total[2], total[4]
  local of = kind == LOOK and spent_texts[i]
  if of then
    for j = 1, #of do
      texts[#texts + 1] = of[j]
    end
  end
end
if count > 0 then
  hset(KEYS[2], total_words)
end
if now - seen >= SEEN_MS or not whole then
  seen = now
  call('HSET', KEYS[3], writer, string.format('%.0f', now))
end
part_words[2 * count + 1], part_words[2 * count + 2] = ABOUT, pack({number, 1, seen})
hset(KEYS[4], part_words)
return pack({ready and TAKEN or UNREADY, number, verdicts, stands, texts})
