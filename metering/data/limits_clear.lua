-- Clear what a dead worker had under way, and, once all that it wrote is in the ledger, what it held.
--
-- KEYS[1]   wb:1:{T}:l             hash: the sums of all workers, by scope
-- KEYS[2]   wb:1:{T}:lw            hash: the workers
-- KEYS[3]   wb:1:{T}:l:<writer>    hash: this worker's part
-- ARGV      the writer; 1: all of it, 0: what was under way
-- returns   how many scopes

local all = ARGV[2] == '1'
local parts = redis.call('HGETALL', KEYS[3])
for i = 1, #parts, 2 do
  local part, total = read(parts[i + 1], PART), read(redis.call('HGET', KEYS[1], parts[i]), TOTAL)
  if part and total then
    take_out(total, part, all)
    redis.call('HSET', KEYS[1], parts[i], written(total, TOTAL))
    redis.call('HSET', KEYS[3], parts[i], written(part, PART))
  end
end
if all then
  redis.call('DEL', KEYS[3])
  redis.call('HDEL', KEYS[2], ARGV[1])
else
  local known = redis.call('HGET', KEYS[2], ARGV[1])
  if known then
    redis.call('HSET', KEYS[2], ARGV[1], (string.gsub(known, '[01]$', '0')))
  end
end
return #parts / 2
