-- Take one batch of postings of one (tenant, writer), or say why not. All checks come before any write.
--
-- KEYS[1]   wb:1:{T}:m            hash: writer -> seq:leaf
-- KEYS[2]   wb:1:{T}:meta         hash: floor -> yyyymmddhh; hours below it are closed
-- KEYS[3..] wb:1:{T}:h:<hour>     hash: field -> integer
--           wb:1:{T}:w:<hour>     hash: writer|unit -> integer, behind the former
--           wb:1:{T}:b:<window>   hash: scope -> integer, behind all of these; a window is a month, a day or an hour
-- ARGV      writer, prev, last, then for each posting: index into KEYS, field, amount
-- returns   {POSTED} | {DONE, mark} | {GAP, mark} | {TYPE, key} | {FORM, writer, floor or field} | {RANGE, field}
--
-- A Lua number is a double, exact only up to 2^53. So numbers stay text here: HINCRBY adds them, and
-- they are compared in two halves of at most 10 digits. The same in Python: metering/ledger.py, Balances.

local START = '0:0000000000000000'
local MARK = '^(%d+):' .. string.rep('[0-9a-f]', 16) .. '$'
local FLOOR = '^' .. string.rep('%d', 10) .. '$'
local HALF = 10                     -- digits of the lower half
local HALF_RANGE = 10000000000      -- 10^HALF
local HIGH_MAX = 400000000          -- 4 * 10^18 / HALF_RANGE
local DIGITS_MAX = 19

-- Digits as two numbers: the higher ones, and the last HALF.
local function halves(digits)
  if #digits <= HALF then
    return 0, tonumber(digits)
  end
  return tonumber(string.sub(digits, 1, -HALF - 1)), tonumber(string.sub(digits, -HALF))
end

-- The digits of an integer in canonical form, without its sign; nil if it is none.
local function magnitude(text)
  if text == '0' then
    return text
  end
  return string.match(text, '^%-?([1-9]%d*)$')
end

local function seq_of(mark)
  local digits = string.match(mark, MARK)
  if digits and #digits <= 16 and magnitude(digits) then
    return digits
  end
  return nil
end

local function not_below(digits, others)
  local high, low = halves(digits)
  local others_high, others_low = halves(others)
  return high > others_high or (high == others_high and low >= others_low)
end

for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return {'TYPE', key}
  end
end

local writer, prev, last = ARGV[1], ARGV[2], ARGV[3]
local mark = redis.call('HGET', KEYS[1], writer) or START
local seq, last_seq = seq_of(mark), seq_of(last)
if not seq or not last_seq or not seq_of(prev) then
  return {'FORM', writer}
end
if not_below(seq, last_seq) then
  return {'DONE', mark}
end
if mark ~= prev then
  return {'GAP', mark}
end

local floor = redis.call('HGET', KEYS[2], 'floor') or '0000000000'
if not string.match(floor, FLOOR) then
  return {'FORM', 'floor'}
end
local open = {}                     -- which of KEYS are hours, or windows, that are not wholly below the floor
for i = 3, #KEYS do
  local digits = string.match(KEYS[i], '%d+$')
  open[i] = tonumber(digits) >= tonumber(string.sub(floor, 1, #digits))
end

local highs, lows = {}, {}          -- |value| + the |amounts| so far, by key and field
for i = 4, #ARGV, 3 do
  local place = tonumber(ARGV[i])
  if open[place] then
    local key, field = KEYS[place], ARGV[i + 1]
    local name = ARGV[i] .. ' ' .. field
    local amount = magnitude(ARGV[i + 2])
    if not amount then
      return {'FORM', field}
    end
    local high, low = highs[name], lows[name]
    if not high then
      local value = magnitude(redis.call('HGET', key, field) or '0')
      if not value then
        return {'FORM', field}
      end
      if #value > DIGITS_MAX then
        return {'RANGE', field}
      end
      high, low = halves(value)
    end
    if #amount > DIGITS_MAX then
      return {'RANGE', field}
    end
    local more_high, more_low = halves(amount)
    high, low = high + more_high, low + more_low
    if low >= HALF_RANGE then
      high, low = high + 1, low - HALF_RANGE
    end
    if high > HIGH_MAX or (high == HIGH_MAX and low > 0) then
      return {'RANGE', field}
    end
    highs[name], lows[name] = high, low
  end
end

for i = 4, #ARGV, 3 do
  if open[tonumber(ARGV[i])] then
    redis.call('HINCRBY', KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2])
  end
end
redis.call('HSET', KEYS[1], writer, last)
return {'POSTED'}
