-- Sums of limits as the store keeps them. Stands before each script that reads or writes them.
--
-- wb:1:{T}:l            scope -> [running, requests_debt, at, tokens_debt, at, and of each window: window, high, low]
-- wb:1:{T}:l:<writer>   scope -> [running, requests, tokens, and of each window: window, high, low]: a worker's part
--                       `#`   -> [number, whole, seen]: of its last message
-- wb:1:{T}:lw           writer -> seen, to the second
--
-- All are MessagePack arrays but the last. An amount of money is two numbers, the digits above the last ten and the last
-- ten: a Lua number is a double, exact only up to 2^53, and both halves of any sum here stay far below. The same in
-- Python: metering/limits/rules.py.

local HALF_RANGE = 10000000000      -- 10^10
local TOTAL, PART = 5, 3            -- numbers before the windows
local ABOUT = '#'

local pack, unpacked = cmsgpack.pack, cmsgpack.unpack

-- Where a window stands in an array of sums, from its first window on; nil: it does not.
local function find(sums, first, window)
  for i = first, #sums, 3 do
    if sums[i] == window then
      return i
    end
  end
end

-- Add what a window holds; it may be there already.
local function hold(sums, first, window, high, low)
  local i = find(sums, first, window)
  if not i then
    i = #sums + 1
    sums[i], sums[i + 1], sums[i + 2] = window, high, low
    return
  end
  high, low = sums[i + 1] + high, sums[i + 2] + low
  if low >= HALF_RANGE then
    high, low = high + 1, low - HALF_RANGE
  end
  sums[i + 1], sums[i + 2] = high, low
end

-- Take a worker's part of one scope out of the total: what is under way, and, if `all`, what is held.
local function take_out(total, part, all)
  total[1] = math.max(0, total[1] - part[1])
  if all then
    for j = PART + 1, #part, 3 do
      local i = find(total, TOTAL + 1, part[j])
      if i then
        local high, low = total[i + 1] - part[j + 1], total[i + 2] - part[j + 2]
        if low < 0 then
          high, low = high - 1, low + HALF_RANGE
        end
        if high < 0 then
          high, low = 0, 0
        end
        total[i + 1], total[i + 2] = high, low
      end
    end
  end
end

-- Without windows that hold nothing: most are over.
local function written(sums, first)
  for i = first, #sums, 3 do
    if sums[i + 1] == 0 and sums[i + 2] == 0 then
      local kept = {}
      for j = 1, first - 1 do
        kept[j] = sums[j]
      end
      for j = first, #sums, 3 do
        if sums[j + 1] ~= 0 or sums[j + 2] ~= 0 then
          local at = #kept
          kept[at + 1], kept[at + 2], kept[at + 3] = sums[j], sums[j + 1], sums[j + 2]
        end
      end
      return pack(kept)
    end
  end
  return pack(sums)
end

-- Numbers, and none too few; nil: it is none of ours.
local function read(text, count)
  local fine, sums = pcall(unpacked, text)
  if not fine or type(sums) ~= 'table' or #sums < count or (#sums - count) % 3 ~= 0 then
    return nil
  end
  for i = 1, #sums do
    if type(sums[i]) ~= 'number' then
      return nil
    end
  end
  return sums
end
