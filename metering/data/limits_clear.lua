-- Clear what a dead worker had under way, and, once all that it wrote is in the ledger, what it held.
--
-- KEYS[1]   wb:1:{T}:l             hash: the sums of all workers, by scope
-- KEYS[2]   wb:1:{T}:lw            hash: the workers
-- KEYS[3]   wb:1:{T}:l:<writer>    hash: this worker's part
-- ARGV      the writer; 1: all of it, 0: what was under way
-- returns   how many scopes

local all = ARGV[2] == '1'
local parts = redis.call('HGETALL', KEYS[3])
local scopes = 0
for i = 1, #parts, 2 do
  local name, part = parts[i], read(parts[i + 1], PART)
  if name == ABOUT then
    if part and not all then
      part[2] = 0                   -- it has to say all again
      redis.call('HSET', KEYS[3], name, pack(part))
    end
  else
    local total = read(redis.call('HGET', KEYS[1], name) or '', TOTAL)
    scopes = scopes + 1
    if part and total then
      take_out(total, part, all)
      part[1] = 0
      redis.call('HSET', KEYS[1], name, written(total, TOTAL + 1))
      redis.call('HSET', KEYS[3], name, pack(part))
    end
  end
end
if all then
  redis.call('DEL', KEYS[3])
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return scopes
