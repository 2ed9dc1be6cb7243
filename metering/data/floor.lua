-- Raise a tenant's floor; it never falls.
--
-- KEYS[1]   wb:1:{T}:meta    hash
-- ARGV      yyyymmddhh
-- returns   the floor that is now

local now = redis.call('HGET', KEYS[1], 'floor')
if not now or not tonumber(now) or tonumber(now) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'floor', ARGV[1])
  return ARGV[1]
end
return now
