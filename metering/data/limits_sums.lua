-- Sums of limits as the store keeps them. Stands before each script that reads or writes them.
--
-- wb:1:{T}:l            scope -> `running requests_debt at tokens_debt at` and, of each window, ` window=held`
-- wb:1:{T}:l:<writer>   scope -> `running requests tokens` and, of each window, ` window=held`: that worker's part
-- wb:1:{T}:lw           writer -> `number seen whole`
--
-- Amounts of money are pairs of numbers, the digits above the last ten and the last ten: a Lua number is a double, exact
-- only up to 2^53. Both halves of any sum here stay far below. The same in Python: metering/limits/rules.py.

local HALF = 10                     -- digits of the lower half
local HALF_RANGE = 10000000000      -- 10^HALF

local function amount(digits)
  if #digits <= HALF then
    return {0, tonumber(digits)}
  end
  return {tonumber(string.sub(digits, 1, -HALF - 1)), tonumber(string.sub(digits, -HALF))}
end

local function digits(sum)
  if sum[1] == 0 then
    return string.format('%.0f', sum[2])
  end
  return string.format('%.0f%010.0f', sum[1], sum[2])
end

local function plus(a, b)
  local high, low = a[1] + b[1], a[2] + b[2]
  if low >= HALF_RANGE then
    high, low = high + 1, low - HALF_RANGE
  end
  return {high, low}
end

-- a - b, at least 0
local function minus(a, b)
  local high, low = a[1] - b[1], a[2] - b[2]
  if low < 0 then
    high, low = high - 1, low + HALF_RANGE
  end
  if high < 0 then
    return {0, 0}
  end
  return {high, low}
end

local function above(a, b)
  return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2])
end

local function is_zero(a)
  return a[1] == 0 and a[2] == 0
end

-- So many numbers, then windows. nil: it is none of ours.
local function read(text, count)
  local sums, held, place = {}, {}, 0
  if text then
    for word in string.gmatch(text, '%S+') do
      place = place + 1
      if place <= count then
        sums[place] = tonumber(word)
        if not sums[place] then
          return nil
        end
      else
        local window, sum = string.match(word, '^(%d+)=(%d+)$')
        if not window then
          return nil
        end
        held[window] = amount(sum)
      end
    end
    if place < count then
      return nil
    end
  else
    for i = 1, count do
      sums[i] = 0
    end
  end
  sums.held = held
  return sums
end

local function written(sums, count)
  local words = {}
  for i = 1, count do
    words[i] = string.format('%.0f', sums[i])
  end
  for window, sum in pairs(sums.held) do
    if not is_zero(sum) then
      words[#words + 1] = window .. '=' .. digits(sum)
    end
  end
  return table.concat(words, ' ')
end

local TOTAL, PART = 5, 3            -- numbers before the windows

-- Take a worker's part of one scope out of the total: what is under way, and, if `all`, what is held.
local function take_out(total, part, all)
  total[1] = math.max(0, total[1] - part[1])
  part[1] = 0
  if all then
    for window, sum in pairs(part.held) do
      if total.held[window] then
        total.held[window] = minus(total.held[window], sum)
      end
    end
    part.held = {}
  end
end
